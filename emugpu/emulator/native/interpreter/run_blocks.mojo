"""Runs a fragment from block to block until it has to stop, and rolls back what is out of the ordinary.

@HANDLERS@ and @ACCESSES@ stand for the operations of `operations.py`.
"""

from std.bit import bit_reverse, count_leading_zeros, count_trailing_zeros, pop_count
from .layout import *
from .lanes import *
from .arithmetic import *
from .exchange import *
from .memory import *
from .matrices import *
from .registers import *
from .trace import *
from .barriers import *


@inline(.never)
def save_undefined(kept: Bytes, k: Int, file: Bytes, slots: Int, slot: Int, saves: Bool):
    """Saves the undefined lanes of a row, or restores them."""
    if saves:
        set[DType.uint32](kept, 8 * k, get[DType.uint32](file, undefined_at(slots, slot)))
        set[DType.uint32](kept, 8 * k + 4, get[DType.uint32](file, origin_at(slots, slot)))
    else:
        set[DType.uint32](file, undefined_at(slots, slot), get[DType.uint32](kept, 8 * k))
        set[DType.uint32](file, origin_at(slots, slot), get[DType.uint32](kept, 8 * k + 4))


@inline(.never)
def run_blocks(c: Bytes, f: Bytes, start: Int, budget: Int, window: Int, alone: Bool) -> Int:
    """Runs a fragment from an operation on, for so many blocks at most; returns why it has stopped.

    window: 0, or a number of blocks in which it is watched whether a loop only polls: if it may, or if anything speaks
    against it, REFUSED, and none of them has run. alone: what concerns other fragments is out of the ordinary, and a
    window is not to end early.
    """
    var file = f.unsafe_bitcast[Bytes]()[]
    var slots = look(c, ROWS)
    var mask = UInt32(look(f, FRAGMENT_MASK))
    var join = look(f, FRAGMENT_JOIN_BLOCK)
    var marks = file.unsafe_offset(ROW * slots)
    var changed = changes_of(file, slots)
    var operations = pointer(c, OPERATIONS)
    var scratch = pointer(c, SCRATCH)
    var saved = pointer(c, SAVED_ROWS)
    var begin = operations
    var pc = start
    var block = look(f, FRAGMENT_BLOCK)
    var ran = 0
    var changes = 0
    var changes_before = 0
    var status = 0
    var following = 0
    var location = 0
    var kept_block = -1
    var kept_changes = 0
    var loads = 0
    var traces = look(c, TRACE) != 0
    var first_traced = look(c, TRACED)
    var first_words = look(c, TRACE_WORDS_USED)
    var first_chunks = look(c, TRACE_CHUNKS_USED)
    var traced = first_traced
    var words = first_words
    var chunks = first_chunks
    set[DType.uint64](c, 8 * WATCHES, UInt64(window))
    set[DType.uint64](c, 8 * LOGGED, 0)
    while True:
        var o = operations.unsafe_offset(32 * pc)
        pc += 1
        var op = half(o, 0)
        if op >= CONTROL_BEGIN:
            if op == CONTROL_BEGIN:
                begin = o
                block = Int(get[DType.int32](o, 24))
                changes_before = changes
                traced = look(c, TRACED)
                words = look(c, TRACE_WORDS_USED)
                chunks = look(c, TRACE_CHUNKS_USED)
                if window == 0:
                    set[DType.uint64](c, 8 * LOGGED, 0)
                elif (ran + 1) & ran == 0:
                    kept_block = block
                    kept_changes = changes
                    loads = 0
                    keep_rows(c, file, block)
                var list = pointer(c, SAVED_SLOTS).unsafe_offset(4 * Int(get[DType.int64](o, 16)))
                for k in range(half(o, 6)):
                    var slot = Int(get[DType.int32](list, 4 * k))
                    copy_row(saved.unsafe_offset(ROW * k), file.unsafe_offset(ROW * slot))
                    var mark = get[DType.uint8](marks, slot)
                    set[DType.uint8](saved, ROW * slots + k, mark | has_changed(changed, slot) << 7)
                    if mark == POISON:
                        save_undefined(saved.unsafe_offset((ROW + 1) * slots), k, file, slots, slot, True)
                continue
            if op == CONTROL_LEAVE:
                status = STOP_LEFT
                location = half(o, 14)
                following = Int(get[DType.int32](o, 28))
                break
            if op == CONTROL_BARRIER:
                if alone:
                    status = STOP_LEFT
                    location = half(begin, 14)
                    following = Int(get[DType.int32](begin, 28))
                    break
                var passes = -1 if window != 0 else pass_barrier(c, f, o, file, marks)
                if passes == 1:
                    continue
                status = STOP_WAITS if passes == 0 else STOP_FAILED
                location = block
                break
            if op == CONTROL_LOADED or op == CONTROL_EARLY_READ:
                var known = look(f, FRAGMENT_PENDING) >= 0 and (half(o, 4) & ALIGNED == 0 or mask == FULL)
                if known if op == CONTROL_LOADED else count_early_read(c, o):
                    continue
                status = STOP_FAILED
                break
            if op == CONTROL_CALL:
                if c.unsafe_offset(8 * CALL).unsafe_bitcast[Function]()[](f, Int(get[DType.int64](o, 16))) != 0:
                    continue
                status = STOP_FAILED
                break
            following = Int(get[DType.int32](o, 24))
            if op == CONTROL_BRANCH:
                if missing_lanes(file, slots, half(o, 8)) & mask != 0:
                    status = STOP_FAILED
                    break
                var yes = mask_of(file.unsafe_offset(ROW * half(o, 8))) & mask
                if yes == 0:
                    following = Int(get[DType.int32](o, 28))
                elif yes != mask:
                    status = STOP_DIVERGES
                    location = half(o, 14)
                    break
            if following < 0:
                location = half(o, 14)
                break
            var entry = Int(get[DType.int32](pointer(c, ENTRIES), 4 * following))
            if following == join or ran + 1 >= budget or entry < 0:
                location = following
                break
            if window != 0:
                if following == kept_block and changes == kept_changes and are_as_kept(c, file, following, mask):
                    location = following
                    break
                set[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * ran, Int32(block))
                ran += 1
                pc = entry
                continue
            var counts = pointer(c, COUNTS)
            set[DType.int64](counts, 8 * block, get[DType.int64](counts, 8 * block) + 1)
            ran += 1
            pc = entry
            continue
        var flags = half(o, 4)
        var d = half(o, 6)
        var a = half(o, 8)
        var b = half(o, 10)
        var x = half(o, 12)
        var pa = file.unsafe_offset(ROW * a)
        var pb = file.unsafe_offset(ROW * b)
        var px = file.unsafe_offset(ROW * x)
        var target = file.unsafe_offset(ROW * d)
        var pd = target
        var active = mask
        var guard = half(o, 2)
        var guarded = False
        if guard != NONE:
            var pg = file.unsafe_offset(ROW * guard)
            var mark = get[DType.uint8](marks, guard)
            if mark == POISON:
                status = STOP_FAILED
                break
            if mark == UNIFORM:
                if Int(get[DType.uint32](pg)) == flags & NEGATED:
                    continue
            else:
                guarded = True
                pd = scratch
                var holds = mask_of(pg)
                active = mask & (~holds if flags & NEGATED != 0 else holds)
        var mark: Int
        var undefined = UInt32(0)
        var origin = UInt32(0)
        if op >= FIRST_ACCESS:
            if active == 0:
                continue
            var same = get[DType.uint8](marks, a) == UNIFORM
            if missing_lanes(file, slots, a) & active != 0 or (op >= FIRST_MATRIX and (active != FULL or window != 0)):
                status = STOP_FAILED
                break
            var alike = get[DType.uint8](marks, b) == UNIFORM
            if traces and not trace_access(c, f, o, pa, same, pb, alike, active):
                status = STOP_FAILED
                break
            var result = -1
@ACCESSES@
            if result == -1:
                status = STOP_FAILED
                break
            if result == STORED:
                changes += Int(flags & FIRST_ITEM != 0)
                continue
            loads += Int(flags & FIRST_ITEM != 0)
            mark = result
        elif op >= FIRST_EXCHANGE:
            var members = half(o, 14)
            # The result may take the place of the mask.
            var named = get[DType.uint32](file, ROW * members)
            var result = -1
            var by = get[DType.uint8](marks, b)
            var bounds = get[DType.uint8](marks, x)
            var bounded = by != POISON and bounds != POISON
            var agreed = get[DType.uint8](marks, members)
            if agreed != POISON and (op > SHFL_BFLY or bounded) and (agreed == UNIFORM or not traces):
                undefined = missing_lanes(file, slots, a)
                if undefined != 0:
                    origin = get[DType.uint32](file, origin_at(slots, a))
                var same = get[DType.uint8](marks, a) == UNIFORM
                if op == SHFL_IDX and by == UNIFORM and bounds == UNIFORM and get[DType.uint32](px) == 31:
                    same = True
                if agreed == UNIFORM:
                    result = exchange(op, f, target, pa, pb, px, same, mask, named, undefined)
                else:
                    var groups = file.unsafe_offset(ROW * members)
                    result = exchange_in_groups(op, f, target, pa, pb, px, mask, groups, scratch, undefined)
            if result == -1 or (traces and not trace_room(c)):
                status = STOP_FAILED
                break
            if op != ACTIVEMASK:  # lanes do not meet there
                trace(c, EVENT_SYNCED, f, mask, Int(get[DType.int32](o, 24)), Int(named), 0)
            mark = result
        else:
            var ua = get[DType.uint8](marks, a)
            var ub = get[DType.uint8](marks, b)
            var ux = get[DType.uint8](marks, x)
            mark = Int(ua & ub & ux)
            if flags & CHOOSES != 0:
                mark = Int(ux & (ua if get[DType.uint32](px) != 0 else ub)) if ux == UNIFORM else mark & VARIED
@HANDLERS@
            else:
                status = STOP_FAILED
                break
            if mark == POISON and not spread(file, slots, o, undefined, origin):
                status = STOP_FAILED
                break
            if mark == POISON and undefined == 0:
                mark = VARIED
        if guarded:
            merge(target, pd, file.unsafe_offset(ROW * guard), flags & NEGATED != 0, flags & WIDE != 0)
            var lanes = mask_of(file.unsafe_offset(ROW * guard))
            if flags & NEGATED != 0:
                lanes = ~lanes
            if mark == POISON or get[DType.uint8](marks, d) == POISON:
                mark = join_undefined(file, slots, d, mark, lanes, undefined, origin)
                if window != 0:
                    status = STOP_FAILED
                    break
            else:
                mark = VARIED
        elif mark == POISON:
            if window != 0:
                status = STOP_FAILED
                break
            set[DType.uint32](file, undefined_at(slots, d), undefined)
            set[DType.uint32](file, origin_at(slots, d), origin)
        set[DType.uint8](marks, d, UInt8(mark))
        note_change(changed, d)
    var out = pointer(c, OUT)
    if window != 0:
        var ends = status == STOP_DIVERGES or (status == STOP_STOPPED and (following < 0 or following == join))
        var over = not ends and status == STOP_STOPPED and ran + 1 == window and location == following
        if over and following == kept_block and changes == kept_changes:
            over = not are_as_kept(c, file, following, mask)
        over = over and (changes != 0 or loads <= (4 if alone else 0))
        if not over and (alone or not ends):
            undo_stores(c)
            trace_back(c, first_traced, first_words, first_chunks)
            return STOP_REFUSED
        var counts = pointer(c, COUNTS)
        set[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * ran, Int32(block))
        for k in range(ran if ends else window):
            var one = Int(get[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * k))
            set[DType.int64](counts, 8 * one, get[DType.int64](counts, 8 * one) + 1)
        note(out, RESULT_LOADS, loads)
    if status == STOP_FAILED:
        undo_stores(c)
        trace_back(c, traced, words, chunks)
        var list = pointer(c, SAVED_SLOTS).unsafe_offset(4 * Int(get[DType.int64](begin, 16)))
        for k in range(half(begin, 6)):
            var slot = Int(get[DType.int32](list, 4 * k))
            copy_row(file.unsafe_offset(ROW * slot), saved.unsafe_offset(ROW * k))
            var mark = get[DType.uint8](saved, ROW * slots + k) & 0x7F
            set[DType.uint8](marks, slot, mark)
            note_change(changed, slot, get[DType.uint8](saved, ROW * slots + k) >> 7)
            if mark == POISON:
                save_undefined(saved.unsafe_offset((ROW + 1) * slots), k, file, slots, slot, False)
        changes = changes_before
        location = half(begin, 14)
        following = Int(get[DType.int32](begin, 28))
    note(out, RESULT_BLOCK, block)
    note(out, RESULT_FOLLOWING, following)
    note(out, RESULT_RAN, ran)
    note(out, RESULT_CHANGES, changes)
    note(out, RESULT_LOCATION, location)
    note(out, RESULT_AT, pc - 1)
    return status
