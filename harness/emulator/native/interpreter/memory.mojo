"""Loads and stores of all spaces, checked; what a store replaces is kept, so that it can be taken back."""

from std.bit import count_leading_zeros
from .layout import *
from .lanes import *


@fieldwise_init
struct Place(TrivialRegisterPassable):
    """Where an access lies in the host's memory. poisoned: whether a shadow says which bytes were written."""

    var found: Bool
    var poisoned: Bool
    var data: Bytes
    var shadow: Bytes


@inline(.always)
def all_written[n: Int]() -> UInt64:
    return UInt64(0x0101010101010101) >> UInt64(64 - 8 * n)


@inline(.always)
def read[n: Int](p: Bytes) -> UInt64:
    comptime if n == 1:
        return get[DType.uint8](p).cast[DType.uint64]()
    elif n == 2:
        return get[DType.uint16](p).cast[DType.uint64]()
    elif n == 4:
        return get[DType.uint32](p).cast[DType.uint64]()
    else:
        return get[DType.uint64](p)


@inline(.always)
def write[n: Int](p: Bytes, v: UInt64):
    comptime if n == 1:
        set[DType.uint8](p, 0, v.cast[DType.uint8]())
    elif n == 2:
        set[DType.uint16](p, 0, v.cast[DType.uint16]())
    elif n == 4:
        set[DType.uint32](p, 0, v.cast[DType.uint32]())
    else:
        set[DType.uint64](p, 0, v)


@inline(.always)
def find_allocation(c: Bytes, address: UInt64, nbytes: UInt64) -> Int:
    """The allocation that holds these bytes, or -1. An allocation: base, bytes, data, shadow or null."""
    var table = pointer(c, ALLOCATIONS)
    var last = Int(field(c, LAST_ALLOCATION))
    for k in range(-1, Int(field(c, ALLOCATION_COUNT))):
        var j = last if k < 0 else k
        var inside = address - get[DType.uint64](table, 32 * j)
        var size = get[DType.uint64](table, 32 * j + 8)
        if inside < size and nbytes <= size - inside:
            set[DType.uint64](c, 8 * LAST_ALLOCATION, UInt64(j))
            return j
    return -1


@inline(.always)
def place[space: Int, store: Bool](c: Bytes, address: UInt64, nbytes: UInt64) -> Place:
    comptime if space == SPACE_SHARED:
        var at = address - field(c, WINDOW)
        var size = field(c, SHARED_SIZE)
        var data = pointer(c, SHARED)
        var legal = at >= RESERVED and at < size and nbytes <= size - at
        comptime if store:
            if at < field(c, BARRIERS_END) and at + nbytes > field(c, BARRIERS_FIRST):
                legal = False
        if not legal:
            return Place(False, False, data, data)
        return Place(True, True, data.unsafe_offset(Int(at)), pointer(c, SHARED_SHADOW).unsafe_offset(Int(at)))
    elif space == SPACE_GLOBAL:
        var k = find_allocation(c, address, nbytes)
        if k < 0:
            return Place(False, False, c, c)
        var block = pointer(c, ALLOCATIONS).unsafe_offset(32 * k)
        var at = Int(address - get[DType.uint64](block))
        var data = block.unsafe_offset(16).unsafe_bitcast[Bytes]()[].unsafe_offset(at)
        if get[DType.uint64](block, 24) == 0:
            return Place(True, False, data, data)
        return Place(True, True, data, block.unsafe_offset(24).unsafe_bitcast[Bytes]()[].unsafe_offset(at))
    else:
        var size = field(c, PARAMETER_BYTES)
        if address >= size or nbytes > size - address:
            return Place(False, False, c, c)
        var data = pointer(c, PARAMETERS).unsafe_offset(Int(address))
        return Place(True, False, data, data)


@inline(.always)
def is_written[n: Int](at: Place) -> Bool:
    return not at.poisoned or read[n](at.shadow) == all_written[n]()


@inline(.always)
def address_of(row: Bytes, lane: Int, o: Bytes, wide: Bool) -> UInt64:
    """An address of 32 bits wraps around at 32."""
    var displacement = get[DType.uint64](o, 16)
    if wide:
        return get[DType.uint64](row, 8 * lane) + displacement
    return (get[DType.uint32](row, 4 * lane) + displacement.cast[DType.uint32]()).cast[DType.uint64]()


@inline(.always)
def consecutive(row: Bytes, wide: Bool) -> Bool:
    """Whether the lanes' addresses are those of 4-byte words in a row."""
    if wide:
        var a = load[DType.uint64](row)
        return a.eq(SIMD[DType.uint64, 32](a[0]) + ramp[DType.uint64](4)).reduce_and()
    var a = load[DType.uint32](row)
    return a.eq(SIMD[DType.uint32, 32](a[0]) + ramp[DType.uint32](4)).reduce_and()


@inline(.never)
def load_lanes[space: Int, n: Int](c: Bytes, to: Bytes, a: Bytes, agrees: Bool, o: Bytes, mask: UInt32) -> Int:
    """Loads a row; its mark, or -1: something is out of the ordinary."""
    var flags = half(o, 4)
    var aligned = UInt64(half(o, 14) - 1)
    var wide = flags & WIDE_ADDRESS != 0
    if agrees:
        var address = address_of(a, 0, o, wide)
        var at = place[space, False](c, address, UInt64(n))
        if address & aligned != 0 or not at.found or not is_written[n](at):
            return -1
        var value = read[n](at.data)
        if flags & WIDE != 0:
            put(to, SIMD[DType.uint64, 32](value))
        else:
            put(to, SIMD[DType.uint32, 32](value.cast[DType.uint32]()))
        return UNIFORM
    comptime if n == 4 and space != SPACE_PARAM:
        if mask == FULL and flags & WIDE == 0 and consecutive(a, wide):
            var address = address_of(a, 0, o, wide)
            var at = place[space, False](c, address, 128)
            # Words in a row are aligned to 4 bytes and no more.
            if not at.found or address & 3 != 0 or half(o, 14) > 4:
                return -1
            if at.poisoned:
                var shadow = at.shadow.unsafe_bitcast[UInt32]().unsafe_load[width=32, alignment=1]()
                if not shadow.eq(SIMD[DType.uint32, 32](0x01010101)).reduce_and():
                    return -1
            put(to, at.data.unsafe_bitcast[UInt32]().unsafe_load[width=32, alignment=1]())
            return VARIED
    for lane in range(32):
        var value = UInt64(0)
        if (mask >> UInt32(lane)) & 1 != 0:
            var address = address_of(a, lane, o, wide)
            var at = place[space, False](c, address, UInt64(n))
            if address & aligned != 0 or not at.found or not is_written[n](at):
                return -1
            value = read[n](at.data)
        if flags & WIDE != 0:
            set[DType.uint64](to, 8 * lane, value)
        else:
            set[DType.uint32](to, 4 * lane, value.cast[DType.uint32]())
    return VARIED


@inline(.always)
def note_old[n: Int](c: Bytes, at: Place) -> Bool:
    """Writes down what a store is about to replace. False: there is no room for it."""
    var number = field(c, LOGGED)
    if number >= field(c, LOG_ROOM):
        return False
    var entry = pointer(c, LOG).unsafe_offset(40 * Int(number))
    entry.unsafe_bitcast[Bytes]()[] = at.data
    entry.unsafe_offset(8).unsafe_bitcast[Bytes]()[] = at.shadow
    set[DType.uint64](entry, 16, read[n](at.data))
    set[DType.uint64](entry, 24, read[n](at.shadow) if at.poisoned else 0)
    set[DType.uint64](entry, 32, UInt64(n) + (UInt64(16) if at.poisoned else UInt64(0)))
    set[DType.uint64](c, 8 * LOGGED, number + 1)
    return True


@inline(.always)
def put_back[n: Int](entry: Bytes, poisoned: Bool):
    write[n](entry.unsafe_bitcast[Bytes]()[], get[DType.uint64](entry, 16))
    if poisoned:
        write[n](entry.unsafe_offset(8).unsafe_bitcast[Bytes]()[], get[DType.uint64](entry, 24))


@inline(.never)
def undo_stores(c: Bytes):
    for back in range(Int(field(c, LOGGED))):
        var entry = pointer(c, LOG).unsafe_offset(40 * (Int(field(c, LOGGED)) - 1 - back))
        var kind = Int(get[DType.uint64](entry, 32))
        var n = kind & 15
        if n == 1:
            put_back[1](entry, kind >= 16)
        elif n == 2:
            put_back[2](entry, kind >= 16)
        elif n == 4:
            put_back[4](entry, kind >= 16)
        else:
            put_back[8](entry, kind >= 16)
    set[DType.uint64](c, 8 * LOGGED, 0)


@inline(.always)
def write_at[n: Int](at: Place, value: UInt64):
    write[n](at.data, value)
    if at.poisoned:
        write[n](at.shadow, all_written[n]())


@inline(.always)
def lane_value(row: Bytes, lane: Int, wide: Bool) -> UInt64:
    return get[DType.uint64](row, 8 * lane) if wide else get[DType.uint32](row, 4 * lane).cast[DType.uint64]()


@inline(.never)
def store_lanes[space: Int, n: Int](
    c: Bytes, a: Bytes, agrees: Bool, values: Bytes, o: Bytes, mask: UInt32
) -> Bool:
    """Stores a row. False: something is out of the ordinary, and nothing is stored."""
    var flags = half(o, 4)
    var aligned = UInt64(half(o, 14) - 1)
    var wide = flags & WIDE_ADDRESS != 0
    var wide_values = flags & WIDE != 0
    var logs = flags & NO_LOG == 0 or field(c, WATCHES) != 0
    if agrees:
        var address = address_of(a, 0, o, wide)
        var at = place[space, True](c, address, UInt64(n))
        if address & aligned != 0 or not at.found or (logs and not note_old[n](c, at)):
            return False
        # Of lanes that store to one place the last one wins.
        var last = 31 - Int(count_leading_zeros(mask))
        write_at[n](at, lane_value(values, last, wide_values))
        return True
    comptime if n == 4:
        if mask == FULL and not wide_values and consecutive(a, wide):
            var address = address_of(a, 0, o, wide)
            var at = place[space, True](c, address, 128)
            if not at.found or address & 3 != 0 or half(o, 14) > 4:
                return False
            if logs:
                for k in range(16):
                    var part = Place(
                        True, at.poisoned, at.data.unsafe_offset(8 * k), at.shadow.unsafe_offset(8 * k)
                    )
                    if not note_old[8](c, part):
                        return False
            at.data.unsafe_bitcast[UInt32]().unsafe_store[alignment=1](load[DType.uint32](values))
            if at.poisoned:
                at.shadow.unsafe_bitcast[UInt32]().unsafe_store[alignment=1](
                    SIMD[DType.uint32, 32](0x01010101)
                )
            return True
    var places = pointer(c, PLACES).unsafe_bitcast[Place]()
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 != 0:
            var address = address_of(a, lane, o, wide)
            var at = place[space, True](c, address, UInt64(n))
            if address & aligned != 0 or not at.found:
                return False
            places[unsafe_offset=lane] = at
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 != 0:
            var at = places[unsafe_offset=lane]
            if logs and not note_old[n](c, at):
                return False
            write_at[n](at, lane_value(values, lane, wide_values))
    return True
