"""Exchanges of data between the lanes of a warp: shfl, vote, redux, elect, and which lanes are there."""

from std.bit import count_trailing_zeros
from .layout import *
from .lanes import *
from .arithmetic import *


@inline(.never)
def exchange(op: Int, f: Bytes, to: Bytes, a: Bytes, b: Bytes, x: Bytes, agrees: Bool, mask: UInt32, members: UInt32, mut undefined: UInt32) -> Int:
    """Executes a shfl, vote, redux or elect. Returns the mark of its result, or -1 if Python must handle it.

    `undefined` holds the undefined lanes of `a`, and then those of the result.
    """
    if op == ACTIVEMASK:
        put(to, Lanes(mask))
        return UNIFORM
    if mask & ~members != 0 or members & UInt32(look(f, FRAGMENT_ALIVE)) & ~mask != 0:
        return -1
    var active = (lane_bits() & Lanes(mask)).ne(0)
    if op <= SHFL_BFLY:
        var lanes = ramp[DType.uint32](1).cast[DType.int32]()
        var by = (load[DType.uint32](b) & 31).cast[DType.int32]()
        var bound = load[DType.uint32](x)  # of each lane
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
        if mask & (mask - 1) == 0:
            # A lane's own value is the same in all places of a row.
            put(to, Lanes(1))
            return UNIFORM
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


@inline(.never)
def exchange_in_groups(op: Int, f: Bytes, to: Bytes, a: Bytes, b: Bytes, x: Bytes, mask: UInt32, members: Bytes, work: Bytes, mut undefined: UInt32) -> Int:
    """Executes the same for each group of lanes that name the same members. `work` is room for a row."""
    var named = load[DType.uint32](members)
    var found = Lanes(0)
    var missing = UInt32(0)
    var left = mask
    while left != 0:
        var wanted = named[Int(count_trailing_zeros(left))]
        var group = named.eq(Lanes(wanted)).select(lane_bits(), Lanes(0)).reduce_or() & mask
        var its = undefined
        if exchange(op, f, work, a, b, x, False, group, wanted, its) == -1:
            return -1
        found = (lane_bits() & Lanes(group)).ne(0).select(load[DType.uint32](work), found)
        missing |= its & group
        left &= ~group
    put(to, found)
    undefined = missing
    return POISON if missing != 0 else VARIED


@inline(.always)
def reduce_floats(op: Int, values: Lanes, active: SIMD[DType.bool, 32]) -> Lanes:
    """Returns the smallest or the largest number of the lanes, in all lanes."""
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
