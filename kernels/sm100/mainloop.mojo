"""One K step of the main loop: load a stage of A and B by TMA, multiply it."""
from ..common.config import ELEMENT_BYTES, MMA_K, SWIZZLE_ROW_BYTES, GemmConfig
from ..common.multicast import Slices
from ..common.ptx import mbarrier_arrive_expect_tx, tma_load
from .cta import Cta
from .tcgen05 import commit, fence_after_thread_sync, mma, operand_descriptor


struct Ring[stages: Int](TrivialRegisterPassable):
    """Position in the ring of stages. The parity flips each time round: consumers start at 0, producers at 1, which a
    fresh barrier reports as already completed, so that the first round finds every stage empty."""

    var stage: UInt32
    var parity: UInt32

    @inline(.always)
    def __init__(out self, *, parity: UInt32):
        self.stage = 0
        self.parity = parity

    @inline(.always)
    def advance(mut self):
        comptime if Self.stages == 1:
            self.parity ^= 1
        else:
            self.stage += 1
            if self.stage == UInt32(Self.stages):
                self.stage = 0
                self.parity ^= 1


struct Operand[cta_group: Int, slices: Slices](TrivialRegisterPassable):
    """The slices of one operand tile that this CTA loads, and who receives them."""

    comptime box_bytes = Self.slices.box_rows() * SWIZZLE_ROW_BYTES

    var map: UInt64
    var row: Int32  # of the first box, in the tensor
    var offset: UInt32  # of the first box, in the stage's tile
    var mask: UInt16
    var part: UInt32

    @inline(.always)
    def __init__(out self, map: UInt64, tile_row: Int32, part: UInt32, mask: UInt32):
        self.map = map
        self.row = tile_row + Int32(part) * Int32(Self.slices.box_rows())
        self.offset = part * UInt32(Self.box_bytes)
        self.mask = UInt16(mask)
        self.part = part

    @inline(.always)
    def load(self, tile: UInt32, barrier: UInt32, k: Int32):
        """Sends this CTA's slices of the tile to all CTAs that need them."""
        comptime for turn in range(Self.slices.boxes_per_part()):
            comptime first = turn * Self.slices.parts
            comptime everybody = first + Self.slices.parts <= Self.slices.boxes()
            if everybody or self.part < UInt32(Self.slices.boxes() - first):
                tma_load[Self.cta_group, Self.slices.parts > 1](
                    tile + self.offset + UInt32(first * Self.box_bytes),
                    self.map,
                    barrier,
                    k,
                    self.row + Int32(first * Self.slices.box_rows()),
                    self.mask,
                )


struct Loader[config: GemmConfig](TrivialRegisterPassable):
    """Fills stages. One thread of every CTA."""

    comptime sharing = Self.config.sharing()

    var a: Operand[Self.config.cta_group, Self.config.a_slices()]
    var b: Operand[Self.config.cta_group, Self.config.b_slices()]

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config], a_map: UInt64, b_map: UInt64):
        comptime sharing = Self.sharing
        self.a = {a_map, cta.row, sharing.a_part(cta.rank), sharing.a_mask(cta.rank)}
        var b_row = cta.column + Int32(cta.in_pair()) * Int32(Self.config.cta_b_rows())
        self.b = {b_map, b_row, sharing.b_part(cta.rank), sharing.b_mask(cta.rank)}

    @inline(.always)
    def load(self, cta: Cta[Self.config], stage: UInt32, k: Int32):
        """Starts the copies of one stage. The full barrier in the even CTA of a pair counts the bytes of both."""
        var full = cta.full(stage)
        comptime if Self.config.cta_group == 2:
            full &= 0xFEFFFFFF  # bit 24 of a shared address is the lowest bit of the CTA's rank
        if cta.in_pair() == 0:
            mbarrier_arrive_expect_tx(full, UInt32(Self.config.full_bytes()))
        self.a.load(cta.shared + UInt32(cta.layout.a) + stage * UInt32(Self.config.a_bytes()), full, k)
        self.b.load(cta.shared + UInt32(cta.layout.b) + stage * UInt32(Self.config.b_bytes()), full, k)


struct Multiplier[config: GemmConfig](TrivialRegisterPassable):
    """Multiplies stages. One thread of the CTA that leads the MMA."""

    comptime sharing = Self.config.sharing()

    var a: UInt64
    var b: UInt64
    var writers: UInt16  # CTAs whose slices land in the stages of this MMA

    @inline(.always)
    def __init__(out self, cta: Cta[Self.config]):
        self.a = operand_descriptor(cta.shared + UInt32(cta.layout.a))
        self.b = operand_descriptor(cta.shared + UInt32(cta.layout.b))
        comptime sharing = Self.sharing
        self.writers = UInt16(sharing.commit_mask(cta.rank))

    @inline(.always)
    def multiply(self, cta: Cta[Self.config], stage: UInt32, accumulate: Bool):
        """Adds one stage to the accumulator, then tells everyone who wrote into the stage that it has been read."""
        fence_after_thread_sync()
        var a = self.a + UInt64(stage * UInt32(Self.config.a_bytes() // 16))
        var b = self.b + UInt64(stage * UInt32(Self.config.b_bytes() // 16))
        comptime for step in range(Self.config.block_k // MMA_K):
            comptime advance = UInt64(step * MMA_K * ELEMENT_BYTES // 16)
            mma[Self.config](cta.tmem, a + advance, b + advance, accumulate or step > 0)
        commit[Self.config.cta_group](cta.empty(stage), self.writers)

    @inline(.always)
    def publish(self, cta: Cta[Self.config]):
        """Tells the epilogues of all CTAs of the MMA that the accumulator is complete."""
        comptime sharing = Self.sharing
        commit[Self.config.cta_group](cta.accumulator(), UInt16(sharing.pair_mask(cta.rank)))
