"""Explains the value of an element: follows it back to its origin, to the first step that is wrong.

Global memory <- a store, or a TMA store <- shared memory <- a store of the epilogue <- registers <- tensor memory or
the accumulator of a wgmma <- multiplications, K step by K step <- stages <- TMA boxes <- elements of A and B. The
way between registers is followed in the text of the PTX (`emugpu.debug.slices`).

The module `emugpu.debug.chain` finds the fault in the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emugpu.debug.boxes import address_of, dense_of
from emugpu.debug.chain import Chain, Element, KStep, Link, judge
from emugpu.debug.names import LaunchNames, element, line_of, mnemonic, value_text
from emugpu.debug.operands import ElementProduct, ElementRun, ScaleFactors, register_product, tensor_product
from emugpu.debug.recording import RecordedBuffer, Recording
from emugpu.debug.slices import Producer, producers_of
from emugpu.debug.writers import CHUNK, Memory, Write, Writers
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Access, Agent
from emugpu.emulator.memory.tmem import COLUMNS
from emugpu.emulator.translate.cfg import destinations

MOST_LINKS = 12
"""The largest number of copies in a chain; a longer one is a cycle."""
TENSOR_CORE = ("tcgen05", "wgmma", "mma")
"""Instructions that give a thread sums of products."""


class Why:
    """Explains elements of one launch of a recording."""

    def __init__(self, recording: Recording, writers: Writers, names: LaunchNames, launch: int) -> None:
        self._recording = recording
        self._writers = writers
        self._names = names
        self._launch = launch
        self._code = recording.codes[launch]
        self._bytes: dict[str, bytes] = {}
        self._issued: dict[tuple[int, int, int, int], list[tuple[int, Any]]] = {}
        end = recording.launches[launch + 1] - 1 if launch + 1 < len(recording.launches) else len(recording)
        for number in range(recording.launches[launch], end + 1):
            event = recording.events[number - 1]
            site = (
                event.operation.site if type(event) is events.Issued else event.site if type(event) is Access else None
            )
            if site is not None:
                self._issued.setdefault((*event.agent[:3], site.index), []).append((number, event))

    def element(self, placed: RecordedBuffer, index: Sequence[int], before: int) -> Chain:
        """Returns the chain of an element at a position."""
        chain = Chain(self._title(placed, tuple(index), before))
        address = placed.byte_of(index)
        self._global(chain, address, max(1, placed.dtype.bits // 8), before)
        if chain.steps:
            at = tuple(index)
            judge(chain, placed, at, self._value(placed, at), self._is_right(placed, at))
        if chain.overwritten is not None and not self._is_right(placed, tuple(index)):
            chain.verdict, chain.wrong_at = chain.overwritten.text, chain.overwritten.event
        return chain

    def _title(self, placed: RecordedBuffer, index: tuple[int, ...], before: int) -> str:
        name = element(placed.name, index)
        first, nbytes, end = placed.byte_of(index), max(1, placed.dtype.bits // 8), len(self._recording)
        last = [self._writers.last(("global",), first, first + nbytes, at) for at in (before, end)]
        if placed.name not in self._recording.differences or last[0] is not last[1]:
            return name
        expected, wrong = self._recording.differences[placed.name]
        got, written = self._recording.contents[placed.name]
        if not written[index]:
            what = "is poison" if last[1] is not None else "was not written"
            return f"{name} {what}, and must be {value_text(expected[index])}"
        must = f", and must be {value_text(expected[index])}" if wrong[index] else ", which is right"
        return f"{name} is {value_text(got[index])}{must}"

    # ---- memory ----

    def _global(self, chain: Chain, address: int, nbytes: int, before: int) -> None:
        write = self._writers.last(("global",), address, address + nbytes, before)
        if write is None:
            name, later = self._names.address(address), self._writers.all_to(("global",), address, address + nbytes)
            hint = f"; continue {name} goes there" if later and "[" in name else ""
            chain.links.append(Link(0, f"nothing has written {name} by event {before}{hint}"))
            return
        if write.access is not None:
            self._stored(chain, write, address)
            return
        operation = write.operation
        assert operation is not None
        source = operation.reads[0] if operation.reads else None
        if isinstance(source, events.SharedChunks) and isinstance(write.region, events.GlobalBox):
            dense = dense_of(write.region.tensor_map, tuple(write.region.coordinates), address)
            if dense is not None:
                offset = int(source.chunks.ravel()[dense // CHUNK]) * CHUNK + dense % CHUNK
                self._copied(chain, write, source.cta, offset, nbytes)
                return
        if isinstance(source, events.SharedBytes) and isinstance(write.region, events.GlobalItems):
            offset = source.offset + address - int(write.region.addresses[0])
            self._copied(chain, write, source.cta, offset, nbytes)
            return
        chain.links.append(Link(write.event, self._names.event(self._recording.events[write.event - 1])))

    def _copied(self, chain: Chain, write: Write, cta: int, offset: int, nbytes: int) -> None:
        """Follows a copy from shared memory. The data at its read may be newer than at its issue."""
        operation = write.operation
        assert operation is not None
        text = (
            f"{operation.kind} from {self._names.shared(offset, cta)}, read at event {write.started}, issued by "
            f"{self._names.agent(operation.agent)}, {line_of(operation.site)}"
        )
        chain.links.append(Link(write.event, text))
        issued = self._writers.issued(operation)
        source = self._last_shared(chain, cta, offset, nbytes, write.started)
        if source is not None and source.event > issued:
            by = source.access if source.access is not None else source.operation
            assert by is not None
            text = (
                f"the box was overwritten between issue and read: the {operation.kind} issued at event {issued} read "
                f"it at event {write.started}, and {mnemonic(by.site)} of {self._names.agent(by.agent)}, "
                f"{line_of(by.site)}, wrote there at event {source.event}; no "
                "cp.async.bulk.wait_group.read came between"
            )
            chain.overwritten = Link(source.event, text)
        self._shared(chain, cta, offset, nbytes, write.started)

    def _shared(self, chain: Chain, cta: int, offset: int, nbytes: int, before: int) -> None:
        if len(chain.links) > MOST_LINKS:
            return
        write = self._last_shared(chain, cta, offset, nbytes, before)
        if write is None:
            chain.links.append(Link(0, f"{self._names.shared(offset, cta)} was not written by then: it is poison"))
            chain.verdict, chain.wrong_at = "the copy reads memory that has not been written yet", before
            return
        if write.access is not None:
            self._stored(chain, write, offset)
            return
        operation = write.operation
        assert operation is not None
        origin = self._origin(write, offset // CHUNK)
        what = self._names.address(origin) if origin is not None else "outside of the tensor"
        text = f"{operation.kind} of {what} to {self._names.shared(offset, cta)}, {line_of(operation.site)}"
        chain.links.append(Link(write.event, text))

    def _last_shared(self, chain: Chain, cta: int, offset: int, nbytes: int, before: int) -> Write | None:
        memory: Memory = ("shared", self._launch, self._cluster(chain), cta)
        return self._writers.last(memory, offset, offset + nbytes, before)

    def _cluster(self, chain: Chain) -> int:
        """Returns the cluster that made the element: that of the last link."""
        event = self._recording.events[next(link.event for link in reversed(chain.links) if link.event) - 1]
        agent = event.operation.agent if hasattr(event, "operation") else event.agent
        return int(agent.cluster)

    def _value(self, placed: RecordedBuffer, index: tuple[int, ...]) -> float | None:
        """Returns the value of an element at the end, or None if it is poison."""
        got, written = self._recording.contents[placed.name]
        return float(got[index]) if written[index] else None

    def _is_right(self, placed: RecordedBuffer, index: tuple[int, ...]) -> bool:
        """Returns whether an element is known to be as expected at the end."""
        _, wrong = self._recording.differences.get(placed.name, (None, None))
        return wrong is not None and not wrong[index]

    def _stored(self, chain: Chain, write: Write, place: int) -> None:
        """Follows a thread's store back to a register."""
        access = write.access
        assert access is not None
        site = access.site
        lane, number, byte = _from_register(access, place)
        who = self._names.warp(*access.agent[:3])
        chain.links.append(Link(write.event, f"{mnemonic(site)} by {who}, lane {lane}, {line_of(site)}"))
        operand = self._code.kernel.instructions[site.index].operands
        registers = operand[1].registers() if len(operand) > 1 else []
        if access.mode == "write" and number < len(registers):
            producers = producers_of(self._code, site.index, registers[number], byte)
            self._registers(chain, access.agent, lane, producers, write.event)

    # ---- registers ----

    def _registers(self, chain: Chain, agent: Agent, lane: int, producers: list[Producer], before: int) -> None:
        """Follows the producer that the warp executed last."""
        executed = []
        for producer in producers:
            happened = self._issued.get((*agent[:3], producer.instruction.index), [])
            last = next(((n, e) for n, e in reversed(happened) if n < before and _has(e, lane)), None)
            if last is not None:
                executed.append((last, producer))
        if not executed:
            what = ", ".join(
                sorted({f"{s.instruction.text.split()[0]}, PTX line {s.instruction.line}" for s in producers})
            )
            chain.links.append(Link(0, f"registers of the thread; they come from {what or 'no memory'}"))
            return
        sums = [found for found in executed if found[1].instruction.opcode in TENSOR_CORE]
        chosen = sums[-1] if sums else max(executed, key=lambda found: found[0][0])
        self._also_read(chain, [found for found in executed if found not in (*sums, chosen)], lane, len(sums) - 1)
        chain.uncertain = chain.uncertain or (len(executed) > 1 and not sums)
        (number, event), producer = chosen
        if producer.shuffled:
            chain.uncertain = True
            chain.links.append(Link(0, "registers that lanes have exchanged (shfl): followed for the same lane"))
        if isinstance(event, Access):
            place, what = self._read(number, event, lane, producer)
            text = f"{what} by {self._names.warp(*agent[:3])}, lane {lane}, {line_of(event.site)}"
            chain.links.append(Link(number, text))
            if event.space == "shared":
                self._shared(chain, event.cta, place, 1, number)
        elif event.operation.kind == "tmem.load":
            place = event.operation.detail["place"].flat
            flat = (
                place[int(producer.byte >= 2), producer.position, lane]
                if place.ndim > 2
                else place[producer.position, lane]
            )
            row, column = divmod(int(flat), COLUMNS)
            text = f"tcgen05.ld of lane {row}, column {column} of CTA {agent.cta} by {self._names.warp(*agent[:3])}"
            started = self._writers.started(event.operation) or number
            chain.links.append(Link(started, f"{text}, {line_of(event.operation.site)}"))
            self._tensor(chain, agent.cluster, agent.cta, row, column, started)
        else:
            self._accumulated(chain, agent, lane, producer, before)

    def _also_read(
        self, chain: Chain, others: Sequence[tuple[tuple[int, Any], Producer]], lane: int, sums: int
    ) -> None:
        """Adds the other values that go into an element: operands of a fused epilogue, other terms."""
        for (number, event), producer in others:
            if isinstance(event, Access) and event.space in ("global", "shared"):
                _, what = self._read(number, event, lane, producer)
                chain.links.append(Link(number, f"{what} {'goes' if sums >= 0 else 'may go'} into it, too"))
        if sums > 0:
            chain.links.append(Link(0, f"{sums} other sum{'s' if sums > 1 else ''} may go into it, too: not followed"))

    def _read(self, number: int, access: Access, lane: int, producer: Producer) -> tuple[int, str]:
        """Returns the place from which a lane has read a register, and a text about it."""
        place = _place_of_lane(access, lane, producer.position, producer.byte)
        if access.space == "shared":
            return place, f"{mnemonic(access.site)} of {self._names.shared(place, access.cta)}"
        placed = self._names.buffer_at(place)
        empty = placed is not None and placed.unwritten is not None and placed.unwritten[place - placed.address]
        written = not empty or self._writers.last(("global",), place, place + 1, number) is not None
        what = self._names.address(place) + ("" if written else ", which nobody has written,")
        return place, f"{mnemonic(access.site)} of {what}"

    def _accumulated(self, chain: Chain, agent: Agent, lane: int, producer: Producer, before: int) -> None:
        """Follows wgmma, from its last multiplication into these registers back to the first one of the tile."""
        names = [r.name for r in destinations(producer.instruction)]
        memory: Memory = ("registers", self._launch, agent.cluster, agent.cta, agent.warp)
        products: list[tuple[Write, ElementProduct]] = []
        tile_end = 0
        for write in self._writers.backwards(memory, before):
            assert write.operation is not None
            if list(write.region.names) != names:
                continue
            if products and tile_end == 0:
                tile_end = self._last_epilogue(agent, products[0][0].event)
            if products and write.event < tile_end:
                break
            register = 2 * producer.position + int(producer.byte >= 2) if self._is_half(write) else producer.position
            product = register_product(write.operation, agent.warp, register, lane)
            products.append((write, product))
            if not product.accumulates:
                break
        self._multiplied(chain, agent.cluster, products[::-1], f"registers of {self._names.warp(*agent[:3])}")

    @staticmethod
    def _is_half(write: Write) -> bool:
        assert write.operation is not None
        return bool(write.operation.detail["form"].d_type == "f16")

    def _last_epilogue(self, agent: Agent, before: int) -> int:
        """Returns the warp's last store to global memory: earlier multiplications belong to another tile."""
        stores = (
            number
            for (*who, _), happened in self._issued.items()
            if tuple(who) == agent[:3]
            for number, event in happened
            if number < before and isinstance(event, Access) and event.mode == "write" and event.space == "global"
        )
        return max(stores, default=-1)

    # ---- the tensor core ----

    def _tensor(self, chain: Chain, cluster: int, cta: int, lane: int, column: int, before: int) -> None:
        products: list[tuple[Write, ElementProduct]] = []
        for write in self._writers.backwards(("tensor", self._launch, cluster, cta), before):
            if not write.holds(lane, column):
                continue
            assert write.operation is not None
            if write.operation.kind != "mma":
                if not products:
                    text = f"{write.operation.kind} by {self._names.agent(write.operation.agent)}"
                    chain.links.append(Link(write.event, f"{text}, {line_of(write.operation.site)}"))
                break
            product = tensor_product(write.operation, cta, lane, column)
            if product is None:
                continue
            products.append((write, product))
            if not product.accumulates:
                break
        if not products and not any(link.event and "tmem" in link.text for link in chain.links[-1:]):
            chain.verdict, chain.wrong_at = "nothing was accumulated there by then", before
        self._multiplied(chain, cluster, products[::-1], f"tensor memory lane {lane}, column {column} of CTA {cta}")

    def _multiplied(self, chain: Chain, cluster: int, products: list[tuple[Write, ElementProduct]], where: str) -> None:
        if not products:
            return
        kind = products[-1][0].operation
        assert kind is not None
        text = f"{len(products)} {kind.site.verb} into {where}, {line_of(kind.site)}"
        chain.links.append(Link(products[-1][0].event, text))
        for write, product in products:
            a, a_load, a_stage = self._fetched(chain, cluster, product.a, write.started)
            b, b_load, b_stage = self._fetched(chain, cluster, product.b, write.started)
            step = chain.steps[-1] if chain.steps else None
            if step is None or step.loads != (a_load, b_load):
                step = KStep(write.event, write.event, write.started, loads=(a_load, b_load), stages=(a_stage, b_stage))
                chain.steps.append(step)
            step.a += a
            step.b += b
            for found, factors in zip(step.factors, product.factors, strict=False):
                found += self._scale_factors(step, cluster, factors, write.started)
            step.last = write.event

    def _fetched(
        self, chain: Chain, cluster: int, runs: tuple[ElementRun, ...] | None, started: int
    ) -> tuple[list[Element | None], Write | None, str]:
        """Returns the buffer elements in these places at the time that a multiplication reads them."""
        if runs is None:
            chain.unknown = True
            return [], None, "registers or tensor memory"
        found: list[Element | None] = []
        write = None
        for run in runs:
            memory: Memory = ("shared", self._launch, cluster, run.cta)
            write = self._writers.last(memory, run.chunk * CHUNK, (run.chunk + 1) * CHUNK, started)
            address = self._origin(write, run.chunk) if write is not None else None
            placed = self._names.buffer_at(address) if address is not None else None
            if placed is None or address is None:
                chain.unknown = chain.unknown or (write is not None and write.access is not None)
                found += [None] * run.count
                continue
            flat = (address - placed.address) * 8 // placed.dtype.bits + run.first
            for n in range(run.count):
                found.append((placed, tuple(int(i) for i in np.unravel_index(flat + n, placed.shape))))
        return found, write, self._stage(write, runs[0])

    def _scale_factors(self, step: KStep, cluster: int, of: ScaleFactors, started: int) -> list[Element | None]:
        """Returns the buffer elements in a word of tensor memory that holds scale factors.

        They are known if tcgen05.cp copied them from shared memory, and unknown if threads stored them.
        """
        tensor: Memory = ("tensor", self._launch, cluster, of.cta)
        writes = self._writers.backwards(tensor, started)
        write = next((w for w in writes if w.holds(of.lane, of.column)), None)
        copy = write.operation if write is not None else None
        if write is None:
            step.unscaled = f"the scale factor in lane {of.lane}, column {of.column} of CTA {of.cta}"
        if write is None or copy is None or copy.kind != "tmem.copy":
            return [None] * of.count
        (source,) = (r for r in copy.reads if isinstance(r, events.SharedChunks) and r.cta == of.cta)
        rows, lanes = copy.detail["lanes"]
        row = int(rows[lanes == of.lane][0])
        place, inside = divmod(4 * (of.column - write.region.columns.start) + of.byte, CHUNK)
        chunk = int(source.chunks[row].reshape(-1)[place])
        shared: Memory = ("shared", self._launch, cluster, of.cta)
        filled = self._writers.last(shared, chunk * CHUNK, (chunk + 1) * CHUNK, write.started)
        if filled is None:
            step.unscaled = self._names.shared(chunk * CHUNK + inside, of.cta)
        origin = self._origin(filled, chunk) if filled is not None else None
        placed = self._names.buffer_at(origin) if origin is not None else None
        if placed is None or origin is None:
            return [None] * of.count
        return [(placed, placed.index_of(origin + inside + n)) for n in range(of.count)]

    def _stage(self, write: Write | None, run: ElementRun) -> str:
        """Returns the name of the region of a place or, without regions, the start of the box that filled it."""
        offset = run.chunk * CHUNK
        if write is not None and write.operation is not None:
            offset = write.operation.detail.get("offset", offset)
        name, plus, rest = self._names.shared(offset, run.cta).partition(" + ")
        return f"{name} of{rest.partition(' of')[2]}" if plus else name

    def _origin(self, write: Write, chunk: int) -> int | None:
        """Returns the address in global memory from which a chunk of shared memory was filled, or None."""
        operation, region = write.operation, write.region
        if operation is None:
            return self._origin_of_store(write, chunk)
        source = operation.reads[0] if operation.reads else None
        if isinstance(region, events.SharedChunks) and isinstance(source, events.GlobalBox):
            places = np.flatnonzero(region.chunks.ravel() == chunk)
            coordinates = tuple(source.coordinates)
            return address_of(source.tensor_map, coordinates, int(places[0]) * CHUNK) if len(places) else None
        if isinstance(region, events.SharedBytes) and isinstance(source, events.GlobalItems):
            return int(source.addresses[0]) + chunk * CHUNK - region.offset
        if isinstance(region, events.SharedItems) and isinstance(source, events.GlobalItems):
            inside = chunk * CHUNK - np.asarray(region.offsets)
            lanes = np.flatnonzero((inside >= 0) & (inside < region.nbytes))
            if len(lanes) and inside[lanes[0]] < source.nbytes[lanes[0]]:
                return int(source.addresses[lanes[0]] + inside[lanes[0]])
        return None

    def _origin_of_store(self, write: Write, chunk: int) -> int | None:
        """Returns the address from which a thread loaded a whole chunk before it stored it to shared memory.

        The PTX does not show which load it was if loads run ahead of stores. It is one that the thread executed
        earlier and that read the stored bytes.
        """
        access = write.access
        assert access is not None
        lane, number, byte = _from_register(access, chunk * CHUNK)
        stored = _stored_bytes(access, chunk * CHUNK)
        registers = self._code.kernel.instructions[access.site.index].operands[1].registers()
        if access.site.opcode != "st" or number >= len(registers) or len(stored) < CHUNK:
            return None
        for producer in producers_of(self._code, access.site.index, registers[number], byte):
            happened = self._issued.get((*access.agent[:3], producer.instruction.index), [])
            for at, event in reversed(happened):
                if at < write.event and isinstance(event, Access) and event.space == "global" and _has(event, lane):
                    address = _place_of_lane(event, lane, producer.position, producer.byte)
                    if self._first_bytes(address) == stored[:CHUNK]:
                        return address
        return None

    def _first_bytes(self, address: int) -> bytes:
        """Returns the first 16 bytes that global memory held at an address, or b"" if they are unknown."""
        placed = self._names.buffer_at(address)
        if placed is None or placed.first is None:
            return b""
        if placed.name not in self._bytes:
            self._bytes[placed.name] = placed.dtype.to_memory(placed.first).tobytes()
        return self._bytes[placed.name][address - placed.address :][:CHUNK]


def _stored_bytes(access: Access, place: int) -> bytes:
    """Returns the bytes that a lane stored from a place on: the last one of those that stored there."""
    starts = np.atleast_1d(np.asarray(access.where)).astype(np.int64)
    inside = place - starts
    hit = np.flatnonzero((inside >= 0) & (inside < access.nbytes * access.items))
    if not len(hit):
        return b""
    items = access.values if access.items > 1 else (access.values,)
    lane = hit[-1] if len(starts) > 1 else -1
    data = b""
    for item in items:
        value = item if isinstance(item, int) else np.asarray(item).reshape(-1)[min(lane, np.size(item) - 1)]
        data += int(value).to_bytes(access.nbytes, "little") if isinstance(value, int | np.integer) else value.tobytes()
    return data[int(inside[hit[-1]]) :]


def _has(event: Any, lane: int) -> bool:
    return bool(event.agent.lanes >> lane & 1)


def _lanes(agent: Agent) -> list[int]:
    return [lane for lane in range(32) if agent.lanes >> lane & 1]


def _place_of_lane(access: Access, lane: int, register: int, byte: int) -> int:
    """Returns the address from which a lane loaded a byte of one of its registers."""
    starts = np.atleast_1d(np.asarray(access.where))
    if access.site.opcode == "ldmatrix":
        row, column = lane // 4, 2 * (lane % 4) + byte // 2
        if "trans" in access.site.modifiers:
            row, column = column, row
        return int(starts[8 * register + row]) + 2 * column + byte % 2
    lanes = _lanes(access.agent)
    start = starts[lanes.index(lane)] if len(starts) == len(lanes) else starts[0]
    return int(start) + register * access.nbytes + byte


def _from_register(access: Access, place: int) -> tuple[int, int, int]:
    """Returns the lane, the number of the stored register, and the byte in it, from which a byte was written."""
    starts = np.atleast_1d(np.asarray(access.where)).astype(np.int64)
    inside = place - starts
    size = access.nbytes * access.items
    hit = np.flatnonzero((inside >= 0) & (inside < size))
    # A wider element begins before the requested byte, or the access is wider than the element.
    position = int(hit[-1]) if len(hit) else int(np.argmin(np.abs(inside)))
    byte = max(0, int(inside[position]))
    if access.site.opcode == "stmatrix":
        matrix, row = divmod(position, 8)
        column = byte // 2
        if "trans" in access.site.modifiers:
            return 4 * column + row // 2, matrix, 2 * (row % 2)
        return 4 * row + column // 2, matrix, byte % 4
    lanes = _lanes(access.agent)
    lane = lanes[position] if len(starts) == len(lanes) else lanes[-1]
    return lane, byte // access.nbytes, byte % access.nbytes
