"""Block-scaled MMAs of sm_100a, and the way of their scale factors: global -> shared -> tensor memory -> MMA.

    global memory   atoms, row-major           TMA copies the atoms of a stage of 128 rows, side by side, as one box
    shared memory   atoms, 512 bytes each      tcgen05.cp copies an atom, 32 rows of 16 bytes, to all four quadrants
    tensor memory   4 columns an atom          tcgen05.mma uses `factors` bytes of each word, from that of its ids on

Tensor memory holds the accumulators from column 0 on, then SCALE_SLOTS slots: each has the atoms of A, then those of B,
both in the order of K."""
from ..common.block_scaling import ATOM_BYTES, ATOM_COLUMNS, ATOM_ROWS
from ..common.config import MMA_K_BYTES, SWIZZLE_ROW_BYTES
from ..common.cta import Cta
from ..common.layer_config import LayerConfig
from .start_and_finish import tmem_address
from .tcgen05 import fence_after_thread_sync, operand_descriptor
from std.sys._assembly import inlined_assembly

comptime MMAS_PER_STAGE = SWIZZLE_ROW_BYTES // MMA_K_BYTES
"""MMAs of a stage."""


# ---- shared to tensor memory ---------------------------------------------------------------------------------------
@inline(.always)
def atom_descriptor(address: UInt32) -> UInt64:
    """Returns the descriptor of an atom: 32 contiguous rows of 16 bytes, no swizzle (PTX ISA 9.7.16.4.1)."""
    comptime version = UInt64(1) << 46
    comptime group_of_8_rows = UInt64(8 * 16 // 16) << 32
    return version | group_of_8_rows | UInt64((address & 0x3FFFF) >> 4)


@inline(.always)
def copy_atom[cta_group: Int](tmem: UInt32, atom: UInt64):
    """Starts to copy an atom to tensor memory, in each CTA of the MMA from its own shared memory. Later MMAs of this
    thread observe the copy; a later commit arrives when it has read the atom (PTX ISA 9.7.16.6, 9.7.16.9)."""
    inlined_assembly[
        String("tcgen05.cp.cta_group::", cta_group, ".32x128b.warpx4 [$0], $1;"),
        NoneType,
        constraints="r,l,~{memory}",
    ](tmem, atom)


# ---- MMA -----------------------------------------------------------------------------------------------------------
def scaled_descriptor(config: LayerConfig, step: Int) -> UInt32:
    """Returns the instruction descriptor of MMA `step` of a stage: its shape, its types, and the first byte that it
    uses of each word of scale factors (PTX ISA 9.7.16.4.2). The accumulator is always f32."""
    var format = config.scaling
    var first = step * format.factors % 4
    var types = (
        first << 4 | format.element_code << 7 | format.element_code << 10 | format.scale_code << 23 | first << 29
    )
    return UInt32(types | (config.gemm.mma_n // 8) << 17 | (config.gemm.mma_m // 16) << 24)


@inline(.always)
def scaled_mma[
    config: LayerConfig, step: Int
](tmem: UInt32, a: UInt64, b: UInt64, a_scales: UInt32, b_scales: UInt32, accumulate: Bool):
    """Starts D = A.B with scale factors, plus the old D if `accumulate` (PTX ISA 9.7.16.10.9.1)."""
    comptime descriptor = scaled_descriptor(config, step)
    comptime kind = String(".kind::", config.scaling.kind, ".block_scale.scale_vec::", config.scaling.factors, "X")
    inlined_assembly[
        String("tcgen05.mma.cta_group::", config.gemm.cta_group, kind, " [$0], $1, $2, $3, [$4], [$5], $6;"),
        NoneType,
        constraints="r,l,l,r,r,r,b,~{memory}",
    ](tmem, a, b, descriptor, a_scales, b_scales, accumulate)


struct ScaledMultiplier[config: LayerConfig](TrivialRegisterPassable):
    """Issues block-scaled MMAs. One thread of the CTA that leads the MMA uses it."""

    comptime atoms = Self.config.scaling.atoms_per_stage()
    comptime b_rows = Self.config.gemm.mma_n // ATOM_ROWS  # rows of atoms of B
    comptime b_columns = Self.b_rows * ATOM_COLUMNS  # TMEM columns of the atoms of B at one K

    var a: UInt64
    var b: UInt64
    var a_atoms: UInt64
    var b_atoms: UInt64
    var tmem: UInt32
    var scales: UInt32  # address in TMEM

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config.gemm]):
        self.a = operand_descriptor(cta.shared + UInt32(cta.layout.a))
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b))
        self.a_atoms = atom_descriptor(cta.shared + UInt32(cta.layout.more))
        self.b_atoms = atom_descriptor(cta.shared + UInt32(Self.config.b_scales_offset()))
        self.tmem = tmem_address(cta)
        self.scales = self.tmem + UInt32(Self.config.first_scale_column())

    @inline(.always)
    def copy_scales(self, stage: UInt32, slot: UInt32):
        """Starts to copy the scale factors of a full stage to a slot of tensor memory."""
        fence_after_thread_sync()
        var to = self.scales + slot * UInt32(Self.config.scale_columns())
        var a = self.a_atoms + UInt64(stage * UInt32(Self.config.a_scale_bytes() // 16))
        var b = self.b_atoms + UInt64(stage * UInt32(Self.config.b_scale_bytes() // 16))
        comptime for k in range(Self.atoms):
            copy_atom[Self.config.gemm.cta_group](to + UInt32(k * ATOM_COLUMNS), a + UInt64(k * ATOM_BYTES // 16))
        to += UInt32(Self.atoms * ATOM_COLUMNS)
        comptime for k in range(Self.atoms):
            comptime for row in range(Self.b_rows):
                comptime atom = row * Self.atoms + k
                comptime column = k * Self.b_columns + row * ATOM_COLUMNS
                copy_atom[Self.config.gemm.cta_group](to + UInt32(column), b + UInt64(atom * ATOM_BYTES // 16))

    @inline(.always)
    def multiply(self, stage: UInt32, slot: UInt32, accumulator: UInt32, accumulate: Bool):
        """Starts the MMAs of a full stage with the scale factors of a slot; they add to the accumulator
        if `accumulate`."""
        var a = self.a + UInt64(stage * UInt32(Self.config.gemm.a_bytes() // 16))
        var b = self.b + UInt64(stage * UInt32(Self.config.gemm.b_bytes() // 16))
        var tmem = self.tmem + accumulator * UInt32(Self.config.gemm.accumulator_columns())
        var a_scales = self.scales + slot * UInt32(Self.config.scale_columns())
        var b_scales = a_scales + UInt32(Self.atoms * ATOM_COLUMNS)
        comptime for step in range(MMAS_PER_STAGE):
            comptime advance = UInt64(step * MMA_K_BYTES // 16)
            comptime atom = step * Self.config.scaling.factors // 4
            scaled_mma[Self.config, step](
                tmem,
                a + advance,
                b + advance,
                a_scales + UInt32(atom * ATOM_COLUMNS),
                b_scales + UInt32(atom * Self.b_columns),
                accumulate or step > 0,
            )
