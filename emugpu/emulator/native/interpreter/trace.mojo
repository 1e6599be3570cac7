"""Writes the trace of native code, if a sink is attached (`trace.py` reads it)."""

from std.bit import count_trailing_zeros
from .layout import *
from .lanes import *
from .memory import *


@inline(.always)
def trace_room(c: Bytes) -> Bool:
    """Returns whether there is room for one more entry of any kind."""
    var words = look(c, TRACE_WORDS_ROOM) - look(c, TRACE_WORDS_USED)
    if look(c, TRACE) == 0:
        return True
    return look(c, TRACED) < look(c, TRACE_ROOM) and words >= 320 and look(c, TRACE_CHUNKS_ROOM) - look(c, TRACE_CHUNKS_USED) >= 128


@inline(.always)
def trace_is_half_full(c: Bytes) -> Bool:
    if look(c, TRACE) == 0:
        return False
    return (
        2 * look(c, TRACED) > look(c, TRACE_ROOM)
        or 2 * look(c, TRACE_WORDS_USED) > look(c, TRACE_WORDS_ROOM)
        or 2 * look(c, TRACE_CHUNKS_USED) > look(c, TRACE_CHUNKS_ROOM)
    )


@inline(.always)
def new_entry(c: Bytes, kind: Int, f: Bytes, mask: UInt32, site: Int, value: Int) -> Bytes:
    """Appends an entry. There is room, which was checked before the turn, or the instruction, began."""
    var number = look(c, TRACED)
    note(c, TRACED, number + 1)
    var e = pointer(c, TRACE).unsafe_offset(TRACE_BYTES * number)
    set[DType.uint16](e, 0, UInt16(kind))
    set[DType.uint16](e, 2, 0)
    set[DType.int32](e, 4, Int32(look(f, FRAGMENT_WARP)))
    set[DType.uint32](e, 8, mask)
    set[DType.int32](e, 12, Int32(site))
    set[DType.int64](e, 16, Int64(look(f, FRAGMENT_STAMP)))
    set[DType.int64](e, 24, Int64(value))
    set[DType.int32](e, 32, Int32(look(c, TRACE_CHUNKS_USED)))
    set[DType.int32](e, 36, 0)
    set[DType.int64](e, 40, 0)
    return e


@inline(.always)
def trace(c: Bytes, kind: Int, f: Bytes, mask: UInt32, site: Int, value: Int, number: Int):
    """Traces an event of a fragment, if a sink is attached."""
    if look(c, TRACE) != 0:
        var e = new_entry(c, kind, f, mask, site, value)
        set[DType.int32](e, 36, Int32(number))


@inline(.always)
def trace_word(c: Bytes, word: UInt64):
    var used = look(c, TRACE_WORDS_USED)
    set[DType.uint64](pointer(c, TRACE_WORDS), 8 * used, word)
    note(c, TRACE_WORDS_USED, used + 1)


@inline(.always)
def trace_words(c: Bytes, words: SIMD[DType.uint64, 32]):
    var used = look(c, TRACE_WORDS_USED)
    pointer(c, TRACE_WORDS).unsafe_offset(8 * used).unsafe_bitcast[UInt64]().unsafe_store[alignment=8](words)
    note(c, TRACE_WORDS_USED, used + 32)


@inline(.always)
def trace_chunk(c: Bytes, chunk: Int):
    var used = look(c, TRACE_CHUNKS_USED)
    set[DType.int32](pointer(c, TRACE_CHUNKS), 4 * used, Int32(chunk))
    note(c, TRACE_CHUNKS_USED, used + 1)


@inline(.always)
def trace_row(c: Bytes, first: Int, end: Int):
    """Traces the 16-byte chunks of a part of memory, and which of them it covers."""
    for chunk in range(first >> 4, ((end - 1) >> 4) + 1):
        var is_whole = 16 * chunk >= first and 16 * chunk + 16 <= end
        trace_chunk(c, chunk + (WHOLE_CHUNK if is_whole else 0))


@inline(.always)
def trace_chunks(c: Bytes, addresses: SIMD[DType.uint64, 32], mask: UInt32, size: Int, in_row: Bool):
    """Does the same for an aligned access of this many bytes per lane. `in_row` means all lanes, consecutively."""
    if in_row:
        trace_row(c, Int(addresses[0]), Int(addresses[0]) + 32 * size)
        return
    var last = -1
    var covered = 0
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 == 0:
            continue
        var address = Int(addresses[lane])
        if size >= 16:
            trace_row(c, address, address + size)
            continue
        if address >> 4 != last:
            last = address >> 4
            covered = 0
            trace_chunk(c, last)
        if address & 15 == covered:
            covered += size
            if covered == 16:
                set[DType.int32](pointer(c, TRACE_CHUNKS), 4 * look(c, TRACE_CHUNKS_USED) - 4, Int32(last + WHOLE_CHUNK))


@inline(.always)
def space_named(op: Int) -> Int:
    """Returns the state space that an access names, which may be generic."""
    if op >= FIRST_ATOMIC:
        var number = (op - FIRST_ATOMIC) // 2
        return number if number < SPACE_PARAM else SPACE_GENERIC
    return (op - FIRST_ACCESS) % (FIRST_STORE - FIRST_ACCESS) // 4


@inline(.always)
def space_of_lanes(addresses: SIMD[DType.uint64, 32], mask: UInt32) -> Int:
    """Returns the state space of generic addresses, or -1 if there are several."""
    var found = space_of(addresses[Int(count_trailing_zeros(mask))])
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 != 0 and space_of(addresses[lane]) != found:
            return -1
    return found


@inline(.never)
def trace_access(c: Bytes, f: Bytes, o: Bytes, a: Bytes, agrees: Bool, b: Bytes, alike: Bool, mask: UInt32) -> Bool:
    """Traces an access that is about to be made. Returns False if there is no room, or if Python must trace it.

    An entry's words are the address, or the lanes' addresses, and of each item that is stored the value, or the lanes'.
    An atomic adds its lanes' values later.
    """
    var flags = half(o, 4)
    var op = half(o, 0)
    var space = space_named(op)
    var is_atomic = op >= FIRST_ATOMIC
    if space == SPACE_GENERIC and flags & FIRST_ITEM == 0 and not is_atomic:
        space = space_of(address_of(a, Int(count_trailing_zeros(mask)), o, flags & WIDE_ADDRESS != 0))
    if space == SPACE_LOCAL and look(c, TRACES_LOCAL) == 0:
        return True
    var e: Bytes
    if flags & FIRST_ITEM != 0 or is_atomic:
        if not trace_room(c):
            return False
        var size = 4 << ((op - FIRST_ATOMIC) & 1) if is_atomic else half(o, 12)
        var about = (TRACED_WIDE if flags & WIDE_ADDRESS != 0 else 0) | (TRACED_STORE if op >= FIRST_STORE else 0)
        var addresses: SIMD[DType.uint64, 32]
        var lanes = mask
        var in_row = False
        if agrees:
            addresses = SIMD[DType.uint64, 32](address_of(a, 0, o, flags & WIDE_ADDRESS != 0))
            lanes = mask & (~mask + 1)
        elif flags & WIDE_ADDRESS != 0:
            addresses = load[DType.uint64](a) + get[DType.uint64](o, 16)
        else:
            addresses = (load[DType.uint32](a) + get[DType.uint32](o, 16)).cast[DType.uint64]()
        if space == SPACE_GENERIC:
            space = space_of_lanes(addresses, lanes)
            if space < 0 or space == SPACE_PARAM or space == SPACE_CONST:
                return False
            if space == SPACE_LOCAL and look(c, TRACES_LOCAL) == 0:
                return True
            if space != SPACE_GLOBAL:
                addresses &= (1 << WINDOW_SHIFT) - 1
        var shared = space == SPACE_SHARED
        var is_global = space == SPACE_GLOBAL
        about |= (
            TRACED_SHARED if shared else TRACED_GLOBAL if is_global else TRACED_LOCAL if space == SPACE_LOCAL else 0
        )
        if shared:
            addresses -= field(c, WINDOW)
        var kind = EVENT_STRONG if flags & STRONG != 0 else EVENT_ACCESS
        e = new_entry(c, kind, f, mask, Int(get[DType.int32](o, 24)), look(c, TRACE_WORDS_USED))
        if agrees:
            about |= TRACED_SAME
            trace_word(c, addresses[0])
        else:
            in_row = (
                mask == FULL
                and addresses.eq(SIMD[DType.uint64, 32](addresses[0]) + ramp[DType.uint64](size)).reduce_and()
            )
            if in_row:
                about |= TRACED_ROW
                trace_word(c, addresses[0])
            else:
                trace_words(c, addresses)
        set[DType.uint16](e, 2, UInt16(about))
        if shared:
            trace_chunks(c, addresses, lanes, size, in_row)
        elif is_global:
            var k = find_allocation(c, addresses[Int(count_trailing_zeros(lanes))], UInt64(size))
            if k >= 0:
                var base = get[DType.uint64](pointer(c, ALLOCATIONS), 32 * k)
                var end = get[DType.uint64](pointer(c, ALLOCATIONS), 32 * k + 8) - UInt64(size)
                addresses -= base
                if end < (1 << 34) and ((lane_bits() & Lanes(lanes)).eq(0) | addresses.le(end)).reduce_and():
                    set[DType.uint64](e, 40, base)
                    trace_chunks(c, addresses, lanes, size, in_row)
    else:
        e = pointer(c, TRACE).unsafe_offset(TRACE_BYTES * (look(c, TRACED) - 1))
    if is_atomic:
        note(c, TRACE_WORDS_USED, look(c, TRACE_WORDS_USED) + 32)
    elif op >= FIRST_STORE:
        var item = Int(get[DType.int32](e, 36))
        set[DType.int32](e, 36, Int32(item + 1))
        var wide = flags & WIDE != 0
        var about = half(e, 2) | (TRACED_VALUES if wide else 0)
        if alike:
            about |= 256 << item
            trace_word(c, get[DType.uint64](b) if wide else get[DType.uint32](b).cast[DType.uint64]())
        elif wide:
            trace_words(c, load[DType.uint64](b))
        else:
            trace_words(c, load[DType.uint32](b).cast[DType.uint64]())
        set[DType.uint16](e, 2, UInt16(about))
    return True


@inline(.always)
def trace_back(c: Bytes, traced: Int, words: Int, chunks: Int):
    """Removes the entries after the first ones."""
    note(c, TRACED, traced)
    note(c, TRACE_WORDS_USED, words)
    note(c, TRACE_CHUNKS_USED, chunks)
