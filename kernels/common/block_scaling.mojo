"""Block-scaled formats: elements of 4 or 8 bits, and a scale factor for each block of neighbours along K.

    element[row, k] * scale[row, k // block]

A scale factor is a byte: ue8m0, a power of two, or ue4m3, an e4m3 without a sign. Global and shared memory hold the
scale factors in atoms of 128 rows x 4 blocks, 512 bytes, and copies to tensor memory move whole atoms
(docs/block-scaling.md has a picture):

    byte of row r and block b in its atom: 16 * (r % 32) + 4 * (r // 32) + b

The scale factors of a matrix are a row-major array of atoms: one row for each 128 rows, one column for each 4 blocks.
"""

from .kernel import Barrier
from .word import Word

comptime ATOM_ROWS = 128
comptime ATOM_BLOCKS = 4
comptime ATOM_BYTES = ATOM_ROWS * ATOM_BLOCKS

comptime ATOM_WORDS = ATOM_BYTES // 8
"""8-byte words of an atom. Tensor maps count these, because a row of a box has at most 256 elements."""

comptime ATOM_COLUMNS = 4
"""TMEM columns of an atom, by 32 lanes. One word holds the four factors of row r, in lane r % 32 and column r // 32."""

comptime SCALE_SLOTS = 2
"""Slots of tensor memory, each for the scale factors of a stage: the MMA reads one while the next is copied."""

comptime SCALES_EMPTY = Barrier(
    "scales empty",
    count=SCALE_SLOTS,
    arrivals=1,
    bytes=0,
    arrives="a commit of the MMA thread, when the MMAs that use the slot are done",
    waits="the MMA thread, before it copies scale factors into the slot",
)
"""The empty barriers of the slots."""


@fieldwise_init
struct BlockScaling(TrivialRegisterPassable):
    """The format of a matrix: its elements and, if it is block-scaled, its scale factors."""

    var name: Word
    var kind: Word  # of the MMA (PTX ISA 9.7.16.10.9.1)
    var bits: Int  # of an element
    var factors: Int  # scale factors of a row in one MMA, whose K is 32 bytes
    var element_code: Int  # in the instruction descriptor (PTX ISA 9.7.16.4.2)
    var scale_code: Int  # 0 ue4m3, 1 ue8m0

    def mma_k(self) -> Int:
        """Returns K of one MMA, in elements."""
        return 256 // self.bits

    def block(self) -> Int:
        """Returns how many elements share a scale factor."""
        return self.mma_k() // self.factors

    def factors_are_powers_of_two(self) -> Bool:
        """The scale factors are powers of two (ue8m0)."""
        return self.scale_code == 1

    def atoms_per_stage(self) -> Int:
        """Returns how many atoms along K a stage has. It has four MMAs, and each uses `factors` of an atom's four."""
        return self.factors


comptime UNSCALED = BlockScaling("", "f16", bits=16, factors=0, element_code=0, scale_code=0)

comptime E4M3 = BlockScaling("e4m3", "f8f6f4", bits=8, factors=0, element_code=0, scale_code=0)
"""e4m3 on Hopper, whose MMAs take no scale factors: `GemmConfig.scales` says which the kernel applies."""

comptime F32_BLOCK = 128
"""K of a stage of e4m3. These elements share an f32 scale factor, in one row of A or in 128 rows of B."""

comptime BLOCK_SCALED = [
    BlockScaling("nvfp4", "mxf4nvf4", bits=4, factors=4, element_code=1, scale_code=0),
    BlockScaling("mxfp8", "mxf8f6f4", bits=8, factors=1, element_code=0, scale_code=1),
    BlockScaling("mxfp8-e5m2", "mxf8f6f4", bits=8, factors=1, element_code=1, scale_code=1),
    BlockScaling("mxfp4", "mxf4", bits=4, factors=2, element_code=1, scale_code=1),
]


def block_scaled_names() -> List[Word]:
    return [format.name for format in materialize[BLOCK_SCALED]()]


def find_scaling(name: Word) -> BlockScaling:
    """Returns the block-scaled format of this name, `E4M3`, or `UNSCALED` for any other name."""
    comptime for format in BLOCK_SCALED:
        if name == format.name:
            return format
    return E4M3 if name == E4M3.name else UNSCALED
