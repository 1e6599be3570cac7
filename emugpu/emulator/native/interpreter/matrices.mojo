"""Operations of a whole warp: loads from tensor memory, one register at a time, and stores of matrices, one at a
time.
"""

from .layout import *
from .lanes import *
from .memory import *


@inline(.never)
def load_tensor_memory(c: Bytes, to: Bytes, a: Bytes, lanes: Bytes, o: Bytes) -> Bool:
    """Loads a register of all threads. `lanes` is the place of an access to address 0. Returns False if Python must
    do it.
    """
    comptime COLUMNS = 512
    var address = Int(UInt32(address_of(a, 0, o, half(o, 4) & WIDE_ADDRESS != 0)))
    var lane = address >> 16
    var part = Int(get[DType.int32](o, 28))
    if lane & (half(o, 14) - 1) != 0:
        return False
    var first = load[DType.uint32](lanes)
    var columns = (first & (COLUMNS - 1)) + UInt32(part % COLUMNS + (address & 0xFFFF))
    var low = Int(columns.reduce_min())
    var high = Int(columns.reduce_max())
    if high >= COLUMNS:
        return False
    var units = (1 << (low // 32)) | (1 << (high // 32))
    if look(pointer(c, TMEM_UNITS), 0) & units != units:
        return False
    var at = columns + (first & ~(COLUMNS - 1)) + UInt32(part // COLUMNS * COLUMNS + (lane & 31) * COLUMNS)
    var data = pointer(c, TMEM)
    var shadow = pointer(c, TMEM_SHADOW)
    var written = True
    for k in range(32):
        written = written and get[DType.uint8](shadow, Int(at[k])) != 0
        set[DType.uint32](to, 4 * k, get[DType.uint32](data, 4 * Int(at[k])))
    return written


@inline(.never)
def store_matrix[transposes: Bool](c: Bytes, a: Bytes, values: Bytes, o: Bytes) -> Bool:
    """Stores the 8 rows of a matrix of 16 bits, at the addresses in 8 lanes. Returns False if Python must do it."""
    var first = 8 * Int(get[DType.int32](o, 28))
    var places = pointer(c, PLACES).unsafe_bitcast[Place]()
    for row in range(8):
        var address = address_of(a, first + row, o, half(o, 4) & WIDE_ADDRESS != 0)
        var at = place[SPACE_SHARED, True](c, address, 16)
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
