"""Fragments begin and end where a warp diverges and reconverges. This file also has the queue of ready fragments."""

from std.bit import count_trailing_zeros
from .layout import *
from .lanes import *
from .registers import *
from .trace import *


@inline(.always)
def push(c: Bytes, number: Int):
    """Appends a fragment to the queue of ready ones."""
    var tail = look(c, TAIL)
    set[DType.int32](pointer(c, QUEUE), 4 * tail, Int32(number))
    note(c, TAIL, tail + 1)


@inline(.always)
def new_stamp(c: Bytes, f: Bytes):
    var stamp = look(c, STAMP) + 1
    note(c, STAMP, stamp)
    note(f, FRAGMENT_STAMP, stamp)


@inline(.always)
def touch(c: Bytes, number: Int):
    """Records that Python must update a fragment."""
    var f = fragment(c, number)
    if look(f, FRAGMENT_IS_TOUCHED) == 0:
        note(f, FRAGMENT_IS_TOUCHED, 1)
        var count = look(c, TOUCHED_COUNT)
        set[DType.int32](pointer(c, TOUCHED), 4 * count, Int32(number))
        note(c, TOUCHED_COUNT, count + 1)


@inline(.always)
def copy_lanes(c: Bytes, to: Bytes, source: Bytes, packed: Int, lane: Int):
    """Copies a row of another fragment, or of one lane of it."""
    var slots = look(c, ROWS)
    var slot = packed & 0xFFFF
    var row = to.unsafe_offset(ROW * slot)
    var mark = mark_of(source, slots, slot)
    if mark == POISON:
        var lanes = missing_lanes(source, slots, slot)
        if lane >= 0:
            lanes = UInt32(0) - ((lanes >> UInt32(lane)) & 1)
            mark = POISON if lanes != 0 else VARIED
        set[DType.uint32](to, undefined_at(slots, slot), lanes)
        set[DType.uint32](to, origin_at(slots, slot), get[DType.uint32](source, origin_at(slots, slot)))
    if lane < 0 or mark == UNIFORM:
        copy_row(row, source.unsafe_offset(ROW * slot))
    elif packed >> 16 == 1:
        put(row, SIMD[DType.uint64, 32](get[DType.uint64](source, ROW * slot + 8 * lane)))
    else:
        put(row, SIMD[DType.uint32, 32](get[DType.uint32](source, ROW * slot + 4 * lane)))
    if lane >= 0 and mark == VARIED:
        mark = UNIFORM
    set[DType.uint8](to, ROW * slots + slot, UInt8(mark))


@inline(.always)
def born(c: Bytes, f: Bytes, mask: Int, block: Int, join: Int, join_block: Int) -> Int:
    """Makes a fragment with those rows of another one that are live at a block. If it has one lane, all lanes equal
    it.
    """
    var left = look(c, FREE_COUNT) - 1
    note(c, FREE_COUNT, left)
    var number = Int(get[DType.int32](pointer(c, FREE), 4 * left))
    var new = fragment(c, number)
    new_stamp(c, new)
    note(new, FRAGMENT_MASK, mask)
    note(new, FRAGMENT_ALIVE, look(f, FRAGMENT_ALIVE))
    note(new, FRAGMENT_CTA, look(f, FRAGMENT_CTA))
    note(new, FRAGMENT_WARP, look(f, FRAGMENT_WARP))
    note(new, FRAGMENT_ROOT, look(f, FRAGMENT_ROOT))
    note(new, FRAGMENT_BLOCK, block)
    note(new, FRAGMENT_START, -1)
    note(new, FRAGMENT_RAN, 0)
    note(new, FRAGMENT_LOCATION, max(block, 0))
    note(new, FRAGMENT_JOIN, join)
    note(new, FRAGMENT_JOIN_BLOCK, join_block)
    note(new, FRAGMENT_STREAK, 0)
    note(new, FRAGMENT_STATE, STATE_READY)
    note(new, FRAGMENT_BARRIER, -1)
    note(new, FRAGMENT_IS_COMPLETE, 1)
    note(new, FRAGMENT_HAS_OBJECT, 0)
    note(new, FRAGMENT_IS_TOUCHED, 0)
    note(new, FRAGMENT_ORIGIN, look(f, FRAGMENT_ORIGIN))
    note(new, FRAGMENT_PENDING, look(f, FRAGMENT_PENDING))
    note(new, FRAGMENT_LOCAL, look(f, FRAGMENT_LOCAL))
    note(c, BORN, look(c, BORN) + 1)
    note(new, FRAGMENT_BORN, look(c, BORN))
    var lane = Int(count_trailing_zeros(UInt32(mask))) if mask & (mask - 1) == 0 else -1
    var file = new.unsafe_bitcast[Bytes]()[]
    var source = f.unsafe_bitcast[Bytes]()[]
    for k in range(look(c, FIXED_COUNT)):
        copy_lanes(c, file, source, Int(get[DType.int32](pointer(c, FIXED_ROWS), 4 * k)), lane)
    var slots = look(c, ROWS)
    var changed = changes_of(file, slots)
    for k in range(slots // 64):
        note(changed, k, 0)
    if block >= 0:
        var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
        var first = Int(get[DType.int32](where))
        for k in range(first, first + Int(get[DType.int32](where, 4))):
            var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k))
            copy_lanes(c, file, source, packed, lane)
            note_change(changed, packed & 0xFFFF)
    return number


@inline(.always)
def bury(c: Bytes, number: Int):
    """Ends a fragment that has split, or merged with others."""
    var f = fragment(c, number)
    note(f, FRAGMENT_STATE, STATE_GONE)
    if look(f, FRAGMENT_HAS_OBJECT) != 0:
        touch(c, number)
    else:
        give_back(c, number)


@inline(.always)
def give_back(c: Bytes, number: Int):
    """Makes the number of a fragment free."""
    var left = look(c, FREE_COUNT)
    set[DType.int32](pointer(c, FREE), 4 * left, Int32(number))
    note(c, FREE_COUNT, left + 1)


@inline(.never)
def split(c: Bytes, number: Int, block: Int, o: Bytes) -> Bool:
    """Splits a fragment at the branch that ends a block. Returns False if Python must do it."""
    var f = fragment(c, number)
    var room = look(c, FREE_COUNT) >= 4 and look(c, QUEUE_ROOM) - look(c, TAIL) >= 2048
    if look(c, FREE_JOIN) < 0 and look(c, JOIN_COUNT) == look(c, JOIN_ROOM):
        room = False
    if look(f, FRAGMENT_IS_COMPLETE) == 0 or not room:
        return False
    var mask = look(f, FRAGMENT_MASK)
    var file = f.unsafe_bitcast[Bytes]()[]
    var yes = Int(mask_of(file.unsafe_offset(ROW * half(o, 8)))) & mask
    var join = look(f, FRAGMENT_JOIN)
    var join_block = look(f, FRAGMENT_JOIN_BLOCK)
    var meeting = Int(get[DType.int32](pointer(c, JOINS_OF_BLOCKS), 4 * block))
    if meeting >= 0:
        var new = new_join(c)
        var j = pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * new)
        note(j, JOINPOINT_BLOCK, meeting)
        note(j, JOINPOINT_MASK, mask)
        note(j, JOINPOINT_ARRIVED, 0)
        note(j, JOINPOINT_FIRST, -1)
        note(j, JOINPOINT_COUNT, 0)
        note(j, JOINPOINT_IS_GIVEN, 0)
        note(j, JOINPOINT_PARENT, join)
        note(j, JOINPOINT_PARENT_BLOCK, join_block)
        join = new
        join_block = meeting
    if look(c, TRACE) != 0:
        trace(c, EVENT_DIVERGED, f, UInt32(mask), -1, look(c, TRACE_WORDS_USED), 2)
        trace_word(c, UInt64(yes))
        trace_word(c, UInt64(mask & ~yes))
    push(c, born(c, f, yes, Int(get[DType.int32](o, 24)), join, join_block))
    push(c, born(c, f, mask & ~yes, Int(get[DType.int32](o, 28)), join, join_block))
    bury(c, number)
    return True


@inline(.always)
def new_join(c: Bytes) -> Int:
    """Returns the number of an unused join."""
    var new = look(c, FREE_JOIN)
    if new >= 0:
        note(c, FREE_JOIN, look(pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * new), JOINPOINT_PARENT))
        return new
    new = look(c, JOIN_COUNT)
    note(c, JOIN_COUNT, new + 1)
    return new


@inline(.never)
def arrive(c: Bytes, number: Int):
    """Makes a fragment wait for its siblings. The last one that arrives merges all of them."""
    var f = fragment(c, number)
    var join = look(f, FRAGMENT_JOIN)
    var j = pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * join)
    note(f, FRAGMENT_BLOCK, look(j, JOINPOINT_BLOCK))
    note(f, FRAGMENT_LOCATION, look(j, JOINPOINT_BLOCK))
    note(f, FRAGMENT_STREAK, 0)
    note(f, FRAGMENT_STATE, STATE_ARRIVED)
    note(f, FRAGMENT_NEXT, -1)
    if look(j, JOINPOINT_FIRST) < 0:
        note(j, JOINPOINT_FIRST, number)
    else:
        note(fragment(c, look(j, JOINPOINT_LAST)), FRAGMENT_NEXT, number)
    note(j, JOINPOINT_LAST, number)
    note(j, JOINPOINT_COUNT, look(j, JOINPOINT_COUNT) + 1)
    note(j, JOINPOINT_ARRIVED, look(j, JOINPOINT_ARRIVED) | look(f, FRAGMENT_MASK))
    if look(j, JOINPOINT_ARRIVED) != look(j, JOINPOINT_MASK):
        return
    var parent = look(j, JOINPOINT_PARENT)
    var parent_block = look(j, JOINPOINT_PARENT_BLOCK)
    var first = look(j, JOINPOINT_FIRST)
    note(j, JOINPOINT_FIRST, -1)
    if look(j, JOINPOINT_IS_GIVEN) == 0:
        note(j, JOINPOINT_PARENT, look(c, FREE_JOIN))
        note(c, FREE_JOIN, join)
    if look(j, JOINPOINT_COUNT) == 1:
        note(f, FRAGMENT_JOIN, parent)
        note(f, FRAGMENT_JOIN_BLOCK, parent_block)
        note(f, FRAGMENT_STATE, STATE_READY)
        push(c, number)
        return
    var mask = look(j, JOINPOINT_MASK)
    if look(c, TRACE) != 0:
        trace(c, EVENT_REJOINED, f, UInt32(mask), -1, look(c, TRACE_WORDS_USED), look(j, JOINPOINT_COUNT))
        var part = first
        while part >= 0:
            trace_word(c, UInt64(look(fragment(c, part), FRAGMENT_MASK)))
            part = look(fragment(c, part), FRAGMENT_NEXT)
    var merged = born(c, fragment(c, first), mask, look(j, JOINPOINT_BLOCK), parent, parent_block)
    var next = look(fragment(c, first), FRAGMENT_NEXT)
    bury(c, first)
    while next >= 0:
        join_rows(c, fragment(c, merged), fragment(c, next), look(j, JOINPOINT_BLOCK))
        var after = look(fragment(c, next), FRAGMENT_NEXT)
        bury(c, next)
        next = after
    push(c, merged)


@inline(.always)
def join_rows(c: Bytes, to: Bytes, other: Bytes, block: Int):
    """Takes over the lanes of another fragment in the fixed rows, where each lane has its own value, and in those
    that are live at a block.
    """
    for k in range(look(c, FIXED_COUNT)):
        join_row(c, to, other, Int(get[DType.int32](pointer(c, FIXED_ROWS), 4 * k)))
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(first, first + Int(get[DType.int32](where, 4))):
        join_row(c, to, other, Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k)))


@inline(.always)
def join_row(c: Bytes, to: Bytes, other: Bytes, packed: Int):
    """Takes over the lanes of another fragment in one row. `packed` holds its number and kind."""
    var slots = look(c, ROWS)
    var file = to.unsafe_bitcast[Bytes]()[]
    var source = other.unsafe_bitcast[Bytes]()[]
    var lanes = (lane_bits() & Lanes(UInt32(look(other, FRAGMENT_MASK)))).ne(0)
    var slot = packed & 0xFFFF
    var row = file.unsafe_offset(ROW * slot)
    var from_row = source.unsafe_offset(ROW * slot)
    var new = mark_of(source, slots, slot)
    var mark = mark_of(file, slots, slot) & new
    if mark == POISON:
        var undefined = missing_lanes(source, slots, slot)
        var origin = get[DType.uint32](source, origin_at(slots, slot))
        if mark_of(file, slots, slot) == POISON:
            origin = get[DType.uint32](file, origin_at(slots, slot))
        mark = join_undefined(file, slots, slot, new, UInt32(look(other, FRAGMENT_MASK)), undefined, origin)
    if packed >> 16 == 1:
        var mine = load[DType.uint64](row)
        var its = load[DType.uint64](from_row)
        if mine[0] != its[0]:
            mark &= VARIED
        put(row, lanes.select(its, mine))
    else:
        var mine = load[DType.uint32](row)
        var its = load[DType.uint32](from_row)
        if mine[0] != its[0]:
            mark &= VARIED
        put(row, lanes.select(its, mine))
    set[DType.uint8](file, ROW * slots + slot, UInt8(mark))
