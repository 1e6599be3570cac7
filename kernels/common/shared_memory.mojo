"""What lies in shared memory: barriers and who arrives at them, the ring, boxes of C, answers of launch control."""

from .block_scaling import SCALE_SLOTS
from .config import SHARED_MEMORY_LIMIT, GemmConfig


__extension GemmConfig:
    def empty_arrivals(self) -> Int:
        """Arrivals an empty barrier waits for: each reader of what a CTA loads into a stage says once that it has read
        it. A reader is an MMA on sm_100a, a consumer warpgroup on sm_90a; or each of its warps, as they read scale factors
        by themselves."""
        var warps = 4 if self.promotes() else 1
        return self.sharing().readers() * (1 if self.has_tmem() else warps * self.consumers_of_tile())

    def accumulator_readers(self) -> Int:
        """Warps that read an accumulator in TMEM: four of each CTA of the MMA."""
        return 4 * self.cta_group

    def accumulator_barriers(self) -> Int:
        """Pairs of a full and an empty barrier."""
        return 1 if self.accumulators_overlap() else self.accumulators

    def response_slots(self) -> Int:
        """Answers about the next tile that have a place of their own in shared memory. With a counter one is enough,
        and best: what a cluster has not asked for, another can still take."""
        return 1 if self.counts_tiles() else self.clc_depth

    def response_readers(self) -> Int:
        """Arrivals that say a response has been read. sm_100a, in a cluster: in each CTA the producer, the scheduler and
        four epilogue warps, and in each CTA that leads an MMA the MMA thread. sm_90a, in a CTA: the producer and the
        warps of the consumers; rank 0 also hears the other CTAs, once each."""
        if self.has_tmem():
            return 6 * self.cluster_size() + self.cluster_size() // self.cta_group
        return 1 + 4 * self.consumers()

    def barrier_bytes(self) -> Int:
        """Full and empty barrier of each stage, and what `fixed_barrier_bytes` counts."""
        return 16 * self.stages + self.fixed_barrier_bytes()

    def fixed_barrier_bytes(self) -> Int:
        """On sm_100a the full barrier of each accumulator, its empty barrier where it is used again, the empty barrier of
        each slot of scale factors, the word for the TMEM address. For each response slot 16 bytes and a full and an empty barrier.
        With split-K a word for each of two teams.
        """
        var scales = SCALE_SLOTS if self.kernel.is_block_scaled else 0
        var accumulators = self.accumulator_barriers() * (2 if self.kernel.is_persistent else 1)
        var arrived = 8 if self.splits_k() else 0
        return (8 * (accumulators + scales + 1) if self.has_tmem() else 0) + 32 * self.response_slots() + arrived

    def shared_memory_bytes(self) -> Int:
        return self.stages * self.stage_bytes() + self.c_bytes() + self.barrier_bytes()

    def stages_that_fit(self) -> Int:
        var free = SHARED_MEMORY_LIMIT - self.c_bytes() - self.fixed_barrier_bytes()
        return free // max(1, self.stage_bytes() + 16)


struct SharedMemory(TrivialRegisterPassable):
    """Where things lie in a CTA's dynamic shared memory, as byte offsets from its start: A stages, B stages, C boxes,
    scale factors, scheduler responses, then barriers; what concerns accumulators and TMEM exists on sm_100a only. Tiles come first: they
    are 128-byte swizzled and need 1024-byte alignment (PTX ISA 5.5.7), which every tile size here is a multiple of."""

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
    var arrived: Int  # a word of each team's, with split-K

    def __init__(out self, config: GemmConfig):
        self.a = 0
        self.b = self.a + config.stages * config.a_bytes()
        self.c = self.b + config.stages * config.b_bytes()
        self.a_scales = self.c + config.c_bytes()
        self.b_scales = self.a_scales + config.stages * config.a_scale_bytes()
        self.responses = self.b_scales + config.stages * config.b_scale_bytes()
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
