"""bar.sync."""

from std.bit import pop_count
from .layout import *
from .lanes import *
from .fragments import *
from .trace import *


@inline(.never)
def pass_barrier(c: Bytes, f: Bytes, o: Bytes, file: Bytes, marks: Bytes) -> Int:
    """Returns 1 if a fragment passes bar.sync, 0 if it waits, and -1, with nothing done, if Python must handle it."""
    var flags = half(o, 4)
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * look(f, FRAGMENT_CTA))
    var mask = look(f, FRAGMENT_MASK)
    if flags & ALIGNED != 0 and mask != look(f, FRAGMENT_ALIVE):
        return -1
    if flags & COUNTED != 0 and mask != 0xFFFFFFFF:
        return -1
    if get[DType.uint8](marks, half(o, 8)) != UNIFORM or get[DType.uint8](marks, half(o, 10)) != UNIFORM:
        return -1
    var number = Int(get[DType.uint32](file, ROW * half(o, 8)))
    if number >= NAMED_BARRIERS:
        return -1
    var b = cta.unsafe_offset(8 * (CTA_BARRIERS + BARRIER_FIELDS * number))
    var site = Int(get[DType.int32](o, 24))
    var generation = look(b, BARRIER_GENERATION)
    if not trace_room(c):
        return -1
    if look(f, FRAGMENT_BARRIER) == number:
        if look(f, FRAGMENT_GENERATION) == generation:
            return 0
        trace(c, EVENT_LEFT, f, UInt32(mask), site, look(f, FRAGMENT_GENERATION), number)
        note(f, FRAGMENT_BARRIER, -1)
        return 1
    if look(f, FRAGMENT_BARRIER) != -1:
        return -1
    var everybody = Int(flags & COUNTED == 0)
    var needed = look(cta, CTA_ALIVE)
    if everybody == 0:
        needed = Int(get[DType.uint32](file, ROW * half(o, 10)))
        if needed % 32 != 0 or needed == 0 or needed > look(cta, CTA_THREADS):
            return -1
    var before = look(b, BARRIER_ARRIVED)
    var arrived = before + Int(pop_count(UInt32(mask)))
    var same = needed == look(b, BARRIER_NEEDED) and everybody == look(b, BARRIER_EVERYBODY)
    if arrived > needed or (before != 0 and not same) or look(c, QUEUE_ROOM) - look(c, TAIL) < 2048:
        return -1
    trace(c, EVENT_ARRIVED, f, UInt32(mask), site, generation, number)
    note(b, BARRIER_NEEDED, needed)
    note(b, BARRIER_EVERYBODY, everybody)
    note(c, CHANGES, look(c, CHANGES) + 1)
    if arrived < needed:
        note(b, BARRIER_ARRIVED, arrived)
        note(f, FRAGMENT_BARRIER, number)
        note(f, FRAGMENT_GENERATION, generation)
        return 0
    trace(c, EVENT_COMPLETED, f, UInt32(mask), site, generation, number)
    trace(c, EVENT_LEFT, f, UInt32(mask), site, generation, number)
    note(b, BARRIER_ARRIVED, 0)
    note(b, BARRIER_GENERATION, generation + 1)
    var others = look(b, BARRIER_OTHERS)
    if others != 0:
        note(b, BARRIER_OTHERS, 0)
        if look(c, IS_RANDOM) == 0:
            push(c, -1 - (look(f, FRAGMENT_CTA) * NAMED_BARRIERS + number))
        else:
            for k in range(others):
                push(c, -1 - look(b, BARRIER_FIRST_OTHER) - k)
    var next = look(b, BARRIER_FIRST)
    while next >= 0:
        var waiter = fragment(c, next)
        note(waiter, FRAGMENT_STATE, STATE_READY)
        push(c, next)
        next = look(waiter, FRAGMENT_NEXT)
    note(b, BARRIER_FIRST, -1)
    return 1
