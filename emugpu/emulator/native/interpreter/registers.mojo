"""The rows of a fragment: their undefined lanes, their changes, and the comparison with saved rows."""

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
    return (ROW + 1) * slots + 4 * slot


@inline(.always)
def origin_at(slots: Int, slot: Int) -> Int:
    return (ROW + 5) * slots + 4 * slot


@inline(.always)
def changes_of(file: Bytes, slots: Int) -> Bytes:
    """Returns the place of the bits that say which rows have changed since Python looked, `slots / 8` bytes."""
    return file.unsafe_offset((ROW + 9) * slots)


@inline(.always)
def note_change(changed: Bytes, slot: Int, bit: UInt8 = 1):
    """Sets the bit of a row, or puts it back."""
    var at = UInt8(slot & 7)
    set[DType.uint8](changed, slot >> 3, (get[DType.uint8](changed, slot >> 3) & ~(UInt8(1) << at)) | (bit << at))


@inline(.always)
def has_changed(changed: Bytes, slot: Int) -> UInt8:
    return (get[DType.uint8](changed, slot >> 3) >> UInt8(slot & 7)) & 1


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
