"""Sifts the trace: of CTAs whose warps have done no more than load, store and meet at one barrier of all of them, whether
the accesses to their own shared memory are in order for certain.

A warp's *epoch* is how often it has left the barrier. What another warp has done in an earlier epoch has happened
before; nothing else that another warp has done is known to have.
"""

from .layout import *
from .lanes import *

comptime WARP_BITS = 6
comptime MANY = (1 << WARP_BITS) - 1


@inline(.always)
def knows(mark: Int, epoch: Int, warp: Int) -> Bool:
    """Whether a warp in an epoch comes after what a mark stands for: 0, or an epoch, plus 1, and a warp."""
    return mark >> WARP_BITS <= epoch or mark & MANY == warp


@inline(.always)
def note_read(shadow: Bytes, chunk: Int, epoch: Int, warp: Int, interval: Int) -> Bool:
    """Notes a read of a chunk; False: it may be out of order, among warps or among the lanes of its own."""
    var s = shadow.unsafe_offset(4 * CHUNK_FIELDS * chunk)
    var wrote = Int(get[DType.int32](s, 4 * CHUNK_WRITE))
    if not knows(wrote, epoch, warp):
        return False
    if wrote & MANY == warp and wrote != 0 and Int(get[DType.int32](s, 4 * CHUNK_WRITE_INTERVAL)) == interval:
        return False
    var mine = (epoch + 1) << WARP_BITS | warp
    var before = Int(get[DType.int32](s, 4 * CHUNK_READ))
    if before != mine and before >> WARP_BITS == epoch + 1:
        mine |= MANY
    set[DType.int32](s, 4 * CHUNK_READ, Int32(mine))
    set[DType.int32](s, 4 * CHUNK_READ_INTERVAL, Int32(interval))
    return True


@inline(.always)
def note_write(shadow: Bytes, chunk: Int, epoch: Int, warp: Int, interval: Int, is_whole: Bool) -> Bool:
    """Notes a write to a chunk; False: it may be out of order."""
    var s = shadow.unsafe_offset(4 * CHUNK_FIELDS * chunk)
    var was_read = Int(get[DType.int32](s, 4 * CHUNK_READ))
    if not knows(Int(get[DType.int32](s, 4 * CHUNK_WRITE)), epoch, warp) or not knows(was_read, epoch, warp):
        return False
    if was_read & MANY == warp and was_read != 0 and Int(get[DType.int32](s, 4 * CHUNK_READ_INTERVAL)) == interval:
        return False
    set[DType.int32](s, 4 * CHUNK_WRITE, Int32((epoch + 1) << WARP_BITS | warp))
    set[DType.int32](s, 4 * CHUNK_WRITE_INTERVAL, Int32(interval))
    if is_whole:
        set[DType.int32](s, 4 * CHUNK_WHOLE_BEFORE, get[DType.int32](s, 4 * CHUNK_WHOLE))
        set[DType.int32](s, 4 * CHUNK_WHOLE, Int32(epoch + 1))
    return True


@inline(.always)
def pass_access(t: Bytes, e: Bytes, end: Int, w: Bytes, cta: Bytes) -> Bool:
    """An access, whose chunks end there. Its epoch is written into the entry."""
    var epoch = look(w, WARP_LEFT)
    set[DType.int32](e, 36, Int32(epoch))
    var flags = half(e, 2)
    if flags & TRACED_SHARED == 0:
        return True
    var warp = look(w, WARP_INDEX)
    var interval = look(w, WARP_INTERVAL)
    for k in range(Int(get[DType.int32](e, 32)), end):
        var found = Int(get[DType.int32](pointer(t, SIFT_CHUNKS), 4 * k))
        var chunk = found & (WHOLE_CHUNK - 1)
        if chunk >= look(cta, SIFTED_CHUNKS):
            return False
        if flags & TRACED_STORE != 0:
            if not note_write(pointer(cta, SIFTED_SHADOW), chunk, epoch, warp, interval, found >= WHOLE_CHUNK):
                return False
        elif not note_read(pointer(cta, SIFTED_SHADOW), chunk, epoch, warp, interval):
            return False
    return True


@inline(.always)
def pass_event(e: Bytes, w: Bytes, cta: Bytes) -> Bool:
    """What else happens to a warp; False: it is something else than all warps that meet at barrier 0, and leave."""
    var kind = half(e, 0)
    var is_named = get[DType.int32](e, 36) != 0
    var value = Int(get[DType.int64](e, 24))
    if kind == EVENT_ARRIVED:
        if is_named or value != look(w, WARP_ARRIVED) or look(cta, SIFTED_EXITED) != 0:
            return False
        note(w, WARP_ARRIVED, value + 1)
        note(cta, SIFTED_ARRIVED, look(cta, SIFTED_ARRIVED) + 1)
        return True
    if kind == EVENT_COMPLETED:
        var all = look(cta, SIFTED_ARRIVED) == look(cta, SIFTED_WARPS)
        note(cta, SIFTED_ARRIVED, 0)
        return all
    if kind == EVENT_LEFT:
        if is_named or value != look(w, WARP_LEFT):
            return False
        note(w, WARP_LEFT, value + 1)
        note(w, WARP_INTERVAL, look(w, WARP_INTERVAL) + 1)
        return True
    if kind == EVENT_SYNCED:
        note(w, WARP_INTERVAL, look(w, WARP_INTERVAL) + 1)
        return value & ~Int(get[DType.uint32](e, 8)) == 0
    if kind == EVENT_EXITED:
        note(cta, SIFTED_EXITED, look(cta, SIFTED_EXITED) + 1)
        return True
    return kind == EVENT_RESUMED or kind == EVENT_SUSPENDED


@inline(.always)
def list_entry(t: Bytes, list: Int, k: Int):
    """Appends an entry to one of the lists that are handed back."""
    var count = look(t, list)
    set[DType.int64](pointer(t, SIFT_LISTS), 8 * (list * look(t, SIFT_COUNT) + count), Int64(k))
    note(t, list, count + 1)


@inline(.never)
def sift_all(t: Bytes):
    """Looks at the entries of plain CTAs, in order; notes of a CTA where it ceases to be one. Lists what is Python's."""
    var count = look(t, SIFT_COUNT)
    for k in range(count):
        var e = pointer(t, SIFT_ENTRIES).unsafe_offset(TRACE_BYTES * k)
        var w = pointer(t, SIFT_WARPS).unsafe_offset(8 * WARP_FIELDS * Int(get[DType.int32](e, 4)))
        var cta = pointer(t, SIFT_CTAS).unsafe_offset(8 * SIFTED_FIELDS * look(w, WARP_CTA))
        var kind = half(e, 0)
        if look(w, WARP_CTA) == 0:
            list_entry(t, SIFT_OTHERS, k)
            continue
        if kind == EVENT_EXITED:
            list_entry(t, SIFT_EXITS, k)
        if look(cta, SIFTED_ODD_AT) != NOT_YET:
            continue
        var is_fine: Bool
        if kind == EVENT_ACCESS:
            var end = Int(get[DType.int32](e, TRACE_BYTES + 32)) if k + 1 < count else look(t, SIFT_CHUNK_COUNT)
            is_fine = pass_access(t, e, end, w, cta)
            if half(e, 2) & TRACED_GLOBAL != 0:
                list_entry(t, SIFT_ACCESSES, k)
        else:
            is_fine = pass_event(e, w, cta)
            if kind == EVENT_COMPLETED and is_fine:
                list_entry(t, SIFT_COMPLETED, k)
        if not is_fine:
            note(cta, SIFTED_ODD_AT, k)
