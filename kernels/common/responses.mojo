"""Responses about the next tile: a pipeline from the scheduler thread to every role.

A slot has 16 bytes that name a tile, and a full and an empty barrier (cta.mojo)."""
from .config import GemmConfig
from .cta import Cta
from .pipeline import MBarrier, Pipeline
from std.sys._assembly import inlined_assembly


__extension MBarrier:
    @inline(.always)
    def arrive_release(self):
        """Arrives with release at cluster scope: a thread of any CTA that waits with `wait_acquire` observes the
        earlier reads and writes of this thread (PTX ISA 9.7.13.15.13)."""
        inlined_assembly[
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", NoneType, constraints="r,~{memory}"
        ](self.address)

    @inline(.always)
    def wait_acquire(self, parity: UInt32):
        """Waits with acquire at cluster scope: observes what other CTAs did before they arrived with release."""
        while not inlined_assembly[
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 $0, [$1], $2;",
            Bool,
            constraints="=b,r,r,~{memory}",
        ](self.address, parity):
            pass


@inline(.always)
def responses[config: GemmConfig](cta: Cta[config], parity: UInt32) -> Pipeline[max(1, config.response_slots)]:
    """Returns the pipeline of responses."""
    return {cta.response_full(), cta.response_empty(), parity}


@inline(.always)
def response_address[config: GemmConfig](cta: Cta[config], slot: UInt32) -> UInt32:
    """Returns the shared memory address of a response."""
    return cta.shared + UInt32(cta.layout.responses) + slot * 16
