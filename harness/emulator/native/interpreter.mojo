# The native engine's interpreter: runs stretches of micro-operations on the 32-lane registers of one fragment of a warp.
#
# A register is a row of 256 bytes, the lanes from its start; a byte for each says whether all lanes agree. `run` goes
# from block to block until it has to stop, and rolls a stretch back in which anything is out of the ordinary. The
# numbers of fields are those of `engine.py`; @HANDLERS@ stands for the operations of `operations.py`.

from std.bit import bit_reverse, count_leading_zeros, pop_count

comptime Bytes = Pointer[UInt8, MutUntrackedOrigin]
comptime Lanes = SIMD[DType.uint32, 32]
comptime FULL = UInt32(0xFFFFFFFF)
comptime NONE = 0xFFFF
comptime ROW = 256
comptime RESERVED = UInt64(1024)

# Fields of the context, 8 bytes each.
comptime SHARED = 0
comptime SHARED_SHADOW = 1
comptime SHARED_SIZE = 2
comptime WINDOW = 3
comptime BARRIERS_FIRST = 4
comptime BARRIERS_END = 5
comptime PARAMETERS = 6
comptime PARAMETER_BYTES = 7
comptime ALLOCATIONS = 8
comptime ALLOCATION_COUNT = 9
comptime LAST_ALLOCATION = 10
comptime OPERATIONS = 11
comptime ENTRIES = 12
comptime LOCATIONS = 13
comptime LOCATION_SLOTS = 14
comptime SAVED_SLOTS = 15
comptime COUNTS = 16
comptime OUT = 17
comptime OUT32 = 18
comptime OUT64 = 19
comptime OUT_PREDICATES = 20
comptime SAVED_ROWS = 21
comptime LOG = 22
comptime LOG_ROOM = 23
comptime PLACES = 24
comptime SCRATCH = 25
comptime RUNS = 26
comptime LOGGED = 27
comptime WATCHES = 28
comptime WATCHED_ROWS = 29
comptime WATCHED_BLOCKS = 30

# Flags of a micro-operation.
comptime NEGATED = 1
comptime WIDE = 2
comptime WIDE_ADDRESS = 4
comptime FIRST_ITEM = 8
comptime NO_LOG = 16
comptime CHOOSES = 32

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
    """Loads a row. 1: all lanes agree; 0: they may differ; -1: something is out of the ordinary."""
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
        return 1
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
            return 0
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
    return 0


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


@inline(.never)
def hand_over(c: Bytes, file: Bytes, agree: Bytes, stamps: Bytes, stamp: UInt32, slots: Int, location: Int):
    """Lists the registers that this run has changed and that are read later; see `engine.py` for the layout."""
    var out = pointer(c, OUT)
    var where = pointer(c, LOCATIONS).unsafe_offset(8 * location)
    var first = Int(get[DType.int32](where))
    var scalars = 0
    var rows32 = 0
    var rows64 = 0
    var predicates = 0
    for k in range(first, first + Int(get[DType.int32](where, 4))):
        var packed = Int(get[DType.int32](pointer(c, LOCATION_SLOTS), 4 * k))
        var slot = packed & 0xFFFF
        var kind = packed >> 16
        if get[DType.uint32](stamps, 4 * slot) != stamp:
            continue
        set[DType.uint32](stamps, 4 * slot, 0)
        var row = file.unsafe_offset(ROW * slot)
        if get[DType.uint8](agree, slot) != 0:
            var value = get[DType.uint64](row) if kind == 1 else get[DType.uint32](row).cast[DType.uint64]()
            set[DType.int64](out, 8 * (16 + 2 * scalars), Int64(packed))
            set[DType.uint64](out, 8 * (17 + 2 * scalars), value)
            scalars += 1
        elif kind == 0:
            put(pointer(c, OUT32).unsafe_offset(128 * rows32), load[DType.uint32](row))
            set[DType.int64](out, 8 * (16 + 2 * slots + rows32), Int64(slot))
            rows32 += 1
        elif kind == 1:
            put(pointer(c, OUT64).unsafe_offset(256 * rows64), load[DType.uint64](row))
            set[DType.int64](out, 8 * (16 + 3 * slots + rows64), Int64(slot))
            rows64 += 1
        else:
            var bits = load[DType.uint32](row).cast[DType.uint8]()
            put(pointer(c, OUT_PREDICATES).unsafe_offset(32 * predicates), bits)
            set[DType.int64](out, 8 * (16 + 4 * slots + predicates), Int64(slot))
            predicates += 1
    set[DType.int64](out, 8 * 7, Int64(scalars))
    set[DType.int64](out, 8 * 8, Int64(rows32))
    set[DType.int64](out, 8 * 9, Int64(rows64))
    set[DType.int64](out, 8 * 10, Int64(predicates))


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


# ---- the loop ----


@export
def run(c: Bytes, file: Bytes, slots: Int, start: Int, mask: UInt32, join: Int, budget: Int, window: Int) abi("C") -> Int:
    """Runs from an operation on. join: the block at which the fragment's siblings wait. budget: blocks.

    window: 0, or a number of blocks that are run all of them, or else not at all: if anything speaks against it, or
    if the loop may be one that only polls.
    """
    if slots == 0:
        return 0
    var agree = file.unsafe_offset(ROW * slots)
    var stamps = agree.unsafe_offset(slots)
    var stamp = get[DType.uint32](c, 8 * RUNS) + 1
    set[DType.uint32](c, 8 * RUNS, stamp)
    var operations = pointer(c, OPERATIONS)
    var scratch = pointer(c, SCRATCH)
    var saved = pointer(c, SAVED_ROWS)
    var begin = operations
    var pc = start
    var block = 0
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
                    set[DType.uint8](saved, ROW * slots + k, get[DType.uint8](agree, slot))
                continue
            if op == 1003:
                status = 3
                location = half(o, 14)
                following = Int(get[DType.int32](o, 28))
                break
            following = Int(get[DType.int32](o, 24))
            if op == 1002:
                var yes = mask_of(file.unsafe_offset(ROW * half(o, 8))) & mask
                if yes == 0:
                    following = Int(get[DType.int32](o, 28))
                elif yes != mask:
                    status = 2
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
            if get[DType.uint8](agree, guard) != 0:
                if Int(get[DType.uint32](pg)) == flags & NEGATED:
                    continue
            else:
                guarded = True
                pd = scratch
                var holds = mask_of(pg)
                active = mask & (~holds if flags & NEGATED != 0 else holds)
        var agrees = UInt8(0)
        if op >= 900:
            if active == 0:
                continue
            weight += 5
            var same = get[DType.uint8](agree, a) != 0
            var result = -1
@ACCESSES@
            if result == -1:
                status = 1
                break
            if result == 2:
                changes += Int(flags & FIRST_ITEM != 0)
                continue
            loads += Int(flags & FIRST_ITEM != 0)
            agrees = UInt8(result)
        else:
            var ua = get[DType.uint8](agree, a)
            var ub = get[DType.uint8](agree, b)
            var ux = get[DType.uint8](agree, x)
            agrees = ua & ub & ux
            if flags & CHOOSES != 0:
                agrees = ux & (ua if get[DType.uint32](px) != 0 else ub)
            weight += 2 - 2 * Int(agrees)
@HANDLERS@
            else:
                status = 1
                break
        if guarded:
            merge(target, pd, file.unsafe_offset(ROW * guard), flags & NEGATED != 0, flags & WIDE != 0)
            agrees = 0
        set[DType.uint8](agree, d, agrees)
        set[DType.uint32](stamps, 4 * d, stamp)
    var out = pointer(c, OUT)
    if window != 0:
        var over = status == 0 and ran + 1 == window and location == following
        if over and following == kept_block and changes == kept_changes:
            over = not are_as_kept(c, file, following)
        if not over or (changes == 0 and loads > 4):
            undo_stores(c)
            return 4
        var counts = pointer(c, COUNTS)
        set[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * ran, Int32(block))
        for k in range(window):
            var one = Int(get[DType.int32](pointer(c, WATCHED_BLOCKS), 4 * k))
            set[DType.int64](counts, 8 * one, get[DType.int64](counts, 8 * one) + 1)
        set[DType.int64](out, 8 * 6, Int64(loads))
    if status == 1:
        undo_stores(c)
        var list = pointer(c, SAVED_SLOTS).unsafe_offset(4 * Int(get[DType.int64](begin, 16)))
        for k in range(half(begin, 6)):
            var slot = Int(get[DType.int32](list, 4 * k))
            copy_row(file.unsafe_offset(ROW * slot), saved.unsafe_offset(ROW * k))
            set[DType.uint8](agree, slot, get[DType.uint8](saved, ROW * slots + k))
        changes = changes_before
        location = half(begin, 14)
        following = Int(get[DType.int32](begin, 28))
        weight = 0 if ran == 0 else weight
    set[DType.int64](out, 0, Int64(status))
    set[DType.int64](out, 8, Int64(block))
    set[DType.int64](out, 16, Int64(following))
    set[DType.int64](out, 24, Int64(ran))
    set[DType.int64](out, 32, Int64(changes))
    set[DType.int64](out, 40, Int64(weight))
    hand_over(c, file, agree, stamps, stamp, slots, location)
    return status
