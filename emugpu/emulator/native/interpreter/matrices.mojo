"""Operations of a whole warp: loads from tensor memory and stores to it, one register at a time, and stores of
matrices, one at a time.
"""

from .layout import *
from .lanes import *
from .memory import *


comptime COLUMNS = 512


@inline(.always)
def agrees(row: Bytes, wide: Bool) -> Bool:
    """Returns whether all lanes of an address are equal."""
    if wide:
        return load[DType.uint64](row).eq(SIMD[DType.uint64, 32](get[DType.uint64](row))).reduce_and()
    return load[DType.uint32](row).eq(Lanes(get[DType.uint32](row))).reduce_and()


@inline(.always)
def find_words(c: Bytes, f: Bytes, a: Bytes, lanes: Bytes, o: Bytes, mut words: Lanes, mut groups: UInt64) -> Bool:
    """Finds the words of tensor memory that hold a register of all threads, and the groups of 8 columns with them.
    `lanes` is the place of an access to address 0. Returns False if Python must do the access.
    """
    var wide = half(o, 4) & WIDE_ADDRESS != 0
    var address = Int(UInt32(address_of(a, 0, o, wide)))
    var lane = address >> 16
    var part = Int(get[DType.int32](o, 28))
    if not agrees(a, wide) or lane & (half(o, 14) - 1) != 0 or look(f, FRAGMENT_PENDING) < 0:
        return False
    var first = load[DType.uint32](lanes)
    var columns = (first & (COLUMNS - 1)) + UInt32(part % COLUMNS + (address & 0xFFFF))
    var low = Int(columns.reduce_min())
    var high = Int(columns.reduce_max())
    if high >= COLUMNS:
        return False
    var units = (1 << (low // 32)) | (1 << (high // 32))
    if look(pointer(c, TMEM_UNITS), 0) & units != units:
        note(c, UNSETTLED, units)
        return False
    words = columns + (first & ~(COLUMNS - 1)) + UInt32(part // COLUMNS * COLUMNS + (lane & 31) * COLUMNS)
    groups = ((UInt64(2) << UInt64(high // 8)) - 1) & ~((UInt64(1) << UInt64(low // 8)) - 1)
    return True


@inline(.never)
def load_tensor_memory(c: Bytes, f: Bytes, to: Bytes, a: Bytes, lanes: Bytes, o: Bytes) -> Bool:
    """Loads a register of all threads. Returns False if Python must do it."""
    var words = Lanes(0)
    var groups = UInt64(0)
    if not find_words(c, f, a, lanes, o, words, groups):
        return False
    if look(f, FRAGMENT_PENDING) > 0 and field(f, FRAGMENT_STORED_COLUMNS) & groups != 0:
        return False
    var data = pointer(c, TMEM)
    var shadow = pointer(c, TMEM_SHADOW)
    var written = True
    for k in range(32):
        written = written and get[DType.uint8](shadow, Int(words[k])) != 0
        set[DType.uint32](to, 4 * k, get[DType.uint32](data, 4 * Int(words[k])))
    return written


@inline(.always)
def change[n: Int](c: Bytes, at: Bytes, value: UInt64) -> Bool:
    """Writes to memory without a shadow so that a rollback restores it. Returns False if there is no room."""
    if not note_old[n](c, Place(True, False, at, at)):
        return False
    write[n](at, value)
    return True


@inline(.never)
def store_tensor_memory(c: Bytes, f: Bytes, a: Bytes, lanes: Bytes, values: Bytes, o: Bytes) -> Bool:
    """Stores a register of all threads. Returns False if Python must do it."""
    var words = Lanes(0)
    var groups = UInt64(0)
    if not find_words(c, f, a, lanes, o, words, groups):
        return False
    var pending = look(f, FRAGMENT_PENDING)
    if half(o, 4) & FIRST_ITEM != 0:
        if pending == MOST_STORES:
            return False
        var address = UInt32(address_of(a, 0, o, half(o, 4) & WIDE_ADDRESS != 0))
        var store = UInt64(get[DType.int32](o, 24)) << 32 | UInt64(address)
        var entry = f.unsafe_offset(8 * (FRAGMENT_STORES + pending))
        if not change[8](c, entry, store) or not change[8](c, f.unsafe_offset(8 * FRAGMENT_PENDING), UInt64(pending + 1)):
            return False
    var stored = field(f, FRAGMENT_STORED_COLUMNS) | groups
    if not change[8](c, f.unsafe_offset(8 * FRAGMENT_STORED_COLUMNS), stored):
        return False
    var data = pointer(c, TMEM)
    var shadow = pointer(c, TMEM_SHADOW)
    for k in range(32):
        var word = Int(words[k])
        if not change[4](c, data.unsafe_offset(4 * word), lane_value(values, k, False)):
            return False
        if get[DType.uint8](shadow, word) == 0 and not change[1](c, shadow.unsafe_offset(word), 1):
            return False
    return True


@inline(.never)
def end_stores(c: Bytes, f: Bytes) -> Bool:
    """Waits for a fragment's stores to tensor memory. Returns False if Python must do it."""
    var pending = look(f, FRAGMENT_PENDING)
    if pending <= 0:
        return pending == 0
    return change[8](c, f.unsafe_offset(8 * FRAGMENT_PENDING), 0) and change[8](
        c, f.unsafe_offset(8 * FRAGMENT_STORED_COLUMNS), 0
    )


@inline(.never)
def count_early_read(c: Bytes, o: Bytes) -> Bool:
    """Counts a read of a register before the wait for its load. Returns False the first time, which Python does."""
    var counter = pointer(c, EARLY_READS).unsafe_offset(8 * Int(get[DType.uint64](o, 16)))
    var count = get[DType.uint64](counter)
    if count == 0:
        set[DType.uint64](counter, 0, 1)
        return False
    return change[8](c, counter, count + 1)


@inline(.never)
def store_matrix[transposes: Bool](c: Bytes, a: Bytes, values: Bytes, o: Bytes) -> Bool:
    """Stores the 8 rows of a matrix of 16 bits, at the addresses in 8 lanes. Returns False if Python must do it."""
    var first = 8 * Int(get[DType.int32](o, 28))
    var places = pointer(c, PLACES).unsafe_bitcast[Place]()
    for row in range(8):
        var address = address_of(a, first + row, o, half(o, 4) & WIDE_ADDRESS != 0)
        var at = place[SPACE_SHARED, True](c, c, 0, address, 16)
        if address & 15 != 0 or not at.found:
            return False
        places[unsafe_offset=row] = at
    for row in range(8):
        var at = places[unsafe_offset=row]
        for k in range(2):
            var part = Place(True, True, at.data.unsafe_offset(8 * k), at.shadow.unsafe_offset(8 * k))
            if not note_old[8](c, part):
                return False
            var word = get[DType.uint64](values, 16 * row + 8 * k)
            comptime if transposes:
                word = 0
                for n in range(4):
                    var item = get[DType.uint16](values, 16 * (4 * k + n) + 2 * row)
                    word |= item.cast[DType.uint64]() << UInt64(16 * n)
            set[DType.uint64](part.data, 0, word)
            set[DType.uint64](part.shadow, 0, 0x0101010101010101)
    return True
