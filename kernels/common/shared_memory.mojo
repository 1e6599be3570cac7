"""Where things lie in a CTA's dynamic shared memory, as byte offsets from its start.

A stages, B stages, C boxes, scheduler responses, then barriers; what concerns accumulators and TMEM exists on
sm_100a only. Tiles come first: they are 128-byte swizzled and need 1024-byte alignment (PTX ISA 5.5.7), which every
tile size here is a multiple of.
"""
from .config import GemmConfig


struct SharedMemory(TrivialRegisterPassable):
    var a: Int
    var b: Int
    var c: Int
    var responses: Int
    var full: Int
    var empty: Int
    var accumulator_full: Int
    var accumulator_empty: Int
    var response_full: Int
    var response_empty: Int
    var tmem_address: Int

    def __init__(out self, config: GemmConfig):
        self.a = 0
        self.b = self.a + config.stages * config.a_bytes()
        self.c = self.b + config.stages * config.b_bytes()
        self.responses = self.c + config.c_bytes()
        self.full = self.responses + 16 * config.response_slots()
        self.empty = self.full + 8 * config.stages
        self.accumulator_full = self.empty + 8 * config.stages
        var accumulators = 8 * config.accumulators if config.has_tmem() else 0
        self.accumulator_empty = self.accumulator_full + accumulators
        self.response_full = self.accumulator_empty + (accumulators if config.is_persistent() else 0)
        self.response_empty = self.response_full + 8 * config.response_slots()
        self.tmem_address = self.response_empty + 8 * config.response_slots()
