"""Stores of threads that write the same values, so that their order does not matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emugpu.check.record import Record
from emugpu.emulator.machine.events import Site

LARGEST_ITEM = 8


def are_alike(one: Record, other: Record) -> bool:
    """Returns whether two stores are by one instruction, or of the same register or number, as in an unrolled loop, and
    write the same value to each byte that both of them write.
    """
    return _is_one_store(one.site, other.site) and _write_the_same(one, other)


def repeats(one: Record, other: Record) -> bool:
    """Returns whether a store is the same as another one: of the same values at the same addresses."""
    return one.stored is not None and one.stored == other.stored and _is_one_store(one.site, other.site)


def has_one_value(store: Record) -> bool:
    """Returns whether the lanes of a store are known to write the same value to each byte."""
    contents = _contents(store)
    return contents is not None and not np.isnan(contents[1]).any()


def _is_one_store(one: Site, other: Site) -> bool:
    if one is other:
        return True
    values = [site.text.partition("]")[2] for site in (one, other)]
    return one.opcode == other.opcode == "st" and one.modifiers == other.modifiers and values[0] == values[1]


def _write_the_same(one: Record, other: Record) -> bool:
    """Returns whether two stores write the same value to each byte that both of them write, if that is known."""
    mine, theirs = _contents(one), _contents(other)
    if one.stored == other.stored:
        return one.stored is not None and (mine is None or has_one_value(one))
    if mine is None or theirs is None:
        return False
    _, at_mine, at_theirs = np.intersect1d(mine[0], theirs[0], return_indices=True)
    return bool((mine[1][at_mine] == theirs[1][at_theirs]).all())


def _contents(store: Record) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Returns the addresses of the bytes that a store writes, and their values: NaN if its lanes write different ones.

    Returns None if they are not known.
    """
    if store.contents is None:
        store.contents = _contents_of(store)
    return store.contents


def _contents_of(store: Record) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    if store.values is None or store.touched is None or len(store.touched) != 1:
        return None
    [(where, nbytes)] = store.touched
    items = [np.asarray(item) for item in (store.values if isinstance(store.values, tuple) else (store.values,))]
    size = nbytes // len(items)
    if size > LARGEST_ITEM or any(item.dtype.kind not in "iu" for item in items):
        return None
    lanes = max(item.size for item in (np.asarray(where), *items))
    starts = np.broadcast_to(np.asarray(where, np.int64), lanes)
    words = np.stack([np.broadcast_to(item.astype(np.uint64), lanes) for item in items], axis=1)
    values = (words[..., None] >> (8 * np.arange(size, dtype=np.uint64)) & np.uint64(0xFF)).ravel()
    places, first, which = np.unique(
        (starts[:, None] + np.arange(nbytes)).ravel(), return_index=True, return_inverse=True
    )
    found = values[first].astype(np.float64)
    found[which[values != values[first][which]]] = np.nan
    return places, found
