"""Calls that allocate, free, fill and copy memory. The library in the program performs the copies."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from emugpu.driver.api import handles
from emugpu.driver.memory import DEVICE
from emugpu.driver.protocol import HostCopy
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session
from emugpu.emulator.memory.bytes import round_up
from emugpu.emulator.memory.global_memory import Allocation
from emugpu.emulator.memory.unwritten import REPORTED

MANAGED = "managed memory"
MOST_ROWS = 1 << 22
"""The largest number of rows in one copy or fill, because each row is checked."""
GRANULARITY = 2 << 20
"""The granularity of virtual memory management."""
_NANS = (np.uint32(0x7FFFFFFF), 0x7F800000), (np.uint16(0x7FFF), 0x7F80)
"""What arithmetic makes of a NaN in f32, and in f16 and bf16 (PTX ISA 9.7.3, 9.7.4). What is larger than the second
number, but for its sign, is a NaN, too."""


# ---- allocations ----


@handles("cuMemGetInfo_v2")
def info(session: Session) -> tuple[int, int]:
    total = session.gpu.model.memory_bytes
    return total - session.used, total


@handles("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocFromPoolAsync")
def allocate(session: Session, nbytes: int, *_pool_and_stream: int) -> int:
    return session.allocate(DEVICE, nbytes, "")


@handles("cuMemAllocPitch_v2")
def allocate_pitch(session: Session, width: int, height: int, _element: int) -> tuple[int, int]:
    pitch = round_up(width, session.gpu.model["texture_alignment"])
    return session.allocate(DEVICE, pitch * height, ""), pitch


@handles("cuMemAllocHost_v2", "cuMemHostAlloc")
def allocate_pinned(session: Session, nbytes: int, *_flags: int) -> int:
    return session.allocate(session.pinned, nbytes, "pinned memory")


@handles("cuMemAllocManaged")
def allocate_managed(session: Session, nbytes: int, _flags: int) -> int:
    """Allocates managed memory at one address for program and kernels, like pinned memory.

    That suffices because no kernel runs when a call returns.
    """
    return session.allocate(session.pinned, nbytes, MANAGED)


@handles("cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost")
def free(session: Session, address: int, *_stream: int) -> None:
    if not address:
        return
    block = session.memory.starting_at(address)
    if block is None or address in session.mapped:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not the start of an allocation")
    if DEVICE.holds(address):
        session.used -= block.data.size
    session.memory.drop(block)


@handles("cuMemGetAddressRange_v2")
def address_range(session: Session, address: int) -> tuple[int, int]:
    found = session.find(address, 0)
    if found is None:
        raise DriverError("NOT_FOUND", f"{address:#x} is not device memory")
    block, offset = found
    return address - offset, block.data.size


@handles("cuMemHostGetDevicePointer_v2")
def device_pointer(session: Session, host: int, _flags: int) -> int:
    if session.find(host, 1) is None:
        raise DriverError("INVALID_VALUE", f"{host:#x} was not allocated by cuMemHostAlloc")
    return host


@handles("cuMemHostGetFlags")
def host_flags(session: Session, host: int) -> int:
    if session.find(host, 1) is None:
        raise DriverError("INVALID_VALUE", f"{host:#x} was not allocated by cuMemHostAlloc")
    return 2  # CU_MEMHOSTALLOC_DEVICEMAP


@handles("cuMemHostRegister_v2")
def register(session: Session, address: int, nbytes: int, flags: int) -> None:
    session.gpu.log.note(
        "cuMemHostRegister: copies work, but kernels cannot reach this memory; use cuMemHostAlloc if they are to"
    )


@handles("cuMemHostUnregister")
def unregister(session: Session, address: int) -> None:
    return None


# ---- attributes of an address ----


@handles("cuPointerGetAttribute")
def pointer_attribute(session: Session, attribute: int, address: int) -> bytes:
    found = session.find(address, 0)
    if found is None:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not an address of the driver")
    block, _ = found
    pinned = session.pinned.holds(address)
    values = {
        1: ("Q", 0),  # the context, which the library fills in
        2: ("I", 1 if pinned and block.name != MANAGED else 2),
        3: ("Q", address),
        4: ("Q", address if pinned else 0),
        6: ("I", 0),
        7: ("Q", block.base >> 9),
        8: ("I", block.name == MANAGED),
        9: ("i", 0),
        11: ("Q", block.base),
        12: ("Q", block.data.size),
        13: ("I", 1),
        14: ("Q", 0),
        15: ("I", 0),
        16: ("I", 3),
        17: ("Q", 0),
        18: ("Q", block.data.size),
        19: ("Q", block.base),
        20: ("Q", block.base >> 9),
        21: ("I", 0),
    }
    if attribute not in values or (attribute == 4 and not pinned):
        raise DriverError("INVALID_VALUE")
    kind, value = values[attribute]
    return struct.pack("=" + kind, value)


# ---- pools: all share one memory ----


@dataclass
class Pool:
    """A memory pool: the attributes that were set, by number."""

    values: dict[int, bytes]


@handles("cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool")
def default_pool(session: Session, device: int) -> int:
    if session.default_pool is None:
        session.default_pool = session.add(Pool({}))
    return session.default_pool


@handles("cuDeviceSetMemPool")
def set_pool(session: Session, device: int, pool: int) -> None:
    session.get(pool, Pool)


@handles("cuMemPoolCreate")
def create_pool(session: Session, properties: bytes) -> int:
    return session.add(Pool({}))


@handles("cuMemPoolDestroy")
def destroy_pool(session: Session, pool: int) -> None:
    session.get(pool, Pool)
    session.discard(pool)


@handles("cuMemPoolGetAttribute")
def pool_attribute(session: Session, pool: int, attribute: int) -> bytes:
    values = session.get(pool, Pool).values
    if attribute in values:
        return values[attribute]
    if attribute <= 3:
        return struct.pack("=i", 1)
    return struct.pack("=Q", 0 if attribute == 4 else session.used)


@handles("cuMemPoolSetAttribute")
def set_pool_attribute(session: Session, pool: int, attribute: int, value: bytes) -> None:
    session.get(pool, Pool).values[attribute] = value


@handles("cuMemPoolTrimTo")
def trim_pool(session: Session, pool: int, nbytes: int) -> None:
    session.get(pool, Pool)


# ---- virtual memory management ----


@dataclass
class Physical:
    """Memory without an address. ``mapped`` is the address to which it is mapped, or 0."""

    nbytes: int
    handle: int = 0
    mapped: int = 0
    released: bool = False


def _whole(nbytes: int, what: str) -> None:
    if not nbytes or nbytes % GRANULARITY:
        raise DriverError("INVALID_VALUE", f"{what} {nbytes}: must be a multiple of {GRANULARITY} bytes")


@handles("cuMemAddressReserve")
def reserve(session: Session, nbytes: int, alignment: int, wanted: int, flags: int) -> int:
    _whole(nbytes, "size")
    address = session.memory.reserve(DEVICE, nbytes, max(alignment, GRANULARITY))
    session.memory.reserved[address] = nbytes
    return address


@handles("cuMemAddressFree")
def unreserve(session: Session, address: int, nbytes: int) -> None:
    if session.memory.reserved.get(address) != nbytes:
        raise DriverError("INVALID_VALUE", f"{nbytes} bytes at {address:#x} were not reserved")
    del session.memory.reserved[address]


@handles("cuMemCreate")
def create(session: Session, nbytes: int, properties: bytes, flags: int) -> int:
    _whole(nbytes, "size")
    session.take_memory(nbytes)
    physical = Physical(nbytes)
    physical.handle = session.add(physical)
    return physical.handle


@handles("cuMemRelease")
def release(session: Session, handle: int) -> None:
    physical = session.get(handle, Physical)
    physical.released = True
    _end_of(session, physical)


def _end_of(session: Session, physical: Physical) -> None:
    """Frees the memory once it is released and mapped nowhere."""
    if physical.released and not physical.mapped:
        session.used -= physical.nbytes
        session.discard(physical.handle)


@handles("cuMemMap")
def map_memory(session: Session, address: int, nbytes: int, offset: int, handle: int, flags: int) -> None:
    physical = session.get(handle, Physical)
    inside = any(base <= address and address + nbytes <= base + size for base, size in session.memory.reserved.items())
    if not inside or offset or nbytes != physical.nbytes:
        raise DriverError("INVALID_VALUE", "cuMemMap maps all of a handle's memory into reserved addresses")
    if physical.mapped:
        raise DriverError("NOT_SUPPORTED", f"memory that is mapped at {physical.mapped:#x} cannot be mapped twice")
    taken = session.memory.holding(address) or session.memory.holding(address + nbytes - 1)
    if taken is not None:
        raise DriverError("INVALID_VALUE", f"something is mapped at {taken.base:#x} already")
    session.memory.put(DEVICE, address, nbytes, "mapped memory")
    physical.mapped = address
    session.mapped[address] = physical


@handles("cuMemUnmap")
def unmap(session: Session, address: int, nbytes: int) -> None:
    inside = [at for at in session.mapped if address <= at < address + nbytes]
    if not inside:
        raise DriverError("INVALID_VALUE", f"nothing is mapped at {address:#x}")
    for at in inside:
        physical = session.mapped.pop(at)
        block = session.memory.starting_at(at)
        assert block is not None
        session.memory.drop(block)
        physical.mapped = 0
        _end_of(session, physical)


@handles("cuMemSetAccess")
def set_access(session: Session, address: int, nbytes: int, access: bytes, count: int) -> None:
    if address not in session.mapped and session.memory.holding(address) is None:
        raise DriverError("INVALID_VALUE", f"nothing is mapped at {address:#x}")


@handles("cuMemGetAccess")
def get_access(session: Session, location: bytes, address: int) -> int:
    return 3 if session.memory.holding(address) else 0


@handles("cuMemRetainAllocationHandle")
def retain_handle(session: Session, address: int) -> int:
    block = session.memory.holding(address)
    physical = session.mapped.get(block.base) if block else None
    if physical is None:
        raise DriverError("INVALID_VALUE", f"{address:#x} was not mapped by cuMemMap")
    return int(physical.handle)


# ---- fills ----


def _fill(session: Session, to: int, value: int, width: int, nbytes: int) -> None:
    """Fills ``nbytes`` bytes of memory with elements of this value, each of ``width`` bytes."""
    if not nbytes:
        return
    if to % width:
        raise DriverError("INVALID_VALUE", f"{to:#x} is not a multiple of {width}")
    found = session.find_to_touch(to, nbytes)
    if found is None:
        raise DriverError("INVALID_VALUE", f"{to:#x} is not device memory")
    block, offset = found
    block.words[width][offset // width : (offset + nbytes) // width] = value & ((1 << 8 * width) - 1)
    mark(block, offset, nbytes)


def mark(block: Allocation, offset: int, nbytes: int) -> None:
    """Marks a range as written; a completely written block needs no shadow."""
    if offset == 0 and nbytes == block.data.size:
        block.valid = None
    block.mark_valid(offset, nbytes)


def _register_fills() -> None:
    for bits in (8, 16, 32):
        width = bits // 8

        def fill(session: Session, to: int, value: int, count: int, *_stream: int, width: int = width) -> None:
            _fill(session, to, value, width, width * count)

        def fill_rows(
            session: Session, to: int, pitch: int, value: int, row: int, rows: int, *_stream: int, width: int = width
        ) -> None:
            if pitch < width * row or rows > MOST_ROWS:
                raise DriverError("INVALID_VALUE", f"{rows} rows of {width * row} bytes with a pitch of {pitch}")
            for n in range(rows):
                _fill(session, to + n * pitch, value, width, width * row)

        handles(f"cuMemsetD{bits}_v2", f"cuMemsetD{bits}Async")(fill)
        handles(f"cuMemsetD2D{bits}_v2", f"cuMemsetD2D{bits}Async")(fill_rows)


_register_fills()


# ---- copies ----


@handles("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2")
def to_device(session: Session, to: int, frm: int, nbytes: int, *_stream: int) -> list[HostCopy]:
    _require_device(session, to, nbytes)
    return _copy(session, to, frm, nbytes)


@handles("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2")
def to_host(session: Session, to: int, frm: int, nbytes: int, *_stream: int) -> list[HostCopy]:
    _require_device(session, frm, nbytes)
    return _copy(session, to, frm, nbytes)


@handles("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2")
def on_device(session: Session, to: int, frm: int, nbytes: int, *_stream: int) -> list[HostCopy]:
    _require_device(session, to, nbytes)
    _require_device(session, frm, nbytes)
    return _copy(session, to, frm, nbytes)


@handles("cuMemcpy", "cuMemcpyAsync")
def copy(session: Session, to: int, frm: int, nbytes: int, *_stream: int) -> list[HostCopy]:
    return _copy(session, to, frm, nbytes)


@handles("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2")
def copy_batch(session: Session, to: bytes, frm: bytes, nbytes: bytes, count: int, *_rest: int) -> list[HostCopy]:
    if not len(to) == len(frm) == len(nbytes) == 8 * count:
        raise DriverError("INVALID_VALUE", "the arrays of a batch are not as long as it is")
    arrays = (np.frombuffer(each, np.uint64).tolist() for each in (to, frm, nbytes))
    return [one for row in zip(*arrays, strict=True) for one in _copy(session, *row)]


def _require_device(session: Session, address: int, nbytes: int) -> None:
    """Raises DriverError unless the address is in device memory. Any address is valid for a zero-byte range."""
    if nbytes and session.find(address, 0) is None:
        raise DriverError("INVALID_VALUE", f"{address:#x} is not device memory")


def _copy(session: Session, to: int, frm: int, nbytes: int) -> list[HostCopy]:
    """Returns the copies for the library. Bytes of device memory become written only where the source was written."""
    if not nbytes:
        return []
    target, source = session.find_to_touch(to, nbytes), session.find_to_touch(frm, nbytes)
    if target is not None:
        block, offset = target
        written = _written(source, nbytes)
        if written is None or written.all():
            mark(block, offset, nbytes)
        elif not session.pinned.holds(block.base):
            block.poisonable()[offset : offset + nbytes] = written
    elif source is not None:
        _look_for_undefined(session, source, nbytes)
    return [HostCopy(to, frm, nbytes)]


def _written(source: tuple[Allocation, int] | None, nbytes: int) -> np.ndarray | None:
    """Returns which bytes of a source were written, or None for all."""
    if source is None or source[0].valid is None:
        return None
    return source[0].valid[source[1] : source[1] + nbytes]


def _look_for_undefined(session: Session, source: tuple[Allocation, int], nbytes: int) -> None:
    """Looks for values that nothing has defined in what the program gets.

    Bytes that were never written get those of "report", so that zeros do not pass for results. NaNs may come from
    such bytes, and many a comparison passes them.
    """
    log, (block, offset) = session.gpu.log, source
    written = _written(source, nbytes)
    makes_nans = session.gpu.options.uninitialised not in ("zero", "random")
    if written is not None and not written.all():
        first = int(written.argmin())
        missing = nbytes - int(np.count_nonzero(written))
        log.note(
            f"copies device memory to the program of which {missing} of {nbytes} bytes were never written, the first "
            f"is byte {offset + first} of '{block.name}'"
        )
        if makes_nans:
            block.data[offset : offset + nbytes][~written] = REPORTED
    if makes_nans and log.guessed and _holds_nans(block.data[offset : offset + nbytes]):
        log.not_looked_at(
            f"whether the program's comparison takes a NaN for right: it has copied NaNs from '{block.name}', and "
            f"{log.guessed} has read memory that was never written, as NaNs"
        )


def _holds_nans(data: np.ndarray) -> bool:
    """Returns whether memory holds NaNs as arithmetic makes them, at multiples of their size from the first byte on.

    If other NaNs are there, but for bytes of "report", it is memory of another type, such as f32, whose lower half may
    be anything.
    """
    for nan, infinity in _NANS:
        numbers = data[: data.size // nan.nbytes * nan.nbytes].view(nan.dtype)
        nans = numbers[numbers & nan > infinity]
        if (nans == nan).any() and ((nans == nan) | (nans == ~nan.dtype.type(0))).all():
            return True
    return False


# ---- copies of rows ----

_MEMCPY2D = struct.Struct("=" + 2 * "QQI4xQQQQ" + "QQ")
_MEMCPY3D = struct.Struct("=" + 2 * "QQQQI4xQQQQQQ" + "QQQ")
_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4


@dataclass(frozen=True)
class _End:
    """One end of a copy of rows: the address of the first byte, and the distances between rows and between layers."""

    address: int
    pitch: int
    layer: int


def _end(kind: int, host: int, device: int, x: int, y: int, z: int, pitch: int, height: int, width: int) -> _End:
    if kind == _ARRAY:
        raise DriverError("NOT_SUPPORTED", "copies of CUDA arrays are not supported")
    base = host if kind == _HOST else device
    pitch = pitch or width
    return _End(base + x + pitch * (y + height * z), pitch, pitch * height)


@handles("cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2")
def copy_2d(session: Session, raw: bytes, *_stream: int) -> list[HostCopy]:
    sx, sy, skind, shost, sdevice, _, spitch, dx, dy, dkind, dhost, ddevice, _, dpitch, width, height = (
        _MEMCPY2D.unpack(raw)
    )
    frm = _end(skind, shost, sdevice, sx, sy, 0, spitch, height, width)
    to = _end(dkind, dhost, ddevice, dx, dy, 0, dpitch, height, width)
    return _copy_rows(session, to, frm, width, height, 1)


@handles("cuMemcpy3D_v2", "cuMemcpy3DAsync_v2")
def copy_3d(session: Session, raw: bytes, *_stream: int) -> list[HostCopy]:
    fields = _MEMCPY3D.unpack(raw)
    width, height, depth = fields[22:]
    ends = []
    for x, y, z, _lod, kind, host, device, _array, _reserved, pitch, rows in (fields[:11], fields[11:22]):
        ends.append(_end(kind, host, device, x, y, z, pitch, rows or height, width))
    return _copy_rows(session, ends[1], ends[0], width, height, depth)


def _copy_rows(session: Session, to: _End, frm: _End, width: int, height: int, depth: int) -> list[HostCopy]:
    if not (width and height and depth):
        return []
    if to.pitch < width or frm.pitch < width or height * depth > MOST_ROWS:
        raise DriverError(
            "INVALID_VALUE", f"{height * depth} rows of {width} bytes with pitches of {to.pitch} and {frm.pitch}"
        )
    copies = []
    for layer in range(depth):
        first_to, first_from = to.address + layer * to.layer, frm.address + layer * frm.layer
        for row in range(height):
            _copy(session, first_to + row * to.pitch, first_from + row * frm.pitch, width)
        copies.append(HostCopy(first_to, first_from, width, height, to.pitch, frm.pitch))
    return copies
