"""The places of accesses in the host's memory, by state space. A generic address belongs to one of the spaces."""

from .layout import *
from .lanes import *


@fieldwise_init
struct Place(TrivialRegisterPassable):
    """The place of an access in the host's memory. `poisoned` says whether a shadow records which bytes were
    written.
    """

    var found: Bool
    var poisoned: Bool
    var data: Bytes
    var shadow: Bytes


@inline(.always)
def nowhere(c: Bytes) -> Place:
    return Place(False, False, c, c)


@inline(.always)
def find_allocation(c: Bytes, address: UInt64, nbytes: UInt64) -> Int:
    """Returns the allocation of global memory that holds these bytes, or -1. An allocation has a base, bytes, data, and
    a shadow or null.
    """
    var table = pointer(c, ALLOCATIONS)
    var last = Int(field(c, LAST_ALLOCATION))
    for k in range(-1, Int(field(c, ALLOCATION_COUNT))):
        var j = last if k < 0 else k
        if holds(table.unsafe_offset(32 * j), address, nbytes):
            set[DType.uint64](c, 8 * LAST_ALLOCATION, UInt64(j))
            return j
    return -1


@inline(.always)
def holds(allocation: Bytes, address: UInt64, nbytes: UInt64) -> Bool:
    var inside = address - get[DType.uint64](allocation)
    var size = get[DType.uint64](allocation, 8)
    return inside < size and nbytes <= size - inside


@inline(.always)
def place_in(block: Bytes, address: UInt64) -> Place:
    """Returns the place of an address in an allocation."""
    var at = Int(address - get[DType.uint64](block))
    var data = block.unsafe_offset(16).unsafe_bitcast[Bytes]()[].unsafe_offset(at)
    if get[DType.uint64](block, 24) == 0:
        return Place(True, False, data, data)
    return Place(True, True, data, block.unsafe_offset(24).unsafe_bitcast[Bytes]()[].unsafe_offset(at))


@inline(.always)
def place_in_local(c: Bytes, f: Bytes, lane: Int, address: UInt64, nbytes: UInt64) -> Place:
    """Returns the place of a byte in a thread's local memory: the memory has data, a shadow, the bytes of a thread, and
    where each thread's memory ends.
    """
    var memory = pointer(f, FRAGMENT_LOCAL)
    var top = get[DType.int64](pointer(memory, 3), 8 * lane).cast[DType.uint64]()
    if address >= top or nbytes > top - address:
        return nowhere(c)
    var at = lane * look(memory, 2) + Int(address)
    return Place(True, True, pointer(memory, 0).unsafe_offset(at), pointer(memory, 1).unsafe_offset(at))


@inline(.always)
def place[space: Int, store: Bool](c: Bytes, f: Bytes, lane: Int, address: UInt64, nbytes: UInt64) -> Place:
    """Returns the place of a lane's access."""
    comptime if space == SPACE_SHARED:
        var at = address - field(c, WINDOW)
        var size = field(c, SHARED_SIZE)
        var data = pointer(c, SHARED)
        var legal = at >= RESERVED and at < size and nbytes <= size - at
        comptime if store:
            if at < field(c, BARRIERS_END) and at + nbytes > field(c, BARRIERS_FIRST):
                legal = False
        if not legal:
            return nowhere(c)
        return Place(True, True, data.unsafe_offset(Int(at)), pointer(c, SHARED_SHADOW).unsafe_offset(Int(at)))
    elif space == SPACE_GLOBAL:
        var k = find_allocation(c, address, nbytes)
        if k < 0:
            return nowhere(c)
        return place_in(pointer(c, ALLOCATIONS).unsafe_offset(32 * k), address)
    elif space == SPACE_PARAM:
        var size = field(c, PARAMETER_BYTES)
        if address >= size or nbytes > size - address:
            return nowhere(c)
        var data = pointer(c, PARAMETERS).unsafe_offset(Int(address))
        return Place(True, False, data, data)
    elif space == SPACE_CONST:
        for k in range(Int(field(c, CONSTANT_COUNT))):
            var block = pointer(c, CONSTANTS).unsafe_offset(32 * k)
            if holds(block, address, nbytes):
                return place_in(block, address)
        return nowhere(c)
    elif space == SPACE_LOCAL:
        return place_in_local(c, f, lane, address, nbytes)
    else:
        var window = space_of(address)
        var inside = address & ((1 << WINDOW_SHIFT) - 1)
        if window == SPACE_SHARED:
            return place[SPACE_SHARED, store](c, f, lane, inside, nbytes)
        if window == SPACE_LOCAL:
            return place_in_local(c, f, lane, inside, nbytes)
        comptime if not store:
            if window == SPACE_PARAM:
                return place[SPACE_PARAM, store](c, f, lane, inside, nbytes)
            if window == SPACE_CONST:
                return place[SPACE_CONST, store](c, f, lane, inside, nbytes)
        return place[SPACE_GLOBAL, store](c, f, lane, address, nbytes) if window == SPACE_GLOBAL else nowhere(c)


@inline(.always)
def space_of(address: UInt64) -> Int:
    """Returns the state space of a generic address."""
    var window = Int(address >> WINDOW_SHIFT)
    if window == WINDOW_OF_SHARED:
        return SPACE_SHARED
    if window == WINDOW_OF_PARAM:
        return SPACE_PARAM
    if window == WINDOW_OF_LOCAL:
        return SPACE_LOCAL
    return SPACE_CONST if window == WINDOW_OF_CONST else SPACE_GLOBAL


@inline(.always)
def differs_by_lane[space: Int](address: UInt64) -> Bool:
    """Returns whether an address means another byte in each lane."""
    comptime if space == SPACE_GENERIC:
        return space_of(address) == SPACE_LOCAL
    return space == SPACE_LOCAL
