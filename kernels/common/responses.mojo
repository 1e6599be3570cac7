"""Responses about the next tile: a pipeline from the scheduler thread to every role.

A slot has 16 bytes that name a tile, a full and an empty barrier (`cta.mojo` has those of stages and accumulators):

    full    a phase completes when the response has arrived. Its count is 1: this CTA's scheduler thread arrives, and
            announces the bytes if it does not store them itself. Every role waits
    empty   a phase completes when every role has read the response. With clc, every role of the cluster arrives at the
            CTA of rank 0, whose scheduler thread waits. With the dynamic schedule, every role arrives at its own CTA,
            whose scheduler thread waits; each other CTA then arrives once at rank 0
"""
from .config import GemmConfig
from .cta import Cta
from .pipeline import MBarrier, Pipeline
from .schedule import *
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
    return {
        MBarrier(cta.shared + UInt32(cta.layout.response_full)),
        MBarrier(cta.shared + UInt32(cta.layout.response_empty)),
        parity,
    }


@inline(.always)
def response_address[config: GemmConfig](cta: Cta[config], slot: UInt32) -> UInt32:
    """Returns the shared memory address of a response."""
    return cta.shared + UInt32(cta.layout.responses) + slot * 16


@inline(.always)
def response_arrivals[config: GemmConfig](cta: Cta[config]) -> UInt32:
    """Returns the arrival count of this CTA's empty barriers."""
    var readers = UInt32(config.response_readers())
    comptime if config.counts_tiles():
        readers += UInt32(config.cluster_size() - 1) if cta.rank == 0 else 0
    return readers
