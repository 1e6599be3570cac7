"""The functions that Python calls: `run` for one fragment; `run_turns` to give fragments their turns, and split and
join them, as long as Python is not needed; `filter_accesses` to filter a trace.
"""

from interpreter.layout import *
from interpreter.lanes import *
from interpreter.registers import *
from interpreter.fragments import *
from interpreter.draws import *
from interpreter.run_blocks import *
from interpreter.turns import *
from interpreter.access_filter import *


@export
def run(c: Bytes, number: Int, start: Int, budget: Int, window: Int) abi("C") -> Int:
    """Runs one fragment from an operation on."""
    if number < 0:
        return 0
    var f = fragment(c, number)
    new_stamp(c, f)
    var status = run_blocks(c, f, start, budget, window, True)
    note(pointer(c, OUT), RESULT_STATUS, status)
    return status


@export
def run_turns(c: Bytes, turns: Int) abi("C") -> Int:
    """Gives fragments their turns until one of them needs Python: first the one that is given, if any, then those of the
    queue, in order or at random. Returns why it stops.
    """
    if turns <= 0:
        return STOP_TURNS_OVER
    var taken = 0
    var answer = STOP_TURNS_OVER
    var current = -1
    var before = look(c, CHANGES)
    while taken < turns:
        current = look(c, FIRST_TURN)
        if current >= 0:
            note(c, FIRST_TURN, -1)
        elif look(c, IS_RANDOM) != 0:
            current = next_turn(c)
            if current < 0:
                answer = STOP_NOTHING_LEFT if current == NOT_A_TURN else STOP_STRANGER
                break
        else:
            var head = look(c, HEAD)
            if head == look(c, TAIL) or head == look(c, CLOSED_AT):
                answer = STOP_NOTHING_LEFT
                break
            current = Int(get[DType.int32](pointer(c, QUEUE), 4 * head))
            if current < 0:
                answer = STOP_OTHERS_FIRST
                break
            note(c, HEAD, head + 1)
        taken += 1
        before = look(c, CHANGES)
        var started = look(c, STARTED)
        answer = turn(c, current)
        if look(c, STARTED) != started:
            note(c, LAST_START, look(c, TURNS_BEFORE) + taken)
        if answer != STOP_STOPPED:
            break
        answer = STOP_TURNS_OVER
        current = -1
        if look(c, QUEUE_ROOM) - look(c, TAIL) < 4096 or trace_is_half_full(c):
            break
    var out = pointer(c, OUT)
    note(out, RESULT_STATUS, answer)
    note(out, RESULT_CURRENT, current)
    note(out, RESULT_TURNS, taken)
    note(out, RESULT_CHANGES_BEFORE, before)
    return answer


@export
def touch_living(c: Bytes, current: Int, ctas: Int) abi("C") -> Int:
    """Records all fragments of which Python has no object yet, so that Python updates them. Returns their number.

    `current` is the fragment whose turn it is, or -1. `ctas` is the number of CTAs in the table.
    """
    if ctas == 0:
        return 0
    if current >= 0:
        touch(c, current)
    for k in range(look(c, HEAD), look(c, TAIL)):
        var number = Int(get[DType.int32](pointer(c, QUEUE), 4 * k))
        if number >= 0 and look(fragment(c, number), FRAGMENT_HAS_OBJECT) == 0:
            touch(c, number)
    for k in range(look(c, JOIN_COUNT)):
        touch_list(c, look(pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * k), JOINPOINT_FIRST))
    for k in range(ctas * NAMED_BARRIERS):
        var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * (k // NAMED_BARRIERS))
        touch_list(c, look(cta, CTA_BARRIERS + BARRIER_FIELDS * (k % NAMED_BARRIERS) + BARRIER_FIRST))
    return look(c, TOUCHED_COUNT)


@export
def filter_accesses(t: Bytes) abi("C") -> Int:
    """Filters a part of the trace with `filter_all`."""
    filter_all(t)
    return 0
