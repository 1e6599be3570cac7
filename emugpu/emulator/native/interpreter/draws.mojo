"""The steps of a random schedule. The numbers and their order are those of `machine/draws.py` and
`machine/schedule.py`.
"""

from .layout import *
from .lanes import *
from .fragments import *

comptime GAMMA = UInt64(0x9E3779B97F4A7C15)
comptime NOT_A_TURN = Int.MIN
"""The next step is none of a fragment: an operation completes, or a cluster starts, or nothing is ready."""


@inline(.always)
def mixed(number: UInt64) -> UInt64:
    var z = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@inline(.always)
def draw(c: Bytes) -> Int:
    """Returns the next number, of 32 bits."""
    var drawn = look(c, DRAWN) + 1
    note(c, DRAWN, drawn)
    return Int(mixed(UInt64(look(c, SEED)) + UInt64(drawn) * GAMMA) >> 32)


@inline(.always)
def below(c: Bytes, count: Int) -> Int:
    return (draw(c) * count) >> 32


@inline(.always)
def one_of(c: Bytes, table: Int) -> Int:
    """Returns one value of a table, whose first field is their number."""
    var values = pointer(c, table)
    return look(values, 1 + below(c, look(values, 0)))


@inline(.always)
def priority(root: Int, newest: Int) -> Int:
    var epoch = newest
    while True:
        var z = mixed(UInt64(root) + UInt64(epoch) * GAMMA)
        if epoch == 0 or z & 1 != 0:
            return Int(z >> 1)
        epoch -= 1


@inline(.always)
def draw_budget(c: Bytes):
    """Sets how many blocks the turn that begins may have."""
    if look(c, IS_RANDOM) != 0:
        note(c, TURN_BLOCKS, one_of(c, BUDGETS))


@inline(.always)
def entry_at(c: Bytes, place: Int) -> Int:
    return Int(get[DType.int32](pointer(c, QUEUE), 4 * place))


@inline(.never)
def best_of(c: Bytes, first: Int, count: Int) -> Int:
    """Returns which of the fragments from a place in the queue on, behind whose end its beginning follows, comes next.
    """
    var candidates = min(count, CANDIDATES)
    if candidates == 1:
        return 0
    if draw(c) < look(c, SURPRISE):
        return below(c, candidates)
    var best = 0
    var highest = -1
    for n in range(candidates):
        var entry = entry_at(c, (first + n) % count)
        var root = look(pointer(c, STRANGERS), -1 - entry) if entry < 0 else look(fragment(c, entry), FRAGMENT_ROOT)
        var its = priority(root, look(c, EPOCH))
        if its > highest:
            highest = its
            best = n
    return best


@inline(.always)
def reverse(c: Bytes, begin: Int, end: Int):
    """Reverses a part of the queue."""
    var low = begin
    var high = end - 1
    while low < high:
        var entry = entry_at(c, low)
        set[DType.int32](pointer(c, QUEUE), 4 * low, Int32(entry_at(c, high)))
        set[DType.int32](pointer(c, QUEUE), 4 * high, Int32(entry))
        low += 1
        high -= 1


@inline(.never)
def take_out(c: Bytes, first: Int, at: Int, count: Int):
    """Makes the queue begin at a place, with what was before it at the end, and takes out an entry."""
    if first > 0:
        reverse(c, 0, first)
        reverse(c, first, count)
        reverse(c, 0, count)
    for k in range(at, count - 1):
        set[DType.int32](pointer(c, QUEUE), 4 * k, Int32(entry_at(c, k + 1)))
    note(c, TAIL, count - 1)


@inline(.never)
def next_turn(c: Bytes) -> Int:
    """Takes the fragment of the next step out of the queue. Returns its number.

    If the fragment is one that only Python knows, returns its entry, which is negative, and notes its place. Then, as
    with NOT_A_TURN, nothing is done or drawn.
    """
    var count = look(c, TAIL)
    var drawn = look(c, DRAWN)
    if count == 0 or (look(c, CAN_START) != 0 and draw(c) < look(c, START_SHARE)):
        note(c, DRAWN, drawn)
        return NOT_A_TURN
    var left = look(c, STEPS_TO_CHANGE)
    var epoch = look(c, EPOCH)
    var share = look(c, OPERATIONS_SHARE)
    note(c, STEPS_TO_CHANGE, left - 1)
    if left <= 1:
        note(c, STEPS_TO_CHANGE, one_of(c, CHANGES_AFTER))
        note(c, OPERATIONS_SHARE, one_of(c, OPERATIONS_SHARES))
        note(c, EPOCH, epoch + 1)
    var entry = NOT_A_TURN
    if look(c, HAS_OPERATIONS) == 0 or draw(c) >= look(c, OPERATIONS_SHARE):
        # A rotation of Python's deque by n makes the last n entries the first.
        var first = (count - below(c, count)) % count if count > CANDIDATES else 0
        var at = best_of(c, first, count)
        var place = (first + at) % count
        entry = entry_at(c, place)
        note(pointer(c, OUT), RESULT_AT, place)
        if entry >= 0:
            take_out(c, first, at, count)
            return entry
    note(c, DRAWN, drawn)
    note(c, STEPS_TO_CHANGE, left)
    note(c, EPOCH, epoch)
    note(c, OPERATIONS_SHARE, share)
    return entry
