"""The layout of shared memory: stages, boxes of C, responses, and barriers with their arrival counts."""

from .block_scaling import SCALE_SLOTS
from .config import SHARED_MEMORY_LIMIT, GemmConfig


__extension GemmConfig:
    def empty_arrivals(self) -> Int:
        """Returns the arrival count of the empty barrier of a stage: one arrival of each reader of what the CTA loads.
        A reader is an MMA on sm_100a and a consumer warpgroup on sm_90a, or a consumer warp where sums are promoted,
        because each warp reads its scale factors itself."""
        var warps = 4 if self.promotes() else 1
        return self.sharing().readers() * (1 if self.has_tmem() else warps * self.consumers_of_tile())

    def accumulator_readers(self) -> Int:
        """Returns how many warps read an accumulator in TMEM: four of each CTA of the MMA."""
        return 4 * self.cta_group

    def accumulator_barriers(self) -> Int:
        """Returns how many pairs of a full and an empty barrier the accumulators have."""
        return 1 if self.accumulators_overlap() else self.accumulators

    def response_slots(self) -> Int:
        """Returns how many responses about the next tile shared memory holds. One is best with a counter, because other
        clusters can take any tile that this one has not fetched."""
        return 1 if self.counts_tiles() else self.clc_depth

    def response_readers(self) -> Int:
        """Returns how many roles arrive when they have read a response. On sm_100a, in a cluster: the producer, the
        scheduler and four epilogue warps of each CTA, and the MMA thread of each CTA that leads an MMA. On sm_90a, in a
        CTA: the producer and the warps of the consumers."""
        if self.has_tmem():
            return 6 * self.cluster_size() + self.cluster_size() // self.cta_group
        return 1 + 4 * self.consumers()

    def barrier_bytes(self) -> Int:
        """Returns the bytes of all barriers: a full and an empty one for each stage, and `fixed_barrier_bytes`."""
        return 16 * self.stages + self.fixed_barrier_bytes()

    def fixed_barrier_bytes(self) -> Int:
        """Returns the bytes of what does not depend on the stages. Each response slot has 16 bytes, a full and an empty
        barrier. On sm_100a, each accumulator has a full barrier, and an empty one in persistent kernels; each slot of
        scale factors has an empty barrier; the TMEM address has 8 bytes. With split-K, two teams have a word each."""
        var scales = SCALE_SLOTS if self.kernel.is_block_scaled else 0
        var accumulators = self.accumulator_barriers() * (2 if self.kernel.is_persistent else 1)
        var arrived = 8 if self.splits_k() else 0
        var declared = 8 * Int(self.kernel.mbarriers.reduce_add())
        return (
            (8 * (accumulators + scales + 1) if self.has_tmem() else 0)
            + 32 * self.response_slots()
            + arrived
            + declared
        )

    def shared_memory_bytes(self) -> Int:
        """Returns the bytes of dynamic shared memory that a CTA uses."""
        return self.stages * self.stage_bytes() + self.c_bytes() + self.kernel.buffer_bytes + self.barrier_bytes()

    def stages_that_fit(self) -> Int:
        """Returns the most stages that fit into shared memory."""
        var free = SHARED_MEMORY_LIMIT - self.c_bytes() - self.kernel.buffer_bytes - self.fixed_barrier_bytes()
        return free // max(1, self.stage_bytes() + 16)


struct SharedMemory(TrivialRegisterPassable):
    """The byte offsets in the dynamic shared memory of a CTA: A stages, B stages, C boxes, scale factors, buffers that
    the kernel declares, responses, then barriers. Those for accumulators and TMEM exist on sm_100a only. Tiles come
    first because they are 128-byte swizzled and need 1024-byte alignment (PTX ISA 5.5.7); the size of each tile is a
    multiple of that."""

    var a: Int
    var b: Int
    var c: Int
    var a_scales: Int
    var b_scales: Int
    var responses: Int
    var full: Int
    var empty: Int
    var accumulator_full: Int
    var accumulator_empty: Int
    var response_full: Int
    var response_empty: Int
    var scales_empty: Int
    var tmem_address: Int
    var arrived: Int  # with split-K, a word for each team
    var declared_buffers: Int  # of the kernel (`Buffer`)
    var declared_barriers: Int  # of the kernel (`Barrier`)

    def __init__(out self, config: GemmConfig):
        self.a = 0
        self.b = self.a + config.stages * config.a_bytes()
        self.c = self.b + config.stages * config.b_bytes()
        self.a_scales = self.c + config.c_bytes()
        self.b_scales = self.a_scales + config.stages * config.a_scale_bytes()
        self.declared_buffers = self.b_scales + config.stages * config.b_scale_bytes()
        self.responses = self.declared_buffers + config.kernel.buffer_bytes
        self.full = self.responses + 16 * config.response_slots()
        self.empty = self.full + 8 * config.stages
        self.accumulator_full = self.empty + 8 * config.stages
        var accumulators = 8 * config.accumulator_barriers() if config.has_tmem() else 0
        self.accumulator_empty = self.accumulator_full + accumulators
        self.response_full = self.accumulator_empty + (accumulators if config.kernel.is_persistent else 0)
        self.response_empty = self.response_full + 8 * config.response_slots()
        self.scales_empty = self.response_empty + 8 * config.response_slots()
        self.tmem_address = self.scales_empty + (8 * SCALE_SLOTS if config.kernel.is_block_scaled else 0)
        self.arrived = self.tmem_address + (8 if config.has_tmem() else 0)
        self.declared_barriers = self.arrived + (8 if config.splits_k() else 0)
