"""Block-scaled formats: numbers of 4 or 8 bits, and a scale factor for each block of neighbours along K.

    element[row, k] * scale[row, k // block]

A scale factor is a byte: ue8m0, a power of two, or ue4m3, an e4m3 without a sign. In global memory, in shared memory and
in the copies to tensor memory scale factors lie in atoms of 128 rows x 4 blocks, 512 bytes, that are never taken apart
(docs/block-scaling.md has a picture):

    byte of row r and block b in its atom: 16 * (r % 32) + 4 * (r // 32) + b

A matrix is a row-major array of atoms: one row of them for each 128 rows, one column for each 4 blocks.
"""

from .word import Word

comptime ATOM_ROWS = 128
comptime ATOM_BLOCKS = 4
comptime ATOM_BYTES = ATOM_ROWS * ATOM_BLOCKS

comptime ATOM_WORDS = ATOM_BYTES // 8
"""The tensor maps of scale factors have elements of 8 bytes, as a box has at most 256 elements in a row."""

comptime ATOM_COLUMNS = 4
"""Of tensor memory, by 32 lanes: row r of an atom is in lane r % 32 and column r // 32, its four factors in one word."""

comptime SCALE_SLOTS = 2
"""Stages whose scale factors are in tensor memory: one is multiplied, the next is copied."""


@fieldwise_init
struct BlockScaling(TrivialRegisterPassable):
    """One format of A and B, or none."""

    var name: Word
    var kind: Word  # of the MMA (PTX ISA 9.7.16.10.9.1)
    var bits: Int  # of an element
    var factors: Int  # of a row in one MMA, whose K is 32 bytes
    var element_code: Int  # in the instruction descriptor (PTX ISA 9.7.16.4.2)
    var scale_code: Int  # 0 ue4m3, 1 ue8m0

    def mma_k(self) -> Int:
        """Elements along K of one MMA."""
        return 256 // self.bits

    def block(self) -> Int:
        """Elements that share a scale factor."""
        return self.mma_k() // self.factors

    def has_powers(self) -> Bool:
        """Factors are powers of two."""
        return self.scale_code == 1

    def atoms(self) -> Int:
        """Along K in a stage, which is four MMAs deep: each of them uses `factors` of an atom's four."""
        return self.factors


comptime UNSCALED = BlockScaling("", "f16", bits=16, factors=0, element_code=0, scale_code=0)

comptime E4M3 = BlockScaling("e4m3", "f8f6f4", bits=8, factors=0, element_code=0, scale_code=0)
"""Of Hopper, whose MMAs know no scale factors: `GemmConfig.scales` says which there are."""

comptime F32_BLOCK = 128
"""Elements along K that share an f32 scale factor, of one row of A or of as many rows of B: a stage of e4m3."""

comptime BLOCK_SCALED = [
    BlockScaling("nvfp4", "mxf4nvf4", bits=4, factors=4, element_code=1, scale_code=0),
    BlockScaling("mxfp8", "mxf8f6f4", bits=8, factors=1, element_code=0, scale_code=1),
    BlockScaling("mxfp8-e5m2", "mxf8f6f4", bits=8, factors=1, element_code=1, scale_code=1),
    BlockScaling("mxfp4", "mxf4", bits=4, factors=2, element_code=1, scale_code=1),
]


def block_scaled_names() -> List[Word]:
    return [format.name for format in materialize[BLOCK_SCALED]()]


def find_scaling(name: Word) -> BlockScaling:
    """`UNSCALED` for a name that is neither a block-scaled format nor e4m3."""
    comptime for format in BLOCK_SCALED:
        if name == format.name:
            return format
    return E4M3 if name == E4M3.name else UNSCALED
