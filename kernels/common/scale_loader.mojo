"""The part of the producer that loads the scale factors of A and B into a stage."""
from .block_scaling import ATOM_ROWS, ATOM_WORDS, F32_BLOCK
from .config import SWIZZLE_ROW_BYTES
from .cta import Cta, Problem, Tile
from .layer import Layer
from .layer_config import LayerConfig
from .pipeline import MBarrier
from .producer import Operand
from .tma import tma_load


struct ScaleLoader[config: LayerConfig](TrivialRegisterPassable):
    """Loads scale factors into stages. The thread that loads A and B uses it."""

    var a_atoms: Operand[Self.config.gemm.cta_group, Self.config.a_scale_slices(), Self.config.atom_row_bytes()]
    var b_atoms: Operand[Self.config.gemm.cta_group, Self.config.b_scale_slices(), Self.config.atom_row_bytes()]
    var problem: Problem
    var layer: Layer

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config.gemm], problem: Problem, layer: Layer):
        comptime sharing = Self.config.gemm.sharing()
        comptime of_b = Self.config.b_scale_sharing()
        comptime rows = UInt32(ATOM_ROWS)
        var a_atoms, b_atoms = (problem.m + rows - 1) // rows, (problem.n + rows - 1) // rows
        self.a_atoms = {layer.a_scales, a_atoms, 0, sharing.a_part(cta.rank), sharing.a_mask(cta.rank)}
        self.b_atoms = {layer.b_scales, b_atoms, 0, of_b.b_part(cta.rank), of_b.b_mask(cta.rank)}
        self.problem = problem
        self.layer = layer

    @inline(.always)
    def load(self, cta: Cta[Self.config.gemm], tile: Tile, stage: UInt32, k: Int32):
        """Starts the copies of this CTA's slices of scale factors, from column k of the tensor maps of A and B on. The
        full barrier of the stage, which counts their bytes too, has been announced."""
        var full = cta.full().next(stage).in_leader[Self.config.gemm.cta_group]()
        comptime a_bytes = UInt32(Self.config.a_scale_bytes())
        comptime b_bytes = UInt32(Self.config.b_scale_bytes())
        var a = cta.shared + UInt32(cta.layout.more) + stage * a_bytes
        var b = cta.shared + UInt32(Self.config.b_scales_offset()) + stage * b_bytes
        comptime if Self.config.promotes():
            self.load_factors(a, b, tile, k // F32_BLOCK, full)
        else:
            comptime words = Int32(Self.config.scaling.atoms_per_stage() * ATOM_WORDS)
            self.a_atoms.load(a, full, tile.row // ATOM_ROWS, k // SWIZZLE_ROW_BYTES * words)
            self.b_atoms.load(b, full, tile.column // ATOM_ROWS, k // SWIZZLE_ROW_BYTES * words)

    @inline(.always)
    def load_factors(self, a: UInt32, b: UInt32, tile: Tile, block: Int32, full: MBarrier):
        """Starts the copies of f32 scale factors; each CTA loads its own. For A it loads one box, with all of its rows.
        For B it loads one row for each 128 columns of the tile, from this block of K or up to three blocks before,
        because a box begins at a multiple of 16 bytes. A tile out of bounds loads any factors."""
        var row = tile.row if tile.row < Int32(self.problem.m) else 0
        var column = tile.column if tile.column < Int32(self.problem.n) else 0
        tma_load[1, False](a, self.layer.a_scales, full.address, row, block, 0)
        tma_load[1, False](b, self.layer.b_scales, full.address, block // 4 * 4, column // F32_BLOCK, 0)
