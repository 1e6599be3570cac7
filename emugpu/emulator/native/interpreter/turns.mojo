"""Gives a fragment its turn, and handles the consequences."""

from std.bit import pop_count
from .layout import *
from .lanes import *
from .registers import *
from .trace import *
from .fragments import *
from .draws import *
from .run_blocks import *
from .starts import *


@inline(.always)
def enter_cta(c: Bytes, number: Int):
    """Makes a CTA's memory current in the context."""
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * number)
    for k in range(CTA_ALIVE):
        note(c, k, look(cta, k))


@inline(.always)
def count_block(c: Bytes, block: Int):
    note(pointer(c, COUNTS), block, look(pointer(c, COUNTS), block) + 1)


@inline(.always)
def waits(c: Bytes, number: Int):
    """Appends a fragment to those that wait for the barrier at which it has arrived."""
    var f = fragment(c, number)
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * look(f, FRAGMENT_CTA))
    var b = cta.unsafe_offset(8 * (CTA_BARRIERS + BARRIER_FIELDS * look(f, FRAGMENT_BARRIER)))
    note(f, FRAGMENT_STATE, STATE_WAITS)
    note(f, FRAGMENT_NEXT, -1)
    if look(b, BARRIER_FIRST) < 0:
        note(b, BARRIER_FIRST, number)
    else:
        note(fragment(c, look(b, BARRIER_LAST)), FRAGMENT_NEXT, number)
    note(b, BARRIER_LAST, number)


@inline(.never)
def leave(c: Bytes, number: Int) -> Bool:
    """Lets a whole warp exit, if no fragment waits for its arrival, and the next CTA can start once its own has ended.
    Otherwise Python must do it.
    """
    var f = fragment(c, number)
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * look(f, FRAGMENT_CTA))
    var mask = look(f, FRAGMENT_MASK)
    var left = look(cta, CTA_ALIVE) - Int(pop_count(UInt32(mask)))
    if mask != look(f, FRAGMENT_ALIVE) or look(f, FRAGMENT_JOIN) != -1 or look(cta, CTA_IS_QUIET) == 0:
        return False
    if left == 0 and look(c, STARTS) == 0:
        return False
    for k in range(NAMED_BARRIERS):
        if look(cta, CTA_BARRIERS + BARRIER_FIELDS * k + BARRIER_ARRIVED) > 0:
            return False
    trace(c, EVENT_EXITED, f, UInt32(mask), -1, 0, 0)
    note(cta, CTA_ALIVE, left)
    note(c, CHANGES, look(c, CHANGES) + 1)
    note(f, FRAGMENT_STATE, STATE_LEFT)
    touch(c, number)
    if left == 0:
        start_next(c)
    return True


@inline(.always)
def leaves(c: Bytes, block: Int, o: Bytes) -> Bool:
    """Returns whether a part of a fragment that splits at the branch at a block's end must continue in Python."""
    for side in range(2):
        var next = Int(get[DType.int32](o, 24 + 4 * side))
        var meets = next == Int(get[DType.int32](pointer(c, JOINS_OF_BLOCKS), 4 * block))
        if next >= 0 and not meets and get[DType.int32](pointer(c, ENTRIES), 4 * next) < 0:
            return True
    return False


@inline(.never)
def pass_window(c: Bytes, f: Bytes, block: Int) -> Int:
    """Runs the window after a turn that detects whether a loop only polls. Returns why it ended. REFUSED means that
    Python must do it, and nothing is done.
    """
    var blocks = look(c, WINDOW_BLOCKS)
    var start = Int(get[DType.int32](pointer(c, ENTRIES), 4 * block))
    if blocks == 0 or start < 0:
        return STOP_REFUSED
    var file = f.unsafe_bitcast[Bytes]()[]
    var slots = look(c, ROWS)
    var kept = pointer(c, KEPT_ROWS)
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var list = pointer(c, LOCATION_SLOTS).unsafe_offset(4 * Int(get[DType.int32](where)))
    var count = Int(get[DType.int32](where, 4))
    for k in range(count):
        var slot = Int(get[DType.int32](list, 4 * k)) & 0xFFFF
        copy_row(kept.unsafe_offset(ROW * k), file.unsafe_offset(ROW * slot))
        set[DType.uint8](kept, ROW * slots + k, get[DType.uint8](file, ROW * slots + slot))
    var changed = changes_of(file, slots)
    for k in range(slots // 64):
        note(kept.unsafe_offset((ROW + 1) * slots), k, look(changed, k))
    var status = run_blocks(c, f, start, blocks, blocks, False)
    if status == STOP_REFUSED:
        for k in range(count):
            var slot = Int(get[DType.int32](list, 4 * k)) & 0xFFFF
            copy_row(file.unsafe_offset(ROW * slot), kept.unsafe_offset(ROW * k))
            set[DType.uint8](file, ROW * slots + slot, get[DType.uint8](kept, ROW * slots + k))
        for k in range(slots // 64):
            note(changed, k, look(kept.unsafe_offset((ROW + 1) * slots), k))
        return STOP_REFUSED
    note(f, FRAGMENT_STREAK, look(f, FRAGMENT_STREAK) + blocks)
    return status


@inline(.always)
def note_run(c: Bytes, f: Bytes):
    """Records the result of a run of blocks, and the place of its fragment."""
    var out = pointer(c, OUT)
    note(c, CHANGES, look(c, CHANGES) + look(out, RESULT_CHANGES))
    note(f, FRAGMENT_BLOCK, look(out, RESULT_BLOCK))
    note(f, FRAGMENT_LOCATION, look(out, RESULT_LOCATION))


@inline(.always)
def goes_on(c: Bytes, f: Bytes, status: Int) -> Bool:
    """Returns whether a fragment neither waits, splits, joins nor exits after a run of blocks."""
    var following = look(pointer(c, OUT), RESULT_FOLLOWING)
    return status == STOP_STOPPED and following >= 0 and following != look(f, FRAGMENT_JOIN_BLOCK)


@inline(.always)
def turn(c: Bytes, number: Int) -> Int:
    """Runs one turn of a fragment, or the rest of it. STOPPED means that it has ended and its consequences are
    handled.
    """
    var f = fragment(c, number)
    var block = look(f, FRAGMENT_BLOCK)
    var start = look(f, FRAGMENT_START)
    var ran = look(f, FRAGMENT_RAN)
    var out = pointer(c, OUT)
    touch_known(c, number)
    if start < 0:
        if look(f, FRAGMENT_STREAK) == 0:
            trace(c, EVENT_RESUMED, f, UInt32(look(f, FRAGMENT_MASK)), -1, 0, 0)
        if block < 0:
            return STOP_STOPPED if leave(c, number) else STOP_EXITS
        if block == look(f, FRAGMENT_JOIN_BLOCK):
            return meet(c, number)
        draw_budget(c)
        start = Int(get[DType.int32](pointer(c, ENTRIES), 4 * block))
        if start < 0:
            note(out, RESULT_FOLLOWING, 0)
            return STOP_LEFT
    note(f, FRAGMENT_START, -1)
    note(f, FRAGMENT_RAN, 0)
    enter_cta(c, look(f, FRAGMENT_CTA))
    var status = run_blocks(c, f, start, look(c, TURN_BLOCKS) - ran, 0, False)
    ran += look(out, RESULT_RAN)
    note_run(c, f)
    if goes_on(c, f, status):
        count_block(c, look(out, RESULT_BLOCK))
        note(f, FRAGMENT_BLOCK, look(out, RESULT_FOLLOWING))
        if ran + 1 < look(c, TURN_BLOCKS):
            note(out, RESULT_FOLLOWING, 0)
            note(f, FRAGMENT_RAN, ran + 1)
            return STOP_LEFT
        note(f, FRAGMENT_STREAK, look(f, FRAGMENT_STREAK) + look(c, TURN_BLOCKS))
        if look(f, FRAGMENT_STREAK) < look(c, FIRST_LOOK):
            push(c, number)
            return STOP_STOPPED
        status = pass_window(c, f, look(out, RESULT_FOLLOWING))
        if status == STOP_REFUSED:
            return STOP_HAD_TURN
        note_run(c, f)
        if goes_on(c, f, status):
            note(f, FRAGMENT_BLOCK, look(out, RESULT_FOLLOWING))
            if look(f, FRAGMENT_STREAK) >= look(c, SLICE):
                return STOP_STANDS_BY
            push(c, number)
            return STOP_STOPPED
    block = look(out, RESULT_BLOCK)
    if status == STOP_WAITS:
        var o = pointer(c, OPERATIONS).unsafe_offset(32 * look(out, RESULT_AT))
        trace(c, EVENT_SUSPENDED, f, UInt32(look(f, FRAGMENT_MASK)), Int(get[DType.int32](o, 24)), 0, 0)
        note(f, FRAGMENT_STREAK, 0)
        waits(c, number)
        return STOP_STOPPED
    if status == STOP_DIVERGES:
        var at = look(out, RESULT_AT)
        if look(f, FRAGMENT_PENDING) > 0 or leaves(c, block, pointer(c, OPERATIONS).unsafe_offset(32 * at)):
            note(f, FRAGMENT_RAN, ran)
            return STOP_SPLITS
        if split(c, number, block, pointer(c, OPERATIONS).unsafe_offset(32 * at)):
            count_block(c, block)
            return STOP_STOPPED
        note(f, FRAGMENT_START, at)
        note(f, FRAGMENT_RAN, ran)
        return STOP_CANNOT_SPLIT
    if status != STOP_STOPPED:
        note(f, FRAGMENT_RAN, ran)
        return status
    var following = look(out, RESULT_FOLLOWING)
    count_block(c, block)
    if following < 0:
        return STOP_STOPPED if leave(c, number) else STOP_EXITS
    note(f, FRAGMENT_BLOCK, following)
    return meet(c, number)


@inline(.always)
def meet(c: Bytes, number: Int) -> Int:
    """Handles a fragment that reaches its join. ARRIVES means that the join belongs to Python, or that there is no
    room.
    """
    if look(fragment(c, number), FRAGMENT_JOIN) < 0 or look(c, FREE_COUNT) == 0:
        return STOP_ARRIVES
    arrive(c, number)
    return STOP_STOPPED


@inline(.always)
def touch_known(c: Bytes, number: Int):
    if look(fragment(c, number), FRAGMENT_HAS_OBJECT) != 0:
        touch(c, number)


@inline(.never)
def touch_list(c: Bytes, first: Int):
    var next = first
    while next >= 0:
        touch(c, next)
        next = look(fragment(c, next), FRAGMENT_NEXT)
