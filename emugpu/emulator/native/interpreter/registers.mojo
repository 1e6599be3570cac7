"""The rows of a fragment: their undefined lanes, the list of changes for Python, and the comparison with saved rows."""

from .layout import *
from .lanes import *


@inline(.always)
def copy_row(to: Bytes, source: Bytes):
    put(to, load[DType.uint64](source))


@inline(.never)
def merge(to: Bytes, new: Bytes, guard: Bytes, negated: Bool, wide: Bool):
    """Writes the lanes for which a guard holds."""
    var holds = load[DType.uint32](guard).ne(0)
    if negated:
        holds = ~holds
    if wide:
        put(to, holds.select(load[DType.uint64](new), load[DType.uint64](to)))
    else:
        put(to, holds.select(load[DType.uint32](new), load[DType.uint32](to)))


@inline(.always)
def undefined_at(slots: Int, slot: Int) -> Int:
    """Returns the place of a row's undefined lanes in a file."""
    return (ROW + 5) * slots + 4 * slot


@inline(.always)
def origin_at(slots: Int, slot: Int) -> Int:
    return (ROW + 9) * slots + 4 * slot


@inline(.always)
def mark_of(file: Bytes, slots: Int, slot: Int) -> Int:
    return Int(get[DType.uint8](file, ROW * slots + slot))


@inline(.never)
def missing_lanes(file: Bytes, slots: Int, slot: Int) -> UInt32:
    """Returns the undefined lanes of a row."""
    return get[DType.uint32](file, undefined_at(slots, slot)) if mark_of(file, slots, slot) == POISON else UInt32(0)


@inline(.never)
def spread(file: Bytes, slots: Int, o: Bytes, mut undefined: UInt32, mut origin: UInt32) -> Bool:
    """Computes the undefined lanes of a result: those in which a source is undefined. Returns False if Python must
    do it.
    """
    var flags = half(o, 4)
    var count = 3
    if flags & CHOOSES != 0:
        var decides = half(o, 12)
        var mark = mark_of(file, slots, decides)
        if mark == POISON:
            return False
        var yes = missing_lanes(file, slots, half(o, 8))
        var no = missing_lanes(file, slots, half(o, 10))
        var holds = mask_of(file.unsafe_offset(ROW * decides))
        undefined = (yes & holds) | (no & ~holds)
        count = 2
    elif flags & SPREADS == 0:
        return False
    var seen = False
    for k in range(count):
        var slot = half(o, 8 + 2 * k)
        if mark_of(file, slots, slot) != POISON:
            continue
        var its = get[DType.uint32](file, origin_at(slots, slot))
        if seen and its != origin:
            return False
        origin = its
        seen = True
        if count == 3:
            undefined |= get[DType.uint32](file, undefined_at(slots, slot))
    return True


@inline(.never)
def join_undefined(file: Bytes, slots: Int, d: Int, new: Int, lanes: UInt32, undefined: UInt32, origin: UInt32) -> Int:
    """Returns the mark of a row that gets some lanes of one marked as `new`."""
    var left = missing_lanes(file, slots, d) & ~lanes
    var found = left | (undefined & lanes if new == POISON else UInt32(0))
    if found == 0:
        return VARIED
    if new == POISON:
        set[DType.uint32](file, origin_at(slots, d), origin)
    set[DType.uint32](file, undefined_at(slots, d), found)
    return POISON


@inline(.never)
def hand_over(c: Bytes, file: Bytes, stamp: UInt32, location: Int):
    """Lists the rows that changed under a stamp and are live at a location."""
    var slots = look(c, ROWS)
    var marks = file.unsafe_offset(ROW * slots)
    var stamps = marks.unsafe_offset(slots)
    var out = pointer(c, OUT)
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * location)
    var first = Int(get[DType.int32](where))
    var scalars = 0
    var rows32 = 0
    var rows64 = 0
    var predicates = 0
    var poisons = 0
    for k in range(first, first + Int(get[DType.int32](where, 4))):
        var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k))
        var slot = packed & 0xFFFF
        var kind = packed >> 16
        if get[DType.uint32](stamps, 4 * slot) != stamp:
            continue
        set[DType.uint32](stamps, 4 * slot, 0)
        var row = file.unsafe_offset(ROW * slot)
        var mark = Int(get[DType.uint8](marks, slot))
        if mark == POISON:
            set[DType.int64](out, 8 * (FIRST_ROW + 5 * slots + poisons), Int64(packed))
            poisons += 1
        elif mark == UNIFORM:
            var value = get[DType.uint64](row) if kind == 1 else get[DType.uint32](row).cast[DType.uint64]()
            set[DType.int64](out, 8 * (FIRST_ROW + 2 * scalars), Int64(packed))
            set[DType.uint64](out, 8 * (FIRST_ROW + 1 + 2 * scalars), value)
            scalars += 1
        elif kind == 0:
            put(pointer(c, OUT32).unsafe_offset(128 * rows32), load[DType.uint32](row))
            set[DType.int64](out, 8 * (FIRST_ROW + 2 * slots + rows32), Int64(slot))
            rows32 += 1
        elif kind == 1:
            put(pointer(c, OUT64).unsafe_offset(256 * rows64), load[DType.uint64](row))
            set[DType.int64](out, 8 * (FIRST_ROW + 3 * slots + rows64), Int64(slot))
            rows64 += 1
        else:
            var bits = load[DType.uint32](row).cast[DType.uint8]()
            put(pointer(c, OUT_PREDICATES).unsafe_offset(32 * predicates), bits)
            set[DType.int64](out, 8 * (FIRST_ROW + 4 * slots + predicates), Int64(slot))
            predicates += 1
    note(out, RESULT_SCALARS, scalars)
    note(out, RESULT_ROWS32, rows32)
    note(out, RESULT_ROWS64, rows64)
    note(out, RESULT_PREDICATES, predicates)
    note(out, RESULT_POISONS, poisons)


@inline(.never)
def keep_rows(c: Bytes, file: Bytes, block: Int):
    """Saves the registers that are live at the start of a block."""
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(Int(get[DType.int32](where, 4))):
        var slot = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * (first + k))) & 0xFFFF
        copy_row(pointer(c, WATCHED_ROWS).unsafe_offset(ROW * k), file.unsafe_offset(ROW * slot))


@inline(.never)
def are_as_kept(c: Bytes, file: Bytes, block: Int, mask: UInt32) -> Bool:
    """Returns whether they are equal to the saved ones in the lanes of a mask; other lanes are meaningless."""
    var here = (lane_bits() & Lanes(mask)).ne(0)
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(Int(get[DType.int32](where, 4))):
        var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * (first + k)))
        var now = file.unsafe_offset(ROW * (packed & 0xFFFF))
        var then = pointer(c, WATCHED_ROWS).unsafe_offset(ROW * k)
        var differs = load[DType.uint32](now).ne(load[DType.uint32](then))
        if packed >> 16 == 1:
            differs = load[DType.uint64](now).ne(load[DType.uint64](then))
        if (differs & here).reduce_or():
            return False
    return True
