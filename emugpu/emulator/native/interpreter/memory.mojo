"""Checked loads, stores and atomics. Replaced values are kept for a rollback."""

from std.bit import count_leading_zeros, count_trailing_zeros
from .layout import *
from .lanes import *
from .places import *


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
def is_written[n: Int](at: Place) -> Bool:
    return not at.poisoned or read[n](at.shadow) == all_written[n]()


@inline(.always)
def address_of(row: Bytes, lane: Int, o: Bytes, wide: Bool) -> UInt64:
    """Returns a lane's address. One of 32 bits wraps around at 32 bits."""
    var displacement = get[DType.uint64](o, 16)
    if wide:
        return get[DType.uint64](row, 8 * lane) + displacement
    return (get[DType.uint32](row, 4 * lane) + displacement.cast[DType.uint32]()).cast[DType.uint64]()


@inline(.always)
def consecutive(row: Bytes, wide: Bool) -> Bool:
    """Returns whether the lanes' addresses are those of consecutive 4-byte words."""
    if wide:
        var a = load[DType.uint64](row)
        return a.eq(SIMD[DType.uint64, 32](a[0]) + ramp[DType.uint64](4)).reduce_and()
    var a = load[DType.uint32](row)
    return a.eq(SIMD[DType.uint32, 32](a[0]) + ramp[DType.uint32](4)).reduce_and()


@inline(.never)
def load_lanes[space: Int, n: Int](c: Bytes, f: Bytes, to: Bytes, a: Bytes, agrees: Bool, o: Bytes, mask: UInt32) -> Int:
    """Loads a row. Returns its mark, or -1 if Python must do it."""
    var flags = half(o, 4)
    var aligned = UInt64(half(o, 14) - 1)
    var wide = flags & WIDE_ADDRESS != 0
    var last = 31 - Int(count_leading_zeros(mask))
    if agrees and (mask & (mask - 1) == 0 or not differs_by_lane[space](address_of(a, 0, o, wide))):
        var address = address_of(a, last, o, wide)
        var at = place[space, False](c, f, last, address, UInt64(n))
        if address & aligned != 0 or not at.found or not is_written[n](at):
            return -1
        var value = read[n](at.data)
        if flags & WIDE != 0:
            put(to, SIMD[DType.uint64, 32](value))
        else:
            put(to, SIMD[DType.uint32, 32](value.cast[DType.uint32]()))
        return UNIFORM
    comptime if n == 4 and space <= SPACE_GLOBAL:
        if mask == FULL and flags & WIDE == 0 and consecutive(a, wide):
            var address = address_of(a, 0, o, wide)
            var at = place[space, False](c, f, 0, address, 128)
            # Consecutive words are only aligned to 4 bytes.
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
            var at = place[space, False](c, f, lane, address, UInt64(n))
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
    """Saves the bytes that a store is about to replace. Returns False if there is no room for them."""
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
    c: Bytes, f: Bytes, a: Bytes, agrees: Bool, values: Bytes, o: Bytes, mask: UInt32
) -> Bool:
    """Stores a row. Returns False, with nothing stored, if Python must do it."""
    var flags = half(o, 4)
    var aligned = UInt64(half(o, 14) - 1)
    var wide = flags & WIDE_ADDRESS != 0
    var wide_values = flags & WIDE != 0
    var last = 31 - Int(count_leading_zeros(mask))
    if agrees and (mask & (mask - 1) == 0 or not differs_by_lane[space](address_of(a, 0, o, wide))):
        var address = address_of(a, last, o, wide)
        var at = place[space, True](c, f, last, address, UInt64(n))
        if address & aligned != 0 or not at.found or not note_old[n](c, at):
            return False
        # If several lanes store to one place, the last one wins.
        write_at[n](at, lane_value(values, last, wide_values))
        return True
    comptime if n == 4 and space <= SPACE_GLOBAL:
        if mask == FULL and not wide_values and consecutive(a, wide):
            var address = address_of(a, 0, o, wide)
            var at = place[space, True](c, f, 0, address, 128)
            if not at.found or address & 3 != 0 or half(o, 14) > 4:
                return False
            for k in range(16):
                var part = Place(True, at.poisoned, at.data.unsafe_offset(8 * k), at.shadow.unsafe_offset(8 * k))
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
            var at = place[space, True](c, f, lane, address, UInt64(n))
            comptime if space == SPACE_GENERIC:
                # Python counts the changes of each space.
                if space_of(address) != space_of(address_of(a, last, o, wide)):
                    return False
            if address & aligned != 0 or not at.found:
                return False
            places[unsafe_offset=lane] = at
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 != 0:
            var at = places[unsafe_offset=lane]
            if not note_old[n](c, at):
                return False
            write_at[n](at, lane_value(values, lane, wide_values))
    return True


@inline(.always)
def flushed(bits: UInt32) -> UInt32:
    """Returns a subnormal number's bits as those of a zero of its sign."""
    return bits & 0x80000000 if bits & 0x7F800000 == 0 else bits


@inline(.always)
def sum_of_numbers[n: Int](old: UInt64, b: UInt64, in_global: Bool) -> UInt64:
    """Returns a sum. In global memory f32 flushes subnormal numbers, and f64 does not change a NaN."""
    comptime if n == 4:
        var x = old.cast[DType.uint32]()
        var y = b.cast[DType.uint32]()
        if in_global:
            x = flushed(x)
            y = flushed(y)
        var sum = (Float32(from_bits=x) + Float32(from_bits=y)).to_bits[DType.uint32]()
        if sum & 0x7FFFFFFF > 0x7F800000:
            return 0x7FFFFFFF
        if in_global:
            sum = flushed(sum)
        return sum.cast[DType.uint64]()
    else:
        comptime infinity = UInt64(0x7FF0000000000000)
        comptime magnitude_bits = UInt64(0x7FFFFFFFFFFFFFFF)
        var quiet = UInt64(0) if in_global else UInt64(1 << 51)
        if old & magnitude_bits > infinity:
            return old | quiet
        if b & magnitude_bits > infinity:
            return b | quiet
        var sum = (Float64(from_bits=old) + Float64(from_bits=b)).to_bits[DType.uint64]()
        return UInt64(0xFFF8000000000000) if sum & magnitude_bits > infinity else sum


@inline(.always)
def as_signed[n: Int](a: UInt64) -> Int64:
    comptime if n == 4:
        return a.cast[DType.uint32]().cast[DType.int32]().cast[DType.int64]()
    else:
        return a.cast[DType.int64]()


@inline(.always)
def combined[n: Int](what: Int, old: UInt64, b: UInt64, x: UInt64, in_global: Bool) -> UInt64:
    """Returns the content of memory after one lane's operation. Bits above those of the item are meaningless."""
    if what == ATOMIC_ADD:
        return old + b
    if what == ATOMIC_CAS:
        return x if old == b else old
    if what == ATOMIC_EXCH:
        return b
    if what == ATOMIC_AND:
        return old & b
    if what == ATOMIC_OR:
        return old | b
    if what == ATOMIC_XOR:
        return old ^ b
    if what == ATOMIC_MIN_U:
        return min(old, b)
    if what == ATOMIC_MAX_U:
        return max(old, b)
    if what == ATOMIC_MIN_S:
        return old if as_signed[n](old) <= as_signed[n](b) else b
    if what == ATOMIC_MAX_S:
        return old if as_signed[n](old) >= as_signed[n](b) else b
    if what == ATOMIC_INC:
        return UInt64(0) if old >= b else old + 1
    if what == ATOMIC_DEC:
        return b if old == 0 or old > b else old - 1
    return sum_of_numbers[n](old, b, in_global)


@inline(.never)
def atomic_lanes[space: Int, n: Int](
    c: Bytes, f: Bytes, to: Bytes, a: Bytes, agrees: Bool, b: Bytes, x: Bytes, o: Bytes, mask: UInt32, alone: Bool
) -> Int:
    """Executes an atomic lane by lane. Returns how many lanes changed memory, or -1 if Python must do it.

    All lanes are checked before the first one. `alone` means that there is one lane, whose result all lanes get.
    """
    comptime all_bits = UInt64(0xFFFFFFFFFFFFFFFF) >> UInt64(64 - 8 * n)
    var flags = half(o, 4)
    var wide = flags & WIDE_ADDRESS != 0
    var places = pointer(c, PLACES).unsafe_bitcast[Place]()
    var here = space
    comptime if space == SPACE_GENERIC:
        here = space_of(address_of(a, 0 if agrees else Int(count_trailing_zeros(mask)), o, wide))
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 != 0:
            var address = address_of(a, 0 if agrees else lane, o, wide)
            comptime if space == SPACE_GENERIC:
                # A kernel whose only generic accesses are atomics does not say where its local memory is.
                if space_of(address) != here or here == SPACE_LOCAL:
                    return -1
            var at = place[space, True](c, f, lane, address, UInt64(n))
            if address & UInt64(n - 1) != 0 or not at.found or not is_written[n](at):
                return -1
            places[unsafe_offset=lane] = at
    if field(c, LOGGED) + 32 > field(c, LOG_ROOM):
        return -1
    var changed = 0
    var traces = look(c, TRACE) != 0
    for lane in range(32):
        var old = UInt64(0)
        if (mask >> UInt32(lane)) & 1 != 0:
            var at = places[unsafe_offset=lane]
            old = read[n](at.data)
            var value = lane_value(b, lane, n == 8)
            var more = lane_value(x, lane, n == 8)
            var new = combined[n](half(o, 14), old, value, more, here == SPACE_GLOBAL) & all_bits
            if new != old:
                _ = note_old[n](c, at)
                write[n](at.data, new)
                changed += 1
            if traces:
                set[DType.uint64](pointer(c, TRACE_WORDS), 8 * (look(c, TRACE_WORDS_USED) - 32 + lane), new)
        if half(o, 6) == NONE:
            continue
        comptime if n == 8:
            set[DType.uint64](to, 8 * lane, old)
        else:
            set[DType.uint32](to, 4 * lane, old.cast[DType.uint32]())
    if alone and half(o, 6) != NONE:
        var last = 31 - Int(count_leading_zeros(mask))
        comptime if n == 8:
            put(to, SIMD[DType.uint64, 32](get[DType.uint64](to, 8 * last)))
        else:
            put(to, Lanes(get[DType.uint32](to, 4 * last)))
    return changed
