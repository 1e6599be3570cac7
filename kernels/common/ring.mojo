"""Position in a ring of stages."""
from .ptx import pinned


struct Ring[stages: Int](TrivialRegisterPassable):
    """The parity flips each time the ring wraps: consumers start at 0, producers at 1, which a fresh barrier reports as already
    completed, so that at first every stage is found empty."""

    var stage: UInt32
    var parity: UInt32

    @inline(.always)
    def __init__(out self, *, parity: UInt32):
        self.stage = 0
        self.parity = parity

    @inline(.always)
    def skip(mut self, count: UInt32):
        """As `advance`, so many times."""
        var place = self.stage + count
        self.parity ^= place // UInt32(Self.stages) & 1
        self.stage = place % UInt32(Self.stages)

    @inline(.always)
    def advance(mut self):
        comptime if Self.stages == 1:
            self.parity ^= 1
        else:
            self.stage += 1
            if self.stage == UInt32(Self.stages):
                self.stage = 0
                self.parity ^= 1

    @inline(.always)
    def pin(mut self):
        """The compiler may not compute it any earlier. Where stages follow one another without a loop it would compute all
        positions beforehand, and has no registers for that."""
        self.stage = pinned(self.stage)
        self.parity = pinned(self.parity)
