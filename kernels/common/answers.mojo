"""Asking which tile is next, for all roles of a cluster: see TileScheduler, which reads the answers."""
from .config import GemmConfig
from .cta import Cta
from .ptx import (
    address_in,
    load_shared,
    mbarrier_arrive_cluster,
    mbarrier_arrive_expect_tx,
    mbarrier_arrive_release,
    mbarrier_wait,
    mbarrier_wait_acquire,
    next_number,
    store_async,
    store_shared,
    try_cancel,
)
from .ring import Ring
from .tiles import TileScheduler, launched_clusters

comptime NUMBER_BYTES = UInt32(4)
"""Of an answer of the dynamic schedule."""


@inline(.always)
def ask_for_tiles[config: GemmConfig](cta: Cta[config], var tiles: TileScheduler[config]):
    """Asks the hardware for tile after tile as slots for answers become empty, so for up to `clc_depth` ahead of the slowest role.
    One thread of every CTA: each tells its own barrier of the bytes to come, that of rank 0 asks for all."""
    var slots = Ring[config.answers()](parity=1)
    while tiles.has_tile():
        mbarrier_arrive_expect_tx(cta.answer_full(slots.stage), 16)
        if cta.rank == 0:
            mbarrier_wait(cta.answer_empty(slots.stage), slots.parity)
            try_cancel[config.cluster_size() > 1](cta.answer(slots.stage), cta.answer_full(slots.stage))
        slots.advance()
        tiles.advance(cta)


@inline(.always)
def take_tiles[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """With the dynamic schedule, one thread of every CTA."""
    if cta.rank == 0:
        count_tiles(cta, tiles)
    else:
        collect_readers(cta, tiles)


@inline(.always)
def count_tiles[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Takes number after number from the counter as slots for answers become empty, and sends it to every CTA of the
    cluster. One thread of rank 0; in each CTA one announces the bytes.

    Each cluster begins with a tile that it need not ask for, and is refused once. So a launch takes exactly as many
    numbers as there are tiles, and the counter, which wraps there, is 0 again for the next launch.
    """
    var slots = Ring[config.answers()](parity=1)
    var number = tiles.number
    while number < tiles.count():
        # All roles have read the last answer, so its phase is over: earlier, the bytes would be announced to that one.
        mbarrier_wait_acquire(cta.answer_empty(slots.stage), slots.parity)
        comptime if config.cluster_size() > 1:
            mbarrier_arrive_expect_tx(cta.answer_full(slots.stage), NUMBER_BYTES)
        number = launched_clusters[config]() + next_number(tiles.problem.counter, tiles.count() - 1)
        comptime if config.cluster_size() > 1:
            comptime for rank in range(config.cluster_size()):
                store_async(
                    address_in(cta.answer(slots.stage), UInt32(rank)),
                    number,
                    address_in(cta.answer_full(slots.stage), UInt32(rank)),
                )
        else:  # st.async is for clusters of more than one CTA
            store_shared(cta.answer(slots.stage), number)
            mbarrier_arrive_cluster(address_in(cta.answer_full(slots.stage), 0))
        slots.advance()
    # Drain: the last arrivals of other CTAs must not find this one gone.
    comptime for _ in range(config.answers()):
        mbarrier_wait(cta.answer_empty(slots.stage), slots.parity)
        slots.advance()


@inline(.always)
def collect_readers[config: GemmConfig](cta: Cta[config], tiles: TileScheduler[config]):
    """Tells rank 0 when the roles of this CTA have read an answer. One thread of another CTA.

    The roles could tell it themselves. But what they read must come before what rank 0 writes, in another CTA: that
    takes a fence of cluster scope, which would hold up the consumers at each tile, and holds up nobody here.
    """
    var slots = Ring[config.answers()](parity=0)
    var number = tiles.number
    while number < tiles.count():
        mbarrier_arrive_expect_tx(cta.answer_full(slots.stage), NUMBER_BYTES)
        mbarrier_wait_acquire(cta.answer_full(slots.stage), slots.parity)
        number = load_shared(cta.answer(slots.stage))
        mbarrier_wait(cta.answer_empty(slots.stage), slots.parity)
        mbarrier_arrive_release(address_in(cta.answer_empty(slots.stage), 0))
        slots.advance()
