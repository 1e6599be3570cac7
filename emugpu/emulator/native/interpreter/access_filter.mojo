"""The access filter finds accesses of the trace that a reader can skip, because they are certainly in order.

It examines single-barrier CTAs, whose warps have only loaded, stored, fenced and met at one barrier of all of them, and
their accesses to their own shared memory. `access_filter.py` passes it the CTAs and the trace.

A warp's *epoch* is the number of times that it has left the barrier. An access of another warp in an earlier epoch
has happened before; no other access of another warp is known to have. An *interval* is the time between two
meetings of a warp's lanes: at a barrier of the CTA, or in an instruction that all of them execute together (.sync).
Diverged lanes are not ordered with one another until they reconverge.
"""

from std.bit import count_trailing_zeros
from .layout import *
from .lanes import *

comptime WARP_BITS = 6
comptime LANE_BITS = 6
comptime MANY = (1 << WARP_BITS) - 1
"""Marks several warps, or several lanes."""
comptime MOST_INTERVALS = 1 << 24


@inline(.always)
def knows(mark: Int, epoch: Int, warp: Int) -> Bool:
    """Returns whether a warp in an epoch comes after a mark: 0, or an epoch, plus 1, and a warp."""
    return mark >> WARP_BITS <= epoch or mark & MANY == warp


@inline(.always)
def knows_all(chunk: Bytes, marks: Int, epoch: Int, warp: Int) -> Bool:
    """Does the same for the marks of a chunk of one kind."""
    return knows(Int(get[DType.int32](chunk, 4 * marks)), epoch, warp)


@inline(.always)
def mark_also(chunk: Bytes, marks: Int, epoch: Int, warp: Int):
    """Marks a chunk for a warp, or for several if others have marked it in this epoch."""
    var mine = (epoch + 1) << WARP_BITS | warp
    var before = Int(get[DType.int32](chunk, 4 * marks))
    if before != mine and before >> WARP_BITS == epoch + 1:
        mine |= MANY
    set[DType.int32](chunk, 4 * marks, Int32(mine))


@inline(.always)
def note_read(shadow: Bytes, chunk: Int, epoch: Int, warp: Int) -> Bool:
    """Records a read of a chunk. Returns False if it may be out of order with other warps."""
    var s = shadow.unsafe_offset(4 * CHUNK_FIELDS * chunk)
    if not knows_all(s, CHUNK_WRITE, epoch, warp) or not knows_all(s, CHUNK_STRONG, epoch, warp):
        return False
    mark_also(s, CHUNK_READ, epoch, warp)
    return True


@inline(.always)
def note_strong(shadow: Bytes, chunk: Int, epoch: Int, warp: Int) -> Bool:
    """Records a strong access to a chunk. Returns False if it may be out of order with weak ones of other warps."""
    var s = shadow.unsafe_offset(4 * CHUNK_FIELDS * chunk)
    if not knows_all(s, CHUNK_WRITE, epoch, warp) or not knows_all(s, CHUNK_READ, epoch, warp):
        return False
    mark_also(s, CHUNK_STRONG, epoch, warp)
    return True


@inline(.always)
def note_write(shadow: Bytes, chunk: Int, epoch: Int, warp: Int, is_whole: Bool) -> Bool:
    """Records a write to a chunk. Returns False if it may be out of order with other warps."""
    var s = shadow.unsafe_offset(4 * CHUNK_FIELDS * chunk)
    for marks in range(CHUNK_WRITE, CHUNK_STRONG + 1):
        if not knows_all(s, marks, epoch, warp):
            return False
    set[DType.int32](s, 4 * CHUNK_WRITE, Int32((epoch + 1) << WARP_BITS | warp))
    if is_whole:
        set[DType.int32](s, 4 * CHUNK_WHOLE_BEFORE, get[DType.int32](s, 4 * CHUNK_WHOLE))
        set[DType.int32](s, 4 * CHUNK_WHOLE, Int32(epoch + 1))
    return True


@inline(.always)
def is_anothers(mark: Int, interval: Int, lane: Int) -> Bool:
    """Returns whether another lane of the warp, or more than one, has left a mark since its lanes met."""
    return mark >> LANE_BITS == interval and (mark & MANY != lane or lane == MANY)


@fieldwise_init
struct Marks(TrivialRegisterPassable):
    """The marks of words for an access of a warp in an interval: the last reader and the last writer of each.

    `apart` says whether the lanes have diverged, so that two stores are not in order either.
    """

    var reads: Bytes
    var writes: Bytes
    var interval: Int
    var stores: Bool
    var apart: Bool


@inline(.always)
def mark_words(marks: Marks, address: Int, size: Int, lane: Int) -> Bool:
    """Marks the words that a lane, or several, accesses. Returns False if it may be out of order with lanes of its
    warp.
    """
    for word in range(address >> 2, ((address + size - 1) >> 2) + 1):
        var was_read = Int(get[DType.int32](marks.reads, 4 * word))
        var written = Int(get[DType.int32](marks.writes, 4 * word))
        var mine = marks.interval << LANE_BITS | lane
        if marks.stores:
            if is_anothers(was_read, marks.interval, lane) or (marks.apart and is_anothers(written, marks.interval, lane)):
                return False
            set[DType.int32](marks.writes, 4 * word, Int32(mine))
        else:
            if is_anothers(written, marks.interval, lane):
                return False
            set[DType.int32](marks.reads, 4 * word, Int32(mine | MANY if is_anothers(was_read, marks.interval, lane) else mine))
    return True


@inline(.always)
def mark_row(marks: Marks, address: Int, size: Int) -> Bool:
    """Does the same for all lanes of a warp, which access this many consecutive bytes each."""
    for k in range(size // 4):
        var lanes = (ramp[DType.int32](1) + Int32(32 * k)) // Int32(size // 4)
        var mine = lanes | Int32(marks.interval << LANE_BITS)
        var reads = marks.reads.unsafe_offset(address + 128 * k).unsafe_bitcast[Int32]()
        var writes = marks.writes.unsafe_offset(address + 128 * k).unsafe_bitcast[Int32]()
        var was_read = reads.unsafe_load[width=32, alignment=4]()
        var written = writes.unsafe_load[width=32, alignment=4]()
        var others_read = (was_read >> LANE_BITS).eq(Int32(marks.interval)) & was_read.ne(mine)
        var others_wrote = (written >> LANE_BITS).eq(Int32(marks.interval)) & written.ne(mine)
        if marks.stores:
            if others_read.reduce_or():
                return False
            writes.unsafe_store[alignment=4](mine)
        else:
            if others_wrote.reduce_or():
                return False
            reads.unsafe_store[alignment=4](others_read.select(mine | MANY, mine))
    return True


@inline(.always)
def pass_lanes(t: Bytes, e: Bytes, w: Bytes, cta: Bytes) -> Bool:
    """Handles an access to shared memory by lanes that only their meetings order."""
    var flags = half(e, 2)
    var lanes = Int(get[DType.uint32](e, 8))
    var words = pointer(t, FILTER_WORDS).unsafe_offset(8 * Int(get[DType.int64](e, 24)))
    var size = Int(get[DType.int32](pointer(t, FILTER_SIZES), 4 * Int(get[DType.int32](e, 12))))
    var reads = pointer(cta, FILTERED_MARKS)
    var writes = reads.unsafe_offset(16 * look(cta, FILTERED_CHUNKS))
    var stores = flags & TRACED_STORE != 0
    var marks = Marks(reads, writes, look(w, WARP_INTERVAL), stores, look(w, WARP_APART) != 0)
    var first = Int(get[DType.uint64](words))
    if flags & TRACED_SAME != 0:
        var lane = Int(count_trailing_zeros(UInt32(lanes))) if lanes & (lanes - 1) == 0 else MANY
        return mark_words(marks, first, size, lane)
    if flags & TRACED_ROW != 0 and size >= 4:
        return mark_row(marks, first, size)
    for lane in range(32):
        if (lanes >> lane) & 1 == 0:
            continue
        var address = first + lane * size if flags & TRACED_ROW != 0 else Int(get[DType.uint64](words, 8 * lane))
        if not mark_words(marks, address, size, lane):
            return False
    return True


@inline(.always)
def pass_global(e: Bytes, w: Bytes) -> Bool:
    """Handles an access to global memory. If the lanes of a warp have diverged, those of one fragment may store
    there, or all may load.
    """
    if look(w, WARP_APART) == 0:
        return True
    var lanes = Int(get[DType.uint32](e, 8))
    if look(w, WARP_LANES) == 0:
        note(w, WARP_LANES, lanes)
    elif look(w, WARP_LANES) != lanes:
        note(w, WARP_ALSO, 1)
    if half(e, 2) & TRACED_STORE != 0:
        note(w, WARP_STORED, 1)
    return look(w, WARP_ALSO) == 0 or look(w, WARP_STORED) == 0


@inline(.always)
def pass_access(t: Bytes, e: Bytes, end: Int, w: Bytes, cta: Bytes) -> Bool:
    """Handles an access, whose chunks end there. Writes its time into the entry."""
    var epoch = look(w, WARP_LEFT)
    set[DType.int32](e, 36, Int32(look(w, WARP_TIME)))
    var flags = half(e, 2)
    var is_strong = half(e, 0) == EVENT_STRONG
    if flags & (TRACED_GLOBAL | TRACED_SHARED) == 0:
        return True
    if is_strong and (look(t, FILTER_PASSES_STRONG) == 0 or look(cta, FILTERED_RESUMED) != 0 or look(w, WARP_APART) != 0):
        return False
    if flags & TRACED_GLOBAL != 0:
        return pass_global(e, w)
    var warp = look(w, WARP_INDEX)
    for k in range(Int(get[DType.int32](e, 32)), end):
        var found = Int(get[DType.int32](pointer(t, FILTER_CHUNKS), 4 * k))
        var chunk = found & (WHOLE_CHUNK - 1)
        if chunk >= look(cta, FILTERED_CHUNKS):
            return False
        if is_strong:
            if not note_strong(pointer(cta, FILTERED_SHADOW), chunk, epoch, warp):
                return False
        elif flags & TRACED_STORE != 0:
            if not note_write(pointer(cta, FILTERED_SHADOW), chunk, epoch, warp, found >= WHOLE_CHUNK):
                return False
        elif not note_read(pointer(cta, FILTERED_SHADOW), chunk, epoch, warp):
            return False
    return is_strong or pass_lanes(t, e, w, cta)


@inline(.always)
def list_entry(t: Bytes, list: Int, k: Int):
    """Appends an entry to one of the lists of results."""
    var count = look(t, list)
    set[DType.int64](pointer(t, FILTER_LISTS), 8 * (list * look(t, FILTER_COUNT) + count), Int64(k))
    note(t, list, count + 1)


@inline(.always)
def begin_interval(w: Bytes, cta: Bytes) -> Bool:
    """Begins an interval, because the lanes of a warp have met. Returns False if there are no more numbers."""
    var number = look(cta, FILTERED_INTERVALS)
    note(cta, FILTERED_INTERVALS, number + 1)
    note(w, WARP_INTERVAL, number)
    return number < MOST_INTERVALS


@inline(.always)
def pass_event(t: Bytes, k: Int, e: Bytes, w: Bytes, cta: Bytes) -> Bool:
    """Handles other events of a warp: meeting at barrier 0 with all warps, fences, exiting, diverging and reconverging.
    Returns False for any other event.
    """
    var kind = half(e, 0)
    var number = Int(get[DType.int32](e, 36))
    var value = Int(get[DType.int64](e, 24))
    var lanes = Int(get[DType.uint32](e, 8))
    if kind == EVENT_DIVERGED:
        if look(w, WARP_APART) == 0:
            note(w, WARP_HOLDER, lanes)
            note(w, WARP_SPLIT_AT, k)
            note(w, WARP_LANES, 0)
            note(w, WARP_ALSO, 0)
            note(w, WARP_STORED, 0)
        note(w, WARP_APART, look(w, WARP_APART) + number - 1)
        if lanes == look(w, WARP_HOLDER):
            note(w, WARP_TIME, look(w, WARP_TIME) + 1)
            note(w, WARP_HOLDER, Int(get[DType.uint64](pointer(t, FILTER_WORDS), 8 * value)))
        return True
    if kind == EVENT_REJOINED:
        note(w, WARP_APART, look(w, WARP_APART) - (number - 1))
        if lanes & look(w, WARP_HOLDER) != 0:
            note(w, WARP_HOLDER, lanes)
        return True
    if kind == EVENT_COMPLETED:
        var all = look(cta, FILTERED_ARRIVED) == look(cta, FILTERED_WARPS)
        note(cta, FILTERED_ARRIVED, 0)
        return all
    if kind == EVENT_SYNCED:
        return value & ~lanes == 0 and (look(w, WARP_APART) != 0 or begin_interval(w, cta))
    if kind == EVENT_RESUMED or kind == EVENT_SUSPENDED:
        return True
    if look(w, WARP_APART) != 0 or (kind == EVENT_FENCED and look(cta, FILTERED_RESUMED) != 0):
        return False
    if kind == EVENT_FENCED:
        set[DType.int32](e, 36, Int32(look(w, WARP_TIME)))
        note(w, WARP_TIME, look(w, WARP_TIME) + 1)
        return True
    if kind == EVENT_ARRIVED:
        if number != 0 or value != look(w, WARP_ARRIVED) or look(cta, FILTERED_EXITED) != 0:
            return False
        note(w, WARP_ARRIVED, value + 1)
        list_entry(t, FILTER_ARRIVALS, look(w, WARP_TIME) << 32 | Int(get[DType.int32](e, 4)))
        note(w, WARP_TIME, look(w, WARP_TIME) + 1)
        note(cta, FILTERED_ARRIVED, look(cta, FILTERED_ARRIVED) + 1)
        return True
    if kind == EVENT_LEFT:
        if number != 0 or value != look(w, WARP_LEFT):
            return False
        note(w, WARP_LEFT, value + 1)
        return begin_interval(w, cta)
    note(cta, FILTERED_EXITED, look(cta, FILTERED_EXITED) + 1)
    return kind == EVENT_EXITED


@inline(.never)
def filter_all(t: Bytes):
    """Examines the entries of single-barrier CTAs, in order, and records where a CTA ceases to be one. Lists the
    entries that the reader of the trace must examine.
    """
    var count = look(t, FILTER_COUNT)
    for k in range(count):
        var e = pointer(t, FILTER_ENTRIES).unsafe_offset(TRACE_BYTES * k)
        var w = pointer(t, FILTER_WARPS).unsafe_offset(8 * WARP_FIELDS * Int(get[DType.int32](e, 4)))
        var cta = pointer(t, FILTER_CTAS).unsafe_offset(8 * FILTERED_FIELDS * look(w, WARP_CTA))
        var kind = half(e, 0)
        if look(w, WARP_CTA) == 0:
            list_entry(t, FILTER_OTHERS, k)
            continue
        if kind == EVENT_EXITED:
            list_entry(t, FILTER_EXITS, k)
        if look(cta, FILTERED_STOPPED_AT) != NOT_YET:
            continue
        var is_fine: Bool
        if kind == EVENT_ACCESS or kind == EVENT_STRONG:
            var end = Int(get[DType.int32](e, TRACE_BYTES + 32)) if k + 1 < count else look(t, FILTER_CHUNK_COUNT)
            is_fine = pass_access(t, e, end, w, cta)
            if is_fine and half(e, 2) & TRACED_GLOBAL != 0:
                list_entry(t, FILTER_ACCESSES, k)
        else:
            is_fine = pass_event(t, k, e, w, cta)
            if kind == EVENT_COMPLETED and is_fine:
                list_entry(t, FILTER_COMPLETED, k)
        if not is_fine:
            note(cta, FILTERED_STOPPED_AT, k)
