"""Starts the next CTA when the only one that runs has ended, as long as CTAs need nothing but native code."""

from .layout import *
from .lanes import *
from .fragments import *


@inline(.never)
def start_next(c: Bytes):
    """Starts the next CTA in the place of the one that has ended, with the numbers of its first fragments. All joins
    have completed, because only whole warps exit natively, outside all joins.
    """
    note(c, STARTS, look(c, STARTS) - 1)
    note(c, STARTED, look(c, STARTED) + 1)
    for k in range(look(c, TOUCHED_COUNT)):
        var number = Int(get[DType.int32](pointer(c, TOUCHED), 4 * k))
        note(fragment(c, number), FRAGMENT_IS_TOUCHED, 0)
        if look(fragment(c, number), FRAGMENT_HAS_OBJECT) == 0:
            give_back(c, number)
    note(c, TOUCHED_COUNT, 0)
    var cta = pointer(c, CTAS)
    for k in range(CTA_FIELDS):
        note(cta, k, look(cta, CTA_FIELDS + k))
    if look(cta, CTA_SHARED_SIZE) > Int(RESERVED):
        clear(pointer(cta, CTA_SHARED), look(cta, CTA_SHARED_SIZE))
        clear(pointer(cta, CTA_SHARED_SHADOW), look(cta, CTA_SHARED_SIZE))
    note(c, CTA_X, look(c, CTA_X) + 1)
    for axis in range(2):
        if look(c, CTA_X + axis) == look(c, GRID_X + axis):
            note(c, CTA_X + axis, 0)
            note(c, CTA_X + axis + 1, look(c, CTA_X + axis + 1) + 1)
    note(c, HEAD, 0)
    note(c, TAIL, look(c, FIRST_COUNT))
    for k in range(look(c, FIRST_COUNT)):
        start(c, Int(get[DType.int32](pointer(c, QUEUE), 4 * k)))


@inline(.always)
def start(c: Bytes, number: Int):
    """Makes a fragment that has exited, split or merged a warp that starts. No register is live then."""
    var f = fragment(c, number)
    new_stamp(c, f)
    note(f, FRAGMENT_BLOCK, 0)
    note(f, FRAGMENT_LOCATION, 0)
    note(f, FRAGMENT_STREAK, 0)
    note(f, FRAGMENT_STATE, STATE_READY)
    note(f, FRAGMENT_IS_COMPLETE, 1)
    touch(c, number)
    var file = f.unsafe_bitcast[Bytes]()[]
    for axis in range(3):
        var packed = look(c, ROW_X + axis)
        if packed < 0:
            continue
        var row = file.unsafe_offset(ROW * (packed & 0xFFFF))
        if packed >> 16 == 1:
            put(row, SIMD[DType.uint64, 32](UInt64(look(c, CTA_X + axis))))
        else:
            put(row, Lanes(UInt32(look(c, CTA_X + axis))))


@inline(.always)
def clear(memory: Bytes, nbytes: Int):
    for k in range((nbytes + 15) // 16):
        memory.unsafe_offset(16 * k).unsafe_bitcast[UInt64]().unsafe_store[alignment=16](SIMD[DType.uint64, 2](0))
