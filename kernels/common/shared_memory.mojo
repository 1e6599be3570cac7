"""The layout of shared memory: stages, boxes of C, responses, and barriers with their arrival counts."""

from .config import GemmConfig


__extension GemmConfig:
    def empty_arrivals(self) -> Int:
        """Returns the arrival count of the empty barrier of a stage, from all readers of what the CTA loads: one commit
        of an MMA on sm_100a, the arrivals of a consumer on sm_90a."""
        return self.sharing().readers() * (1 if self.has_tmem() else self.consumer_arrivals * self.consumers_of_tile)

    def accumulator_readers(self) -> Int:
        """Returns how many warps read an accumulator in TMEM: four of each CTA of the MMA."""
        return 4 * self.cta_group

    def response_readers(self) -> Int:
        """Returns how many roles arrive when they have read a response. On sm_100a, in a cluster: the producer, the
        scheduler and four epilogue warps of each CTA, and the MMA thread of each CTA that leads an MMA. On sm_90a, in a
        CTA: the producer and the warps of the consumers."""
        if self.has_tmem():
            return 6 * self.cluster_size() + self.cluster_size() // self.cta_group
        return 1 + 4 * self.consumers

    def response_arrivals(self, rank: UInt32) -> UInt32:
        """Returns the arrival count of the empty barrier of a response in the CTA of this rank. Rank 0 of a dynamic
        schedule also counts one arrival of each other CTA."""
        var collected = UInt32(self.cluster_size() - 1) if self.scheduler == "dynamic" else 0
        return UInt32(self.response_readers()) + (collected if rank == 0 else 0)


struct SharedMemory(TrivialRegisterPassable):
    """The byte offsets in the dynamic shared memory of a CTA. Those for accumulators and TMEM exist on sm_100a only.
    Tiles come first because they are 128-byte swizzled and need 1024-byte alignment (PTX ISA 5.5.7); the size of each
    tile is a multiple of that."""

    var a: Int  # stages
    var b: Int
    var c: Int  # boxes
    var more: Int  # what stages have besides A and B
    var declared_buffers: Int  # of the kernel (`Buffer`)
    var responses: Int
    var full: Int
    var empty: Int
    var accumulator_full: Int
    var accumulator_empty: Int
    var response_full: Int
    var response_empty: Int
    var declared_barriers: Int  # of the kernel (`Barrier`)
    var tmem_address: Int
    var end: Int

    def __init__(out self, config: GemmConfig):
        self.a = 0
        self.b = self.a + config.stages * config.a_bytes()
        self.c = self.b + config.stages * config.b_bytes()
        self.more = self.c + config.c_bytes()
        self.declared_buffers = self.more + config.stages * config.more_stage_bytes
        self.responses = self.declared_buffers + config.kernel.buffer_bytes
        self.full = self.responses + 16 * config.response_slots
        self.empty = self.full + 8 * config.stages
        self.accumulator_full = self.empty + 8 * config.stages
        var accumulators = 8 * config.accumulator_barriers if config.has_tmem() else 0
        self.accumulator_empty = self.accumulator_full + accumulators
        self.response_full = self.accumulator_empty + (accumulators if config.kernel.is_persistent else 0)
        self.response_empty = self.response_full + 8 * config.response_slots
        self.declared_barriers = self.response_empty + 8 * config.response_slots
        self.tmem_address = self.declared_barriers + 8 * Int(config.kernel.mbarriers.reduce_add())
        self.end = self.tmem_address + (8 if config.has_tmem() else 0)
