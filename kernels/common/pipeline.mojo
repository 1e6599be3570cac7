"""Barriers in shared memory, and pipelines: a full and an empty barrier hand each stage from role to role.

        producer                                     consumer
        producer_acquire   waits on empty            consumer_wait   waits on full
        fills the stage                              reads the stage
        commit             arrives on full           release         arrives on empty
        advance                                      advance

How a role commits or releases depends on what fills or reads the stage: an arrival that announces the bytes of TMA
copies, a commit of the tensor core, or an arrival of a thread. So the role contains that line, on `full()` or
`empty()`."""
from std.sys._assembly import inlined_assembly


@fieldwise_init
struct MBarrier(TrivialRegisterPassable):
    """An mbarrier, by its address in shared memory (PTX ISA 9.7.13.15). A phase completes when all expected arrivals
    and all announced bytes have arrived; the next phase begins at once."""

    var address: UInt32

    # ---- which barrier ---------------------------------------------------------------------------------------------
    @inline(.always)
    def next(self, count: UInt32) -> Self:
        """Returns the barrier `count` places further in an array of barriers."""
        return {self.address + count * 8}

    @inline(.always)
    def in_cta(self, rank: UInt32) -> Self:
        """Returns the barrier at the same offset in the CTA of this rank in the cluster."""
        return {address_in(self.address, rank)}

    @inline(.always)
    def in_leader[cta_group: Int](self) -> Self:
        """Returns the barrier at the same offset in the CTA that leads the MMA, the even one of a pair. Bit 24 of a
        shared memory address is the lowest bit of the CTA's rank."""
        comptime if cta_group == 2:
            return {self.address & 0xFEFFFFFF}
        return self

    # ---- arrivals --------------------------------------------------------------------------------------------------
    @inline(.always)
    def init(self, arrivals: UInt32):
        """Initialises the barrier, whose phases each expect this many arrivals."""
        inlined_assembly["mbarrier.init.shared::cta.b64 [$0], $1;", NoneType, constraints="r,r,~{memory}"](
            self.address, arrivals
        )

    @inline(.always)
    def arrive_and_expect(self, bytes: UInt32):
        """Arrives once at a barrier of this CTA, and announces `bytes` that must arrive before the phase completes."""
        inlined_assembly[
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", NoneType, constraints="r,r,~{memory}"
        ](self.address, bytes)

    @inline(.always)
    def arrive(self):
        """Arrives once at a barrier of any CTA of the cluster, with release at CTA scope, the default. This suffices to
        tell that the tensor core has read a stage, because asynchronous copies move the data. Where threads hand over
        data across CTAs, they use `arrive_release` and `wait_acquire` (responses.mojo)."""
        inlined_assembly["mbarrier.arrive.shared::cluster.b64 _, [$0];", NoneType, constraints="r,~{memory}"](
            self.address
        )

    # ---- waits -----------------------------------------------------------------------------------------------------
    @inline(.always)
    def wait(self, parity: UInt32):
        """Waits until the phase of this parity has completed, with acquire at CTA scope, the default. Parity 1 counts
        as completed on a new barrier."""
        while not inlined_assembly[
            "mbarrier.try_wait.parity.shared::cta.b64 $0, [$1], $2;", Bool, constraints="=b,r,r,~{memory}"
        ](self.address, parity):
            pass


@inline(.always)
def address_in(address: UInt32, rank: UInt32) -> UInt32:
    """Returns the address of the same offset in the shared memory of the CTA of this rank (mapa)."""
    return inlined_assembly[
        "mapa.shared::cluster.u32 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](address, rank)


@inline(.always)
def fence_mbarrier_init():
    """Orders barrier initialisation before the next cluster barrier, for other CTAs (PTX ISA 9.7.13.4)."""
    inlined_assembly["fence.mbarrier_init.release.cluster;", NoneType, constraints="~{memory}"]()


comptime CONSUMER = UInt32(0)
"""The parity that a consumer first waits for: the first phase of a full barrier."""

comptime PRODUCER = UInt32(1)
"""The parity that a producer first waits for. A new barrier reports it as completed, because every stage is empty."""


struct Pipeline[stages: Int](TrivialRegisterPassable):
    """The position of one role in a ring of stages, each with a full and an empty barrier. The parity flips each time
    the ring wraps, so no role needs a counter."""

    var first_full: MBarrier
    var first_empty: MBarrier
    var stage: UInt32
    var parity: UInt32

    @inline(.always)
    def __init__(out self, full: MBarrier, empty: MBarrier, parity: UInt32):
        """Takes the barriers of the first stage; `parity` is `PRODUCER` or `CONSUMER`."""
        self.first_full = full
        self.first_empty = empty
        self.stage = 0
        self.parity = parity

    @inline(.always)
    def full(self) -> MBarrier:
        """Returns the full barrier of the current stage."""
        return self.first_full.next(self.stage)

    @inline(.always)
    def empty(self) -> MBarrier:
        """Returns the empty barrier of the current stage."""
        return self.first_empty.next(self.stage)

    @inline(.always)
    def as_producer(self) -> Self:
        """Returns the producer's position at this stage, for a role that fills each stage itself before it reads it."""
        var other = self
        other.parity ^= 1
        return other

    @inline(.always)
    def producer_acquire(self):
        """Waits until every consumer has released the stage."""
        self.empty().wait(self.parity)

    @inline(.always)
    def consumer_wait(self):
        """Waits until the producer has filled the stage."""
        self.full().wait(self.parity)

    @inline(.always)
    def producer_tail(mut self):
        """Waits, after the last stage, until every stage has been released; one that was never filled counts as
        released. A CTA must not exit while other CTAs may still arrive at its barriers."""
        comptime for _ in range(Self.stages):
            self.producer_acquire()
            self.advance()

    @inline(.always)
    def advance(mut self):
        """Moves to the next stage."""
        comptime if Self.stages == 1:
            self.parity ^= 1
        else:
            self.stage += 1
            if self.stage == UInt32(Self.stages):
                self.stage = 0
                self.parity ^= 1
