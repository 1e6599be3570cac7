"""Look-up of tensor maps, and tensormap.replace and .cp_fenceproxy (PTX ISA 9.7.9.28, 9.7.13.18).

A map is an argument of the kernel, or 128 bytes anywhere in the parameters or in global, constant or shared memory.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import own_offset
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    memory,
    only,
    only_form,
    tuple_of,
)
from emugpu.emulator.machine.events import Access, Fenced, Site, TensorMapRead
from emugpu.emulator.machine.lanes import Value, lane_value
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory import tensor_map_bytes
from emugpu.emulator.memory.address_space import PARAM_WINDOW, WINDOWS, space_of
from emugpu.emulator.memory.tensor_map import Im2colMap, TensorMap
from emugpu.emulator.memory.tensor_map_bytes import ALIGNMENT, FIELDS, NBYTES, READ_BYTES, WITH_ORDINAL
from emugpu.emulator.ptx.ast import Immediate, Instruction, Operand


def _read(f: Fragment, address: int) -> bytes:
    """Returns the 128 bytes at a generic address.

    Bytes that the hardware does not read may be unwritten; they are 0.
    """
    if address % ALIGNMENT:
        raise Fault(f"the tensor map address 0x{address:x} is not a multiple of {ALIGNMENT}", "alignment")
    space = space_of(address)
    where = address - WINDOWS[space]
    if space == "param":
        data = f.grid.launch.parameters[where : where + NBYTES]
        if len(data) < NBYTES:
            raise Fault(f"the tensor map address 0x{address:x} is beyond the parameters", "tensor-map")
        return data
    if space == "shared":
        cta, offset = f.cta.cluster.cta_at(where, "a tensor map")
        return cta.shared.read(offset, READ_BYTES).tobytes().ljust(NBYTES, b"\0")
    if space in ("global", "const"):
        device = f.grid.memory if space == "global" else f.grid.constants
        return device.read(where, READ_BYTES).tobytes().ljust(NBYTES, b"\0")
    raise Fault(f"the tensor map address 0x{address:x} is in {space} memory", "tensor-map")


@lru_cache(maxsize=1024)
def _decoded(data: bytes) -> TensorMap:
    return tensor_map_bytes.decode(data).in_units


def tensor_map_at(f: Fragment, site: Site, address: int) -> tuple[str, TensorMap]:
    """Returns a name for counters, and the map, which must be a tiled one."""
    name, tmap = _map_at(f, site, address)
    if isinstance(tmap, Im2colMap):
        raise Fault("uses a tensor map in im2col mode where a tiled one is needed", "tensor-map")
    return name, tmap


def im2col_map_at(f: Fragment, site: Site, address: int) -> tuple[str, Im2colMap]:
    name, tmap = _map_at(f, site, address)
    if not isinstance(tmap, Im2colMap):
        raise Fault("uses a tiled tensor map where one in im2col mode is needed", "tensor-map")
    return name, tmap


def _map_at(f: Fragment, site: Site, address: int) -> tuple[str, TensorMap]:
    found = f.grid.launch.tensor_maps.get(address)
    if found is not None:
        return found
    space = space_of(address)
    try:
        data = _read(f, address)
    except Fault as fault:
        if fault.rule in ("alignment", "uninitialised"):
            raise
        data = b""
    if not tensor_map_bytes.is_tensor_map(data):
        raise Fault(f"the tensor map address 0x{address:x} is not that of a tensor map", "tensor-map")
    if space == "global":
        if f.grid.sink is not None:
            f.grid.sink(TensorMapRead(f.agent, site, address))
        return f.grid.memory.find(address, NBYTES)[0].name, _decoded(data)
    return f"{space} 0x{address - WINDOWS[space]:x}", _decoded(data)


def coordinates_of(tmap: TensorMap, coordinates: tuple[Value, ...], lane: int) -> tuple[int, ...]:
    if len(coordinates) != tmap.rank:
        raise Fault(f"gives {len(coordinates)} coordinates for a tensor map of rank {tmap.rank}", "tensor-map")
    return signed_coordinates(tmap, coordinates, lane)


def signed_coordinates(tmap: TensorMap, coordinates: tuple[Value, ...], lane: int) -> tuple[int, ...]:
    """Returns the coordinates as signed numbers, the first one in the units of the map."""
    values = [lane_value(c, lane) for c in coordinates]
    signed = [v - (1 << 32) if v >> 31 else v for v in values]
    if tmap.coordinate_unit > 1:
        signed[0] = _units(tmap, signed[0])
    return tuple(signed)


def _units(tmap: TensorMap, coordinate: int) -> int:
    """Returns the first coordinate, of a type smaller than a byte, in units copied together (PTX ISA 5.5.1.1)."""
    step = 128 if tmap.element.global_bytes else tmap.coordinate_unit
    if coordinate % step:
        raise Fault(f"coordinate {coordinate} of {tmap.element.name} is not a multiple of {step}", "tensor-map")
    return coordinate // tmap.coordinate_unit


def map_operand(operand: Operand, w: Translator) -> str:
    """Returns the generic address of the tensor map that an operand names."""
    pointer = w.pointer(operand)
    return f"{PARAM_WINDOW} + {pointer}" if w.space_of(operand) == "param" else pointer


def start_operand(operand: Operand, w: Translator) -> str:
    """Returns the coordinates beside the tensor map."""
    coordinates = memory(operand).coordinates
    if not coordinates:
        raise Unsupported
    return tuple_of(w.read(c, "s32") for c in coordinates)


# ---- changing maps ----


def _write(f: Fragment, site: Site, address: int, data: bytes) -> None:
    space = space_of(address)
    where = address - WINDOWS[space]
    raw = np.frombuffer(data, np.uint8)
    if space == "shared":
        cta, offset = f.cta.cluster.cta_at(where, "a tensor map")
        cta.shared.write(offset, raw)
        rank, where = cta.rank, offset
    elif space == "global":
        f.grid.memory.write(where, raw)
        rank = -1
    else:
        raise Fault(f"changes a tensor map in {space} memory", "tensor-map")
    f.grid.wakeups.changes += 1
    if f.grid.sink is not None:
        words = tuple(raw.view(np.uint64).tolist())
        f.grid.sink(Access(f.agent, site, "write", space, rank, where, 8, len(words), words))


def replace(f: Fragment, site: Site, field: str, ordinal: int, address: Value, value: Value) -> None:
    """Executes ``tensormap.replace``: every lane changes one field."""
    for lane in f.lanes:
        where = lane_value(address, lane)
        changed = tensor_map_bytes.replace(_read(f, where), field, ordinal, lane_value(value, lane))
        _write(f, site, where, changed[:READ_BYTES])


def _generic(i: Instruction, pointer: str) -> str:
    if i.has("shared::cta"):
        return f"{pointer} + {WINDOWS['shared']}"
    return pointer


@instruction("tensormap.replace", operands=range(2, 4), writes=0, family="memory")
def _replace(i: Instruction, w: Translator) -> Effect:
    field = i.modifiers[2] if len(i.modifiers) > 2 else ""
    if field not in FIELDS:
        raise Unsupported
    width = "b64" if field in ("global_address", "global_stride") else "b32"
    only_form(i, *(f"replace.tile.{field}{space}.b1024.{width}" for space in ("", ".global", ".shared::cta")))
    ordinal = 0
    if (len(i.operands) == 3) != (field in WITH_ORDINAL):
        raise Unsupported
    if len(i.operands) == 3:
        ordinal = immediate(i.operands[1])
    elif field not in ("global_address", "rank") and not isinstance(i.operands[1], Immediate):
        raise Unsupported
    pointer = _generic(i, w.pointer(i.operands[0]))
    return Effect(replace, [repr(field), str(ordinal), pointer, w.read(i.operands[-1], width)])


def copy(f: Fragment, site: Site, destination: Value, source: Value) -> None:
    """Executes ``tensormap.cp_fenceproxy``: the warp copies the used bytes of a map from shared to global memory."""
    f.require_whole_warp()
    to, where = f.uniform(destination, "the destination"), f.uniform(source, "the source")
    offset = own_offset(f, where, "the source of a copy of a tensor map")
    data = _read(f, where + WINDOWS["shared"])[:READ_BYTES]
    if f.grid.sink is not None:
        f.grid.sink(Access(f.agent, site, "read", "shared", f.cta.rank, offset, 8, READ_BYTES // 8, None))
    _write(f, site, to, data)
    if f.grid.sink is not None:
        f.grid.sink(Fenced(f.agent, site, to))


@instruction("tensormap.cp_fenceproxy", operands=3, writes=0, family="memory")
def _cp_fenceproxy(i: Instruction, w: Translator) -> Effect:
    only(i, "global", "shared::cta", "tensormap::generic", "release", "cta", "cluster", "gpu", "sys", "sync", "aligned")
    if immediate(i.operands[2]) != NBYTES or not i.has("release") or not i.has("global"):
        raise Unsupported
    return Effect(copy, [w.pointer(o) for o in i.operands[:2]])
