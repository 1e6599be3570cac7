"""Barriers in shared memory, and the pair of them with which a pipeline hands its stages from role to role.

        producer                                     consumer
        producer_acquire   waits on empty            consumer_wait   waits on full
        fills the stage                              reads the stage
        commit             arrives on full           release         arrives on empty
        advance                                      advance

How a role commits or releases depends on what fills or reads: an arrival that announces the bytes of TMA copies, a
commit of the tensor core, an arrival of a thread. So that line stands in the role, with `full()` or `empty()` of the stage.
"""
from .ptx import pinned
from std.sys._assembly import inlined_assembly


@fieldwise_init
struct MBarrier(TrivialRegisterPassable):
    """A barrier that counts arrivals and bytes (PTX ISA 9.7.13.15), by its address in shared memory. A phase completes
    when the barrier's number of arrivals and all announced bytes are there; the next one begins at once."""

    var address: UInt32

    # ---- which barrier ---------------------------------------------------------------------------------------------
    @inline(.always)
    def next(self, count: UInt32) -> Self:
        """So many barriers further, in an array of them."""
        return {self.address + count * 8}

    @inline(.always)
    def in_cta(self, rank: UInt32) -> Self:
        """The barrier at this offset in the CTA of this rank in the cluster."""
        return {address_in(self.address, rank)}

    @inline(.always)
    def in_leader[cta_group: Int](self) -> Self:
        """The barrier at this offset in the CTA that leads the MMA, the even one of a pair: bit 24 of a shared address is
        the lowest bit of the CTA's rank."""
        comptime if cta_group == 2:
            return {self.address & 0xFEFFFFFF}
        return self

    # ---- arrivals --------------------------------------------------------------------------------------------------
    @inline(.always)
    def init(self, arrivals: UInt32):
        inlined_assembly["mbarrier.init.shared::cta.b64 [$0], $1;", NoneType, constraints="r,r,~{memory}"](
            self.address, arrivals
        )

    @inline(.always)
    def arrive_and_expect(self, bytes: UInt32):
        """One arrival, and `bytes` more to come before the phase completes. In this CTA."""
        inlined_assembly[
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", NoneType, constraints="r,r,~{memory}"
        ](self.address, bytes)

    @inline(.always)
    def arrive(self):
        """One arrival, in any CTA of the cluster. It orders nothing but this CTA's own accesses, which is enough to say
        that the tensor core has read a stage: the data itself moves by asynchronous copies."""
        inlined_assembly["mbarrier.arrive.shared::cluster.b64 _, [$0];", NoneType, constraints="r,~{memory}"](
            self.address
        )

    @inline(.always)
    def arrive_release(self):
        """As `arrive`, and what this thread has read or written before is done for who waits with `wait_acquire`, in any
        CTA of the cluster (PTX ISA 9.7.13.15.13)."""
        inlined_assembly[
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", NoneType, constraints="r,~{memory}"
        ](self.address)

    # ---- waits -----------------------------------------------------------------------------------------------------
    @inline(.always)
    def wait(self, parity: UInt32):
        """Returns when the phase of this parity has completed. On a fresh barrier parity 1 counts as completed."""
        while not inlined_assembly[
            "mbarrier.try_wait.parity.shared::cta.b64 $0, [$1], $2;", Bool, constraints="=b,r,r,~{memory}"
        ](self.address, parity):
            pass

    @inline(.always)
    def wait_acquire(self, parity: UInt32):
        """As `wait`, and what threads of other CTAs did before they arrived is visible."""
        while not inlined_assembly[
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 $0, [$1], $2;",
            Bool,
            constraints="=b,r,r,~{memory}",
        ](self.address, parity):
            pass


@inline(.always)
def address_in(address: UInt32, rank: UInt32) -> UInt32:
    """The address of the same offset in the shared memory of the CTA of this rank in the cluster."""
    return inlined_assembly[
        "mapa.shared::cluster.u32 $0, $1, $2;", UInt32, constraints="=r,r,r", has_side_effect=False
    ](address, rank)


@inline(.always)
def fence_mbarrier_init():
    """Orders barrier initialisation before a following cluster barrier, for arrivals from other CTAs."""
    inlined_assembly["fence.mbarrier_init.release.cluster;", NoneType, constraints="~{memory}"]()


comptime CONSUMER = UInt32(0)
"""The parity that a consumer begins to wait for: of the first phase of a full barrier."""

comptime PRODUCER = UInt32(1)
"""The parity that a producer begins to wait for. A fresh barrier reports it as completed: at first every stage is
empty."""


struct Pipeline[stages: Int](TrivialRegisterPassable):
    """One role's place in a ring of stages, each with a full and an empty barrier. The parity flips each time the ring
    wraps, so that no role needs a counter."""

    var first_full: MBarrier
    var first_empty: MBarrier
    var stage: UInt32
    var parity: UInt32

    @inline(.always)
    def __init__(out self, full: MBarrier, empty: MBarrier, parity: UInt32):
        """Of the first stage; `parity` is `PRODUCER` or `CONSUMER`."""
        self.first_full = full
        self.first_empty = empty
        self.stage = 0
        self.parity = parity

    @inline(.always)
    def full(self) -> MBarrier:
        return self.first_full.next(self.stage)

    @inline(.always)
    def empty(self) -> MBarrier:
        return self.first_empty.next(self.stage)

    @inline(.always)
    def as_producer(self) -> Self:
        """The producer's place at this stage, for a role that fills each stage itself before it reads it."""
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
        """After the last stage: waits until every stage has been released. The last arrivals, of other CTAs, must not find
        this one gone."""
        comptime for _ in range(Self.stages):
            self.producer_acquire()
            self.advance()

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
    def skip(mut self, count: UInt32):
        """As `advance`, so many times."""
        var place = self.stage + count
        self.parity ^= place // UInt32(Self.stages) & 1
        self.stage = place % UInt32(Self.stages)

    @inline(.always)
    def pin(mut self):
        """The compiler may not compute the place any earlier. Where stages follow one another without a loop it would
        compute all places beforehand, and has no registers for that."""
        self.stage = pinned(self.stage)
        self.parity = pinned(self.parity)
