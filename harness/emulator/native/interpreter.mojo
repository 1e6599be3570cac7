# The native engine's interpreter: runs stretches of micro-operations on the 32-lane registers of one fragment of a warp.
#
# A register is a row of 256 bytes, the lanes from its start. For each there are a mark, which says whether all lanes
# agree and whether some are undefined, the stamp of its last change, the lanes that are undefined and the number of what
# is said of them. `stretch`
# goes from block to block until it has to stop, and rolls back what is out of the ordinary. `run` does so for one
# fragment, `run_turns` gives fragments their turns, and splits and joins them, for as long as Python is not needed.
# @LAYOUT@ stands for the constants of `layout.py`, @HANDLERS@ for the operations of `operations.py`.

from std.math import sqrt
from std.bit import bit_reverse, count_leading_zeros, count_trailing_zeros, pop_count

comptime Bytes = Pointer[UInt8, MutUntrackedOrigin]
comptime Lanes = SIMD[DType.uint32, 32]
comptime FULL = UInt32(0xFFFFFFFF)
comptime NONE = 0xFFFF
comptime ROW = 256
comptime RESERVED = UInt64(1024)
comptime STORED = 1

@LAYOUT@
@EXCHANGES@
# Flags of a micro-operation.
comptime NEGATED = 1
comptime WIDE = 2
comptime WIDE_ADDRESS = 4
comptime FIRST_ITEM = 8
comptime NO_LOG = 16
comptime CHOOSES = 32
comptime ALIGNED = 64
comptime COUNTED = 128
comptime SPREADS = 256

# What Python takes for a turn, a barrier and a shuffle, in the units of an operation's weight.
comptime TURN_WEIGHT = 8
comptime BARRIER_WEIGHT = 12
comptime EXCHANGE_WEIGHT = 20

comptime SPACE_SHARED = 0
comptime SPACE_GLOBAL = 1
comptime SPACE_PARAM = 2


@inline(.always)
def load[t: DType](p: Bytes) -> SIMD[t, 32]:
    return p.unsafe_bitcast[Scalar[t]]().unsafe_load[width=32, alignment=32]()


@inline(.always)
def put[t: DType](p: Bytes, v: SIMD[t, 32]):
    p.unsafe_bitcast[Scalar[t]]().unsafe_store[alignment=32](v)


@inline(.always)
def get[t: DType](p: Bytes, at: Int = 0) -> Scalar[t]:
    return p.unsafe_offset(at).unsafe_bitcast[Scalar[t]]().unsafe_load[alignment=1]()


@inline(.always)
def set[t: DType](p: Bytes, at: Int, v: Scalar[t]):
    p.unsafe_offset(at).unsafe_bitcast[Scalar[t]]().unsafe_store[alignment=1](v)


@inline(.always)
def half(p: Bytes, at: Int) -> Int:
    return Int(get[DType.uint16](p, at))


@inline(.always)
def field(c: Bytes, number: Int) -> UInt64:
    return get[DType.uint64](c, 8 * number)


@inline(.always)
def pointer(c: Bytes, number: Int) -> Bytes:
    return c.unsafe_offset(8 * number).unsafe_bitcast[Bytes]()[]


@inline(.always)
def look(table: Bytes, number: Int) -> Int:
    """One of a table's fields of 8 bytes."""
    return Int(get[DType.int64](table, 8 * number))


@inline(.always)
def note(table: Bytes, number: Int, value: Int):
    set[DType.int64](table, 8 * number, Int64(value))


@inline(.always)
def fragment(c: Bytes, number: Int) -> Bytes:
    return pointer(c, FRAGMENTS).unsafe_offset(8 * FRAGMENT_FIELDS * number)


@inline(.always)
def lane_bits() -> SIMD[DType.uint32, 32]:
    return SIMD[DType.uint32, 32](
        1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7,
        1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15,
        1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23,
        1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, 1 << 31,
    )


@inline(.always)
def mask_of(p: Bytes) -> UInt32:
    """The lanes in which a predicate holds."""
    return load[DType.uint32](p).ne(0).select(lane_bits(), SIMD[DType.uint32, 32](0)).reduce_or()


@inline(.always)
def ramp[t: DType](step: Int) -> SIMD[t, 32]:
    comptime lanes = SIMD[t, 32](
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    )
    return lanes * SIMD[t, 32](Scalar[t](step))


# ---- operations that are more than an expression ----


@inline(.always)
def bit_field(a: Lanes, position: Lanes, length: Lanes) -> Lanes:
    var shifted = position.lt(32).select(a >> (position & 31), Lanes(0))
    return length.lt(32).select(shifted & ((Lanes(1) << (length & 31)) - 1), shifted)


@inline(.always)
def permute_bytes(a: Lanes, b: Lanes, selector: Lanes) -> Lanes:
    var pool = a.cast[DType.uint64]() | (b.cast[DType.uint64]() << 32)
    var found = Lanes(0)
    comptime for place in range(4):
        var chosen = (selector >> UInt32(4 * place)) & 15
        var byte = ((pool >> ((chosen & 7) * 8).cast[DType.uint64]()) & 255).cast[DType.uint32]()
        found |= chosen.lt(8).select(byte, (byte >> 7) * 255) << UInt32(8 * place)
    return found


@inline(.always)
def to_bf16(a: Lanes) -> Lanes:
    var rounded = (a + 0x7FFF + ((a >> 16) & 1)) >> 16
    return (a & 0x7FFFFFFF).gt(0x7F800000).select(Lanes(0x7FFF), rounded)


@inline(.always)
def to_f16(a: Lanes) -> Lanes:
    var numbers = SIMD[DType.float32, 32](from_bits=a)
    var bits = numbers.cast[DType.float16]().to_bits[DType.uint16]().cast[DType.uint32]()
    return (a & 0x7FFFFFFF).gt(0x7F800000).select(Lanes(0x7FFF), bits)


@inline(.always)
def from_f16(a: Lanes) -> SIMD[DType.float32, 32]:
    return SIMD[DType.float16, 32](from_bits=a.cast[DType.uint16]()).cast[DType.float32]()


comptime Floats = SIMD[DType.float32, 32]
comptime Doubles = SIMD[DType.float64, 32]


@inline(.always)
def canonical(a: Floats) -> Lanes:
    """The bits of numbers; every NaN is the same."""
    return a.eq(a).select(a.to_bits[DType.uint32](), Lanes(0x7FFFFFFF))


@inline(.always)
def flush(a: Floats) -> Floats:
    """Subnormal numbers as zeros of their sign."""
    var bits = a.to_bits[DType.uint32]()
    return Floats(from_bits=(bits & 0x7F800000).eq(0).select(bits & 0x80000000, bits))


@inline(.always)
def quotient(a: Floats, b: Floats) -> Floats:
    """Of div.approx: of a divisor beyond 2**126 the quotient is a zero, or NaN of an infinity."""
    var bits = b.to_bits[DType.uint32]() & 0x7FFFFFFF
    var huge = bits.gt(0x7E800000) & bits.lt(0x7F800000)
    var sign = Floats(from_bits=(b.to_bits[DType.uint32]() & 0x80000000) | 0x3F800000)
    return huge.select(a * 0 * sign, a / b)


@inline(.always)
def root(a: Floats) -> Floats:
    return sqrt(a)


@inline(.always)
def one_by_root(a: Floats) -> Floats:
    return (1 / sqrt(a.cast[DType.float64]())).cast[DType.float32]()


@inline(.always)
def is_negative(a: Floats) -> SIMD[DType.bool, 32]:
    return a.to_bits[DType.uint32]().ge(0x80000000)


@inline(.always)
def least(a: Floats, b: Floats) -> Floats:
    """The smaller of two numbers, -0 before +0; a NaN loses."""
    var first = a.lt(b) | (a.eq(b) & is_negative(a)) | ~b.eq(b)
    return first.select(a, b)


@inline(.always)
def greatest(a: Floats, b: Floats) -> Floats:
    var first = a.gt(b) | (a.eq(b) & ~is_negative(a)) | ~b.eq(b)
    return first.select(a, b)


@inline(.always)
def or_nan(found: Floats, a: Floats, b: Floats) -> Floats:
    return (a.eq(a) & b.eq(b)).select(found, Floats(from_bits=Lanes(0x7FFFFFFF)))


@inline(.always)
def is_certain(a: Doubles, mask: UInt32) -> Bool:
    """Whether numbers that are off by less than 2**-48 of themselves are rounded to f32 as the exact ones are."""
    var low = (a * (1 - 2.0**-48)).cast[DType.float32]().to_bits[DType.uint32]()
    var high = (a * (1 + 2.0**-48)).cast[DType.float32]().to_bits[DType.uint32]()
    return (low.eq(high) | (lane_bits() & Lanes(mask)).eq(0)).reduce_and()


@inline(.never)
def power_of_two(a: Floats) -> Doubles:
    """2 to the power of a number: of its fraction by the exponential series, to 2**-52 or so."""
    var x = min(max(a, Floats(-1000)), Floats(1000)).cast[DType.float64]()
    var whole = round(x)
    var f = (x - whole) * 0.6931471805599453
    var sum = Doubles(1)
    comptime for back in range(13):
        sum = 1 + f * sum * (1.0 / Float64(13 - back))
    var scale = Doubles(from_bits=(whole.cast[DType.int64]() + 1023).cast[DType.uint64]() << 52)
    return a.eq(a).select(sum * scale, a.cast[DType.float64]())


@inline(.never)
def logarithm(a: Floats) -> Doubles:
    """The logarithm to base 2: the exponent, and the series of the inverse hyperbolic tangent for the fraction."""
    var bits = a.cast[DType.float64]().to_bits[DType.uint64]()
    var exponent = (bits >> 52).cast[DType.int64]() - 1023
    var m = Doubles(from_bits=(bits & 0xFFFFFFFFFFFFF) | (UInt64(1023) << 52))
    var large = m.gt(1.4142135623730951)
    m = large.select(m * 0.5, m)
    exponent = large.select(exponent + 1, exponent)
    var s = (m - 1) / (m + 1)
    var square = s * s
    var sum = Doubles(0)
    comptime for back in range(14):
        sum = sum * square + 1.0 / Float64(27 - 2 * back)
    var found = exponent.cast[DType.float64]() + s * sum * 2.8853900817779268
    var zero = Doubles(0)
    found = a.eq(0).select(-1 / zero, found)
    found = a.lt(0).select(zero / zero, found)
    return (a.eq(a) & a.ne(Floats(1) / 0)).select(found, a.cast[DType.float64]())


# ---- what lanes do together ----


@inline(.never)
def exchange(op: Int, f: Bytes, to: Bytes, a: Bytes, b: Bytes, x: Bytes, agrees: Bool, mask: UInt32, members: UInt32, mut undefined: UInt32) -> Int:
    """One of shfl, vote, redux and elect; the mark of its result, or -1: something is out of the ordinary.

    undefined: the lanes of `a` that are, which become those of the result.
    """
    if mask & ~members != 0 or members & UInt32(look(f, FRAGMENT_ALIVE)) & ~mask != 0:
        return -1
    var active = (lane_bits() & Lanes(mask)).ne(0)
    if op <= SHFL_BFLY:
        var lanes = ramp[DType.uint32](1).cast[DType.int32]()
        var by = (load[DType.uint32](b) & 31).cast[DType.int32]()
        var bound = get[DType.uint32](x)
        var clamp = (bound & 31).cast[DType.int32]()
        var segment = ((bound >> 8) & 31).cast[DType.int32]()
        var lowest = lanes & segment
        var highest = lowest | (clamp & ~segment & 31)
        var wanted = lanes ^ by
        if op == SHFL_IDX:
            wanted = lowest | (by & ~segment & 31)
        elif op == SHFL_UP:
            wanted = lanes - by
        elif op == SHFL_DOWN:
            wanted = lanes + by
        var inside = wanted.ge(highest) if op == SHFL_UP else wanted.le(highest)
        var chosen = inside.select(wanted, lanes) & 31
        var values = load[DType.uint32](a)
        var found = Lanes(0)
        var missing = UInt32(0)
        for lane in range(32):
            var source = Int(chosen[lane])
            if (mask >> UInt32(lane)) & 1 != 0 and (mask >> UInt32(source)) & 1 == 0:
                return -1
            found[lane] = values[source]
            missing |= ((undefined >> UInt32(source)) & 1) << UInt32(lane)
        put(to, found)
        undefined = missing
        return POISON if missing != 0 else UNIFORM if agrees else VARIED
    if undefined & mask != 0:
        return -1
    undefined = 0
    if op <= VOTE_BALLOT:
        var ballot = mask_of(a) & mask
        var answer = ballot
        if op == VOTE_ALL:
            answer = UInt32(ballot == mask)
        elif op == VOTE_ANY:
            answer = UInt32(ballot != 0)
        elif op == VOTE_UNI:
            answer = UInt32(ballot == mask or ballot == 0)
        put(to, Lanes(answer))
        return UNIFORM
    if op == ELECT:
        put(to, (lane_bits() & Lanes(mask & (~mask + 1))).ne(0).cast[DType.uint32]())
        return VARIED
    var values = load[DType.uint32](a)
    if op >= REDUX_MIN_F32:
        put(to, reduce_floats(op, values, active))
        return UNIFORM
    var result = UInt32(0)
    if op == REDUX_ADD:
        result = active.select(values, Lanes(0)).reduce_add()
    elif op == REDUX_OR:
        result = active.select(values, Lanes(0)).reduce_or()
    elif op == REDUX_AND:
        result = active.select(values, Lanes(FULL)).reduce_and()
    elif op == REDUX_XOR:
        for lane in range(32):
            result ^= values[lane] if active[lane] else UInt32(0)
    elif op == REDUX_MIN_U32:
        result = active.select(values, Lanes(FULL)).reduce_min()
    elif op == REDUX_MAX_U32:
        result = active.select(values, Lanes(0)).reduce_max()
    elif op == REDUX_MIN_S32:
        var numbers = values.cast[DType.int32]()
        result = active.select(numbers, SIMD[DType.int32, 32](0x7FFFFFFF)).reduce_min().cast[DType.uint32]()
    else:
        var numbers = values.cast[DType.int32]()
        result = active.select(numbers, SIMD[DType.int32, 32](-0x80000000)).reduce_max().cast[DType.uint32]()
    put(to, Lanes(result))
    return UNIFORM


@inline(.always)
def reduce_floats(op: Int, values: Lanes, active: SIMD[DType.bool, 32]) -> Lanes:
    """The least or the greatest number of the lanes, in all lanes."""
    var numbers = Floats(from_bits=active.select(values, Lanes(0x7FFFFFFF)))
    var any_nan = (active & ~numbers.eq(numbers)).reduce_or()
    comptime for step in range(5):
        comptime distance = 1 << step
        var others = numbers
        comptime for lane in range(32):
            others[lane] = numbers[lane ^ distance]
        if op == REDUX_MIN_F32 or op == REDUX_MIN_NAN_F32:
            numbers = least(numbers, others)
        else:
            numbers = greatest(numbers, others)
    if any_nan and (op == REDUX_MIN_NAN_F32 or op == REDUX_MAX_NAN_F32):
        return Lanes(0x7FFFFFFF)
    return canonical(numbers)


# ---- memory ----


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


# ---- what is traced ----


@inline(.always)
def trace_room(c: Bytes) -> Bool:
    """Whether there is room for one more entry, whatever it is."""
    var words = look(c, TRACE_WORDS_ROOM) - look(c, TRACE_WORDS_USED)
    if look(c, TRACE) == 0:
        return True
    return look(c, TRACED) < look(c, TRACE_ROOM) and words >= 320 and look(c, TRACE_CHUNKS_ROOM) - look(c, TRACE_CHUNKS_USED) >= 128


@inline(.always)
def trace_is_half_full(c: Bytes) -> Bool:
    if look(c, TRACE) == 0:
        return False
    return (
        2 * look(c, TRACED) > look(c, TRACE_ROOM)
        or 2 * look(c, TRACE_WORDS_USED) > look(c, TRACE_WORDS_ROOM)
        or 2 * look(c, TRACE_CHUNKS_USED) > look(c, TRACE_CHUNKS_ROOM)
    )


@inline(.always)
def new_entry(c: Bytes, kind: Int, f: Bytes, mask: UInt32, site: Int, value: Int) -> Bytes:
    """Appends an entry. There is room: it was looked for before the turn, or the instruction, began."""
    var number = look(c, TRACED)
    note(c, TRACED, number + 1)
    var e = pointer(c, TRACE).unsafe_offset(TRACE_BYTES * number)
    set[DType.uint16](e, 0, UInt16(kind))
    set[DType.uint16](e, 2, 0)
    set[DType.int32](e, 4, Int32(look(f, FRAGMENT_WARP)))
    set[DType.uint32](e, 8, mask)
    set[DType.int32](e, 12, Int32(site))
    set[DType.int64](e, 16, Int64(look(f, FRAGMENT_STAMP)))
    set[DType.int64](e, 24, Int64(value))
    set[DType.int32](e, 32, Int32(look(c, TRACE_CHUNKS_USED)))
    set[DType.int32](e, 36, 0)
    set[DType.int64](e, 40, 0)
    return e


@inline(.always)
def trace(c: Bytes, kind: Int, f: Bytes, mask: UInt32, site: Int, value: Int, number: Int):
    """Writes down what has happened to a fragment, if anybody listens."""
    if look(c, TRACE) != 0:
        var e = new_entry(c, kind, f, mask, site, value)
        set[DType.int32](e, 36, Int32(number))


@inline(.always)
def trace_word(c: Bytes, word: UInt64):
    var used = look(c, TRACE_WORDS_USED)
    set[DType.uint64](pointer(c, TRACE_WORDS), 8 * used, word)
    note(c, TRACE_WORDS_USED, used + 1)


@inline(.always)
def trace_words(c: Bytes, words: SIMD[DType.uint64, 32]):
    var used = look(c, TRACE_WORDS_USED)
    pointer(c, TRACE_WORDS).unsafe_offset(8 * used).unsafe_bitcast[UInt64]().unsafe_store[alignment=8](words)
    note(c, TRACE_WORDS_USED, used + 32)


@inline(.always)
def trace_chunk(c: Bytes, chunk: Int):
    var used = look(c, TRACE_CHUNKS_USED)
    set[DType.int32](pointer(c, TRACE_CHUNKS), 4 * used, Int32(chunk))
    note(c, TRACE_CHUNKS_USED, used + 1)


@inline(.always)
def trace_chunks(c: Bytes, addresses: SIMD[DType.uint64, 32], mask: UInt32, size: Int):
    """Writes down the chunks of 16 bytes of an aligned access of so many bytes a lane, and which of them it covers."""
    var last = -1
    var covered = 0
    for lane in range(32):
        if (mask >> UInt32(lane)) & 1 == 0:
            continue
        var address = Int(addresses[lane])
        if size >= 16:
            for at in range(0, size, 16):
                trace_chunk(c, ((address + at) >> 4) + WHOLE_CHUNK)
            continue
        if address >> 4 != last:
            last = address >> 4
            covered = 0
            trace_chunk(c, last)
        if address & 15 == covered:
            covered += size
            if covered == 16:
                set[DType.int32](pointer(c, TRACE_CHUNKS), 4 * look(c, TRACE_CHUNKS_USED) - 4, Int32(last + WHOLE_CHUNK))


@inline(.never)
def trace_access(c: Bytes, f: Bytes, o: Bytes, a: Bytes, agrees: Bool, b: Bytes, alike: Bool, mask: UInt32) -> Bool:
    """Writes down an access that is about to be made. False: there is no room.

    An entry's words are the address, or the lanes' addresses, and of each item that is stored the value, or the lanes'.
    """
    var flags = half(o, 4)
    var op = half(o, 0)
    var e: Bytes
    if flags & FIRST_ITEM != 0:
        if not trace_room(c):
            return False
        e = new_entry(c, EVENT_ACCESS, f, mask, Int(get[DType.int32](o, 24)), look(c, TRACE_WORDS_USED))
        var shared = (op - FIRST_ACCESS) % (FIRST_STORE - FIRST_ACCESS) < 4
        var window = field(c, WINDOW) if shared else UInt64(0)
        var size = half(o, 14)
        if flags & WIDE_ADDRESS != 0:
            set[DType.uint16](e, 2, 4)
        var addresses: SIMD[DType.uint64, 32]
        var lanes = mask
        if agrees:
            set[DType.uint16](e, 2, UInt16(half(e, 2) | 1))
            var address = address_of(a, 0, o, flags & WIDE_ADDRESS != 0) - window
            addresses = SIMD[DType.uint64, 32](address)
            lanes = mask & (~mask + 1)
            trace_word(c, address)
        else:
            if flags & WIDE_ADDRESS != 0:
                addresses = load[DType.uint64](a) + get[DType.uint64](o, 16)
            else:
                addresses = (load[DType.uint32](a) + get[DType.uint32](o, 16)).cast[DType.uint64]()
            addresses -= window
            trace_words(c, addresses)
        if shared:
            trace_chunks(c, addresses, lanes, size)
        elif (op - FIRST_ACCESS) % (FIRST_STORE - FIRST_ACCESS) < 8:
            var k = find_allocation(c, addresses[Int(count_trailing_zeros(lanes))], UInt64(size))
            if k >= 0:
                var base = get[DType.uint64](pointer(c, ALLOCATIONS), 32 * k)
                var end = get[DType.uint64](pointer(c, ALLOCATIONS), 32 * k + 8) - UInt64(size)
                addresses -= base
                if end < (1 << 34) and ((lane_bits() & Lanes(lanes)).eq(0) | addresses.le(end)).reduce_and():
                    set[DType.uint64](e, 40, base)
                    trace_chunks(c, addresses, lanes, size)
    else:
        e = pointer(c, TRACE).unsafe_offset(TRACE_BYTES * (look(c, TRACED) - 1))
    if op >= FIRST_STORE:
        var item = Int(get[DType.int32](e, 36))
        set[DType.int32](e, 36, Int32(item + 1))
        var wide = flags & WIDE != 0
        var about = half(e, 2) | (2 if wide else 0)
        if alike:
            about |= 256 << item
            trace_word(c, get[DType.uint64](b) if wide else get[DType.uint32](b).cast[DType.uint64]())
        elif wide:
            trace_words(c, load[DType.uint64](b))
        else:
            trace_words(c, load[DType.uint32](b).cast[DType.uint64]())
        set[DType.uint16](e, 2, UInt16(about))
    return True


@inline(.always)
def trace_back(c: Bytes, traced: Int, words: Int, chunks: Int):
    """Takes back what was traced since there was so much."""
    note(c, TRACED, traced)
    note(c, TRACE_WORDS_USED, words)
    note(c, TRACE_CHUNKS_USED, chunks)


# ---- registers ----


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
    """Where a file has the undefined lanes of a row."""
    return (ROW + 5) * slots + 4 * slot


@inline(.always)
def origin_at(slots: Int, slot: Int) -> Int:
    return (ROW + 9) * slots + 4 * slot


@inline(.always)
def mark_of(file: Bytes, slots: Int, slot: Int) -> Int:
    return Int(get[DType.uint8](file, ROW * slots + slot))


@inline(.never)
def missing_lanes(file: Bytes, slots: Int, slot: Int) -> UInt32:
    """The lanes of a row that are undefined."""
    return get[DType.uint32](file, undefined_at(slots, slot)) if mark_of(file, slots, slot) == POISON else UInt32(0)


@inline(.never)
def spread(file: Bytes, slots: Int, o: Bytes, mut undefined: UInt32, mut origin: UInt32) -> Bool:
    """What is undefined in a result: the lanes in which a source is. False: Python must see to it."""
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
    """The mark of a row that gets some lanes of one that is marked as `new`."""
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
    """Lists the rows that were changed under a stamp and that are live at a location."""
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
    note(out, SAID_SCALARS, scalars)
    note(out, SAID_ROWS32, rows32)
    note(out, SAID_ROWS64, rows64)
    note(out, SAID_PREDICATES, predicates)
    note(out, SAID_POISONS, poisons)


# ---- windows in which it is watched whether a loop only polls ----


@inline(.never)
def keep_rows(c: Bytes, file: Bytes, block: Int):
    """Writes down the registers that are live at the start of a block."""
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(Int(get[DType.int32](where, 4))):
        var slot = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * (first + k))) & 0xFFFF
        copy_row(pointer(c, WATCHED_ROWS).unsafe_offset(ROW * k), file.unsafe_offset(ROW * slot))


@inline(.never)
def are_as_kept(c: Bytes, file: Bytes, block: Int) -> Bool:
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(Int(get[DType.int32](where, 4))):
        var slot = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * (first + k))) & 0xFFFF
        var now = load[DType.uint64](file.unsafe_offset(ROW * slot))
        if not now.eq(load[DType.uint64](pointer(c, WATCHED_ROWS).unsafe_offset(ROW * k))).reduce_and():
            return False
    return True


# ---- a stretch ----


@inline(.never)
def save_undefined(kept: Bytes, k: Int, file: Bytes, slots: Int, slot: Int, saves: Bool):
    """Keeps what is undefined in a row, or puts it back."""
    if saves:
        set[DType.uint32](kept, 8 * k, get[DType.uint32](file, undefined_at(slots, slot)))
        set[DType.uint32](kept, 8 * k + 4, get[DType.uint32](file, origin_at(slots, slot)))
    else:
        set[DType.uint32](file, undefined_at(slots, slot), get[DType.uint32](kept, 8 * k))
        set[DType.uint32](file, origin_at(slots, slot), get[DType.uint32](kept, 8 * k + 4))


@inline(.never)
def stretch(c: Bytes, f: Bytes, start: Int, budget: Int, window: Int, alone: Bool) -> Int:
    """Runs a fragment from an operation on, for so many blocks at most; returns why it has stopped.

    window: 0, or a number of blocks that are run all of them, or else not at all: if anything speaks against it, or
    if the loop may be one that only polls. alone: what concerns other fragments is out of the ordinary.
    """
    var file = f.unsafe_bitcast[Bytes]()[]
    var slots = look(c, ROWS)
    var mask = UInt32(look(f, FRAGMENT_MASK))
    var join = look(f, FRAGMENT_JOIN_BLOCK)
    var marks = file.unsafe_offset(ROW * slots)
    var stamps = marks.unsafe_offset(slots)
    var stamp = UInt32(look(f, FRAGMENT_STAMP))
    var operations = pointer(c, OPERATIONS)
    var scratch = pointer(c, SCRATCH)
    var saved = pointer(c, SAVED_ROWS)
    var begin = operations
    var pc = start
    var block = look(f, FRAGMENT_BLOCK)
    var ran = 0
    var changes = 0
    var changes_before = 0
    var weight = 0
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
        if op >= 1000:
            if op == 1000:
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
                    set[DType.uint8](saved, ROW * slots + k, mark)
                    if mark == POISON:
                        save_undefined(saved.unsafe_offset((ROW + 1) * slots), k, file, slots, slot, True)
                continue
            if op == 1003:
                status = ANSWER_LEFT
                location = half(o, 14)
                following = Int(get[DType.int32](o, 28))
                break
            if op == 1004:
                if alone:
                    status = ANSWER_LEFT
                    location = half(begin, 14)
                    following = Int(get[DType.int32](begin, 28))
                    break
                var passes = -1 if window != 0 else pass_barrier(c, f, o, file, marks)
                weight += BARRIER_WEIGHT
                if passes == 1:
                    continue
                status = ANSWER_WAITS if passes == 0 else ANSWER_FAILED
                location = block
                break
            following = Int(get[DType.int32](o, 24))
            if op == 1002:
                if missing_lanes(file, slots, half(o, 8)) & mask != 0:
                    status = ANSWER_FAILED
                    break
                var yes = mask_of(file.unsafe_offset(ROW * half(o, 8))) & mask
                if yes == 0:
                    following = Int(get[DType.int32](o, 28))
                elif yes != mask:
                    status = ANSWER_DIVERGES
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
                if following == kept_block and changes == kept_changes and are_as_kept(c, file, following):
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
                status = ANSWER_FAILED
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
        if op >= 900:
            if active == 0:
                continue
            weight += 5
            var same = get[DType.uint8](marks, a) == UNIFORM
            if missing_lanes(file, slots, a) & active != 0:
                status = ANSWER_FAILED
                break
            var alike = get[DType.uint8](marks, b) == UNIFORM
            if traces and not trace_access(c, f, o, pa, same, pb, alike, active):
                status = ANSWER_FAILED
                break
            var result = -1
@ACCESSES@
            if result == -1:
                status = ANSWER_FAILED
                break
            if result == STORED:
                changes += Int(flags & FIRST_ITEM != 0)
                continue
            loads += Int(flags & FIRST_ITEM != 0)
            mark = result
        elif op >= 800:
            weight += EXCHANGE_WEIGHT
            var members = half(o, 14)
            var result = -1
            var by = get[DType.uint8](marks, b)
            var bounded = by != POISON and get[DType.uint8](marks, x) == UNIFORM
            if get[DType.uint8](marks, members) == UNIFORM and (op > SHFL_BFLY or bounded):
                undefined = missing_lanes(file, slots, a)
                if undefined != 0:
                    origin = get[DType.uint32](file, origin_at(slots, a))
                var same = get[DType.uint8](marks, a) == UNIFORM
                if op == SHFL_IDX and by == UNIFORM and get[DType.uint32](px) == 31:
                    same = True
                var named = get[DType.uint32](file, ROW * members)
                result = exchange(op, f, target, pa, pb, px, same, mask, named, undefined)
            if result == -1 or (traces and not trace_room(c)):
                status = ANSWER_FAILED
                break
            trace(c, EVENT_SYNCED, f, mask, Int(get[DType.int32](o, 24)), Int(get[DType.uint32](file, ROW * members)), 0)
            mark = result
        else:
            var ua = get[DType.uint8](marks, a)
            var ub = get[DType.uint8](marks, b)
            var ux = get[DType.uint8](marks, x)
            mark = Int(ua & ub & ux)
            if flags & CHOOSES != 0:
                mark = Int(ux & (ua if get[DType.uint32](px) != 0 else ub)) if ux == UNIFORM else mark & VARIED
            weight += 2 - 2 * (mark & 1)
@HANDLERS@
            else:
                status = ANSWER_FAILED
                break
            if mark == POISON and not spread(file, slots, o, undefined, origin):
                status = ANSWER_FAILED
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
                    status = ANSWER_FAILED
                    break
            else:
                mark = VARIED
        elif mark == POISON:
            if window != 0:
                status = ANSWER_FAILED
                break
            set[DType.uint32](file, undefined_at(slots, d), undefined)
            set[DType.uint32](file, origin_at(slots, d), origin)
        set[DType.uint8](marks, d, UInt8(mark))
        set[DType.uint32](stamps, 4 * d, stamp)
    var out = pointer(c, OUT)
    if window != 0:
        var over = status == ANSWER_STOPPED and ran + 1 == window and location == following
        if over and following == kept_block and changes == kept_changes:
            over = not are_as_kept(c, file, following)
        if not over or (changes == 0 and loads > (4 if alone else 0)):
            undo_stores(c)
            trace_back(c, first_traced, first_words, first_chunks)
            return ANSWER_REFUSED
        var counts = pointer(c, COUNTS)
        set[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * ran, Int32(block))
        for k in range(window):
            var one = Int(get[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * k))
            set[DType.int64](counts, 8 * one, get[DType.int64](counts, 8 * one) + 1)
        note(out, SAID_LOADS, loads)
    if status == ANSWER_FAILED:
        undo_stores(c)
        trace_back(c, traced, words, chunks)
        var list = pointer(c, SAVED_SLOTS).unsafe_offset(4 * Int(get[DType.int64](begin, 16)))
        for k in range(half(begin, 6)):
            var slot = Int(get[DType.int32](list, 4 * k))
            copy_row(file.unsafe_offset(ROW * slot), saved.unsafe_offset(ROW * k))
            var mark = get[DType.uint8](saved, ROW * slots + k)
            set[DType.uint8](marks, slot, mark)
            if mark == POISON:
                save_undefined(saved.unsafe_offset((ROW + 1) * slots), k, file, slots, slot, False)
        changes = changes_before
        location = half(begin, 14)
        following = Int(get[DType.int32](begin, 28))
        weight = 0 if ran == 0 else weight
    note(out, SAID_BLOCK, block)
    note(out, SAID_FOLLOWING, following)
    note(out, SAID_RAN, ran)
    note(out, SAID_CHANGES, changes)
    note(out, SAID_WEIGHT, weight)
    note(out, SAID_LOCATION, location)
    note(out, SAID_AT, pc - 1)
    return status


@export
def run(c: Bytes, number: Int, start: Int, budget: Int, window: Int) abi("C") -> Int:
    """Runs one fragment from an operation on, and hands over what it has changed."""
    if number < 0:
        return 0
    var f = fragment(c, number)
    new_stamp(c, f)
    var status = stretch(c, f, start, budget, window, True)
    if status != ANSWER_REFUSED:
        _ = settle(c, number, look(pointer(c, OUT), SAID_LOCATION))
    note(pointer(c, OUT), SAID_STATUS, status)
    return status


@export
def settle(c: Bytes, number: Int, location: Int) abi("C") -> Int:
    """Hands over the rows of a fragment that were changed since that was last done."""
    if number < 0:
        return 0
    var f = fragment(c, number)
    hand_over(c, f.unsafe_bitcast[Bytes]()[], UInt32(look(f, FRAGMENT_STAMP)), location)
    return 0


# ---- barriers ----


@inline(.never)
def pass_barrier(c: Bytes, f: Bytes, o: Bytes, file: Bytes, marks: Bytes) -> Int:
    """Whether a fragment gets past bar.sync. 1: it does; 0: it waits; -1: something is odd, and nothing is done."""
    var flags = half(o, 4)
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * look(f, FRAGMENT_CTA))
    var mask = look(f, FRAGMENT_MASK)
    if flags & ALIGNED != 0 and mask != look(f, FRAGMENT_ALIVE):
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
    if look(b, BARRIER_OTHERS) != 0:
        note(b, BARRIER_OTHERS, 0)
        push(c, -1 - (look(f, FRAGMENT_CTA) * NAMED_BARRIERS + number))
    var next = look(b, BARRIER_FIRST)
    while next >= 0:
        var waiter = fragment(c, next)
        note(waiter, FRAGMENT_STATE, STATE_READY)
        push(c, next)
        next = look(waiter, FRAGMENT_NEXT)
    note(b, BARRIER_FIRST, -1)
    return 1


@inline(.always)
def push(c: Bytes, number: Int):
    """Appends a fragment to the queue of those that are ready."""
    var tail = look(c, TAIL)
    set[DType.int32](pointer(c, QUEUE), 4 * tail, Int32(number))
    note(c, TAIL, tail + 1)


@inline(.always)
def new_stamp(c: Bytes, f: Bytes):
    var stamp = look(c, STAMP) + 1
    note(c, STAMP, stamp)
    note(f, FRAGMENT_STAMP, stamp)


# ---- splits and joins ----


@inline(.always)
def touch(c: Bytes, number: Int):
    """Notes that Python must be told of a fragment."""
    var f = fragment(c, number)
    if look(f, FRAGMENT_IS_TOUCHED) == 0:
        note(f, FRAGMENT_IS_TOUCHED, 1)
        var count = look(c, TOUCHED_COUNT)
        set[DType.int32](pointer(c, TOUCHED), 4 * count, Int32(number))
        note(c, TOUCHED_COUNT, count + 1)


@inline(.always)
def copy_lanes(c: Bytes, to: Bytes, source: Bytes, packed: Int, lane: Int):
    """A row of another fragment, or of one lane of it."""
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
    """A new fragment with the rows of another that are live at a block; if it has one lane, all lanes are like that."""
    var left = look(c, FREE_COUNT) - 1
    note(c, FREE_COUNT, left)
    var number = Int(get[DType.int32](pointer(c, FREE), 4 * left))
    var new = fragment(c, number)
    new_stamp(c, new)
    note(new, FRAGMENT_MASK, mask)
    note(new, FRAGMENT_ALIVE, look(f, FRAGMENT_ALIVE))
    note(new, FRAGMENT_CTA, look(f, FRAGMENT_CTA))
    note(new, FRAGMENT_WARP, look(f, FRAGMENT_WARP))
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
    note(c, BORN, look(c, BORN) + 1)
    note(new, FRAGMENT_BORN, look(c, BORN))
    var lane = Int(count_trailing_zeros(UInt32(mask))) if mask & (mask - 1) == 0 else -1
    var file = new.unsafe_bitcast[Bytes]()[]
    var source = f.unsafe_bitcast[Bytes]()[]
    for k in range(look(c, FIXED_COUNT)):
        copy_lanes(c, file, source, Int(get[DType.int32](pointer(c, FIXED_ROWS), 4 * k)), lane)
    if block >= 0:
        var slots = look(c, ROWS)
        var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
        var first = Int(get[DType.int32](where))
        for k in range(first, first + Int(get[DType.int32](where, 4))):
            var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k))
            copy_lanes(c, file, source, packed, lane)
            set[DType.uint32](file, (ROW + 1) * slots + 4 * (packed & 0xFFFF), UInt32(look(new, FRAGMENT_STAMP)))
    return number


@inline(.always)
def bury(c: Bytes, number: Int):
    """A fragment is no more: it has split, or become one with others."""
    var f = fragment(c, number)
    note(f, FRAGMENT_STATE, STATE_GONE)
    if look(f, FRAGMENT_HAS_OBJECT) != 0:
        touch(c, number)
    else:
        var left = look(c, FREE_COUNT)
        set[DType.int32](pointer(c, FREE), 4 * left, Int32(number))
        note(c, FREE_COUNT, left + 1)


@inline(.never)
def split(c: Bytes, number: Int, block: Int, o: Bytes) -> Bool:
    """Makes two fragments of one at the branch that ends a block. False: Python must."""
    var f = fragment(c, number)
    var room = look(c, FREE_COUNT) >= 4 and look(c, QUEUE_ROOM) - look(c, TAIL) >= 2048
    if look(f, FRAGMENT_IS_COMPLETE) == 0 or look(c, JOIN_COUNT) >= look(c, JOIN_ROOM) or not room:
        return False
    var mask = look(f, FRAGMENT_MASK)
    var file = f.unsafe_bitcast[Bytes]()[]
    var yes = Int(mask_of(file.unsafe_offset(ROW * half(o, 8)))) & mask
    var join = look(f, FRAGMENT_JOIN)
    var join_block = look(f, FRAGMENT_JOIN_BLOCK)
    var meeting = Int(get[DType.int32](pointer(c, JOINS_OF_BLOCKS), 4 * block))
    if meeting >= 0:
        var new = look(c, JOIN_COUNT)
        note(c, JOIN_COUNT, new + 1)
        var j = pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * new)
        note(j, JOINPOINT_BLOCK, meeting)
        note(j, JOINPOINT_MASK, mask)
        note(j, JOINPOINT_ARRIVED, 0)
        note(j, JOINPOINT_FIRST, -1)
        note(j, JOINPOINT_COUNT, 0)
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


@inline(.never)
def arrive(c: Bytes, number: Int):
    """A fragment waits for its siblings; the last one to come makes one of all of them."""
    var f = fragment(c, number)
    var j = pointer(c, JOINS).unsafe_offset(8 * JOINPOINT_FIELDS * look(f, FRAGMENT_JOIN))
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
    """Takes over the lanes of another fragment in the rows that are live at a block."""
    var slots = look(c, ROWS)
    var file = to.unsafe_bitcast[Bytes]()[]
    var source = other.unsafe_bitcast[Bytes]()[]
    var lanes = (lane_bits() & Lanes(UInt32(look(other, FRAGMENT_MASK)))).ne(0)
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * block)
    var first = Int(get[DType.int32](where))
    for k in range(first, first + Int(get[DType.int32](where, 4))):
        var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k))
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


# ---- turns ----


@inline(.always)
def enter_cta(c: Bytes, number: Int):
    """Makes a CTA's memory that of the context."""
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * number)
    for k in range(6):
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
    """A whole warp leaves the kernel, if that ends nothing and nobody waits for its arrival; else it is Python's."""
    var f = fragment(c, number)
    var cta = pointer(c, CTAS).unsafe_offset(8 * CTA_FIELDS * look(f, FRAGMENT_CTA))
    var mask = look(f, FRAGMENT_MASK)
    var left = look(cta, CTA_ALIVE) - Int(pop_count(UInt32(mask)))
    if mask != look(f, FRAGMENT_ALIVE) or look(f, FRAGMENT_JOIN) != -1 or left == 0 or look(cta, CTA_IS_QUIET) == 0:
        return False
    for k in range(NAMED_BARRIERS):
        if look(cta, CTA_BARRIERS + BARRIER_FIELDS * k + BARRIER_ARRIVED) > 0:
            return False
    trace(c, EVENT_EXITED, f, UInt32(mask), -1, 0, 0)
    note(cta, CTA_ALIVE, left)
    note(c, CHANGES, look(c, CHANGES) + 1)
    note(f, FRAGMENT_STATE, STATE_LEFT)
    touch(c, number)
    return True


@inline(.never)
def pass_window(c: Bytes, f: Bytes, block: Int) -> Bool:
    """Runs the window after a turn, in which it is watched whether a loop only polls; False: it is Python's."""
    var blocks = look(c, WINDOW_BLOCKS)
    var start = Int(get[DType.int32](pointer(c, ENTRIES), 4 * block))
    if blocks == 0 or start < 0 or look(f, FRAGMENT_STREAK) + blocks >= look(c, SLICE):
        return False
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
        set[DType.uint32](kept, (ROW + 1) * slots + 4 * k, get[DType.uint32](file, (ROW + 1) * slots + 4 * slot))
    if stretch(c, f, start, blocks, blocks, False) == ANSWER_REFUSED:
        for k in range(count):
            var slot = Int(get[DType.int32](list, 4 * k)) & 0xFFFF
            copy_row(file.unsafe_offset(ROW * slot), kept.unsafe_offset(ROW * k))
            set[DType.uint8](file, ROW * slots + slot, get[DType.uint8](kept, ROW * slots + k))
            set[DType.uint32](file, (ROW + 1) * slots + 4 * slot, get[DType.uint32](kept, (ROW + 1) * slots + 4 * k))
        return False
    var following = look(pointer(c, OUT), SAID_FOLLOWING)
    note(c, CHANGES, look(c, CHANGES) + look(pointer(c, OUT), SAID_CHANGES))
    note(f, FRAGMENT_BLOCK, following)
    note(f, FRAGMENT_LOCATION, following)
    note(f, FRAGMENT_STREAK, look(f, FRAGMENT_STREAK) + blocks)
    return True


@inline(.always)
def turn(c: Bytes, number: Int) -> Int:
    """One turn of a fragment, or what is left of it. STOPPED: it is over, and what follows from it is done."""
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
            return ANSWER_STOPPED if leave(c, number) else ANSWER_EXITS
        if block == look(f, FRAGMENT_JOIN_BLOCK):
            if look(f, FRAGMENT_JOIN) < 0 or look(c, FREE_COUNT) == 0:
                return ANSWER_ARRIVES
            arrive(c, number)
            return ANSWER_STOPPED
        start = Int(get[DType.int32](pointer(c, ENTRIES), 4 * block))
        if start < 0:
            note(out, SAID_FOLLOWING, 0)
            return ANSWER_LEFT
    note(f, FRAGMENT_START, -1)
    note(f, FRAGMENT_RAN, 0)
    enter_cta(c, look(f, FRAGMENT_CTA))
    var status = stretch(c, f, start, look(c, TURN_BLOCKS) - ran, 0, False)
    block = look(out, SAID_BLOCK)
    ran += look(out, SAID_RAN)
    note(c, CHANGES, look(c, CHANGES) + look(out, SAID_CHANGES))
    note(c, WEIGHT, look(c, WEIGHT) + look(out, SAID_WEIGHT) + TURN_WEIGHT)
    note(f, FRAGMENT_BLOCK, block)
    note(f, FRAGMENT_LOCATION, look(out, SAID_LOCATION))
    if status == ANSWER_WAITS:
        var o = pointer(c, OPERATIONS).unsafe_offset(32 * look(out, SAID_AT))
        trace(c, EVENT_SUSPENDED, f, UInt32(look(f, FRAGMENT_MASK)), Int(get[DType.int32](o, 24)), 0, 0)
        note(f, FRAGMENT_STREAK, 0)
        waits(c, number)
        return ANSWER_STOPPED
    if status == ANSWER_DIVERGES:
        var at = look(out, SAID_AT)
        if split(c, number, block, pointer(c, OPERATIONS).unsafe_offset(32 * at)):
            count_block(c, block)
            return ANSWER_STOPPED
        note(f, FRAGMENT_START, at)
        note(f, FRAGMENT_RAN, ran)
        return ANSWER_CANNOT_SPLIT
    if status != ANSWER_STOPPED:
        note(f, FRAGMENT_RAN, ran)
        return status
    var following = look(out, SAID_FOLLOWING)
    count_block(c, block)
    if following < 0:
        return ANSWER_STOPPED if leave(c, number) else ANSWER_EXITS
    note(f, FRAGMENT_BLOCK, following)
    if following == look(f, FRAGMENT_JOIN_BLOCK):
        if look(f, FRAGMENT_JOIN) < 0 or look(c, FREE_COUNT) == 0:
            return ANSWER_ARRIVES
        arrive(c, number)
        return ANSWER_STOPPED
    if ran + 1 < look(c, TURN_BLOCKS):
        note(out, SAID_FOLLOWING, 0)
        note(f, FRAGMENT_RAN, ran + 1)
        return ANSWER_LEFT
    note(f, FRAGMENT_STREAK, look(f, FRAGMENT_STREAK) + look(c, TURN_BLOCKS))
    if pass_window(c, f, following):
        push(c, number)
        return ANSWER_STOPPED
    return ANSWER_HAD_TURN


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


@export
def run_turns(c: Bytes, turns: Int) abi("C") -> Int:
    """Gives the fragments of the queue their turns, in order, until one of them needs Python; returns why it stops."""
    if turns <= 0:
        return ANSWER_TURNS_OVER
    var taken = 0
    var answer = ANSWER_TURNS_OVER
    var current = -1
    var before = look(c, CHANGES)
    while taken < turns:
        var head = look(c, HEAD)
        if head == look(c, TAIL) or head == look(c, CLOSED_AT):
            answer = ANSWER_NOTHING_LEFT
            break
        current = Int(get[DType.int32](pointer(c, QUEUE), 4 * head))
        if current < 0:
            answer = ANSWER_OTHERS_FIRST
            break
        note(c, HEAD, head + 1)
        taken += 1
        before = look(c, CHANGES)
        answer = turn(c, current)
        if answer != ANSWER_STOPPED:
            break
        answer = ANSWER_TURNS_OVER
        current = -1
        if look(c, QUEUE_ROOM) - look(c, TAIL) < 4096 or trace_is_half_full(c):
            break
    var out = pointer(c, OUT)
    note(out, SAID_STATUS, answer)
    note(out, SAID_CURRENT, current)
    note(out, SAID_TURNS, taken)
    note(out, SAID_CHANGES_BEFORE, before)
    return answer


@export
def touch_living(c: Bytes, current: Int, ctas: Int) abi("C") -> Int:
    """Notes of all fragments that Python does not know yet that it is to be told of them; returns how many are noted.

    current: whose turn it is, or -1. ctas: how many there are in the table.
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
