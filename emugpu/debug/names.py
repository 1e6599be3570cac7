"""Names of buffer elements, of tiles and barriers in shared memory, and of warps; events as sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from emugpu.check.findings import Names
from emugpu.debug.reading import whole
from emugpu.debug.recording import RecordedBuffer, Recording
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, Operation, Site
from emugpu.errors import UsageProblem


class LaunchNames:
    """The names of one launch of a recording."""

    def __init__(self, recording: Recording, launch: int) -> None:
        started = recording.events[recording.launches[launch] - 1]
        self.placed = recording.placed
        self.roles = recording.what.roles
        self._shared = Names(started.launch.regions, ())
        self._shared.dynamic_start = started.dynamic_shared
        self.regions = tuple(started.launch.regions)
        self.allocations = started.allocations
        self._shared_bytes = started.dynamic_shared + started.launch.dynamic_shared
        self._cluster_size = started.launch.cluster_size

    # ---- agents ----

    def warp(self, cluster: int, cta: int, warp: int) -> str:
        """Returns, for example, ``warp 4 (producer) of CTA 1``: ranks in the cluster, and the cluster unless it is
        0.
        """
        of = f"CTA {cta}" + (f" of cluster {cluster}" if cluster else "")
        roles = [role.name for role in self.roles if warp in role.warps]
        suffix = f" ({', '.join(roles)})" if roles else ""
        return f"warp {warp}{suffix} of {of}"

    def agent(self, agent: Agent) -> str:
        lanes = "" if agent.lanes == 0xFFFFFFFF else f" {lanes_of(agent.lanes)}"
        return self.warp(agent.cluster, agent.cta, agent.warp) + lanes

    # ---- places ----

    def shared(self, offset: int, cta: int) -> str:
        return self._shared.shared(offset, cta)

    def barrier(self, offset: int) -> str:
        """Returns the name of an mbarrier: that of its region, or its address."""
        name = self._shared.region(offset)
        return f"mbarrier at shared 0x{offset:x}" if name.startswith("shared memory") else name

    def offset_of(self, place: str, text: str) -> int | None:
        """Returns the offset of a region, or of an address such as 0x400, in a CTA's shared memory, or None."""
        named = next((self._shared.dynamic_start + r.offset for r in self.regions if r.name == place), None)
        if named is not None or not re.fullmatch("0x[0-9a-fA-F]+", place):
            return named
        offset = whole(place, text)
        if offset >= self._shared_bytes:
            raise UsageProblem(f"{text}: {place} is beyond the {self._shared_bytes:,} bytes of shared memory of a CTA")
        return offset

    def has_region(self, name: str) -> bool:
        """Returns whether a region of shared memory, or a ring of regions, has this name."""
        return any(name == region.name.partition("[")[0] for region in self.regions)

    def is_allocated(self, address: int) -> bool:
        return any(first <= address < first + nbytes for _, first, nbytes in self.allocations)

    def check_cta(self, cta: int | None, text: str) -> None:
        """Raises UsageProblem if clusters have no CTA of this rank."""
        if cta is not None and cta >= self._cluster_size:
            raise UsageProblem(f"{text}: there is no CTA {cta}; clusters are of {self._cluster_size}")

    def buffer_at(self, address: int) -> RecordedBuffer | None:
        return next((p for p in self.placed.values() if p.address <= address < p.address + p.nbytes), None)

    def address(self, address: int) -> str:
        """Returns the buffer element at an address, or else the allocation."""
        placed = self.buffer_at(address)
        if placed is not None:
            return element(placed.name, placed.index_of(address))
        for name, base, nbytes in self.allocations:
            if base <= address < base + nbytes:
                return f"{name} + {address - base}"
        return f"global 0x{address:x}"

    # ---- events ----

    def event(self, event: Any) -> str:
        """Returns a sentence about an event."""
        match event:
            case events.GridStarted():
                return "the grid starts"
            case events.CtaStarted(cluster, cta, ctaid):
                return f"CTA {ctaid} starts, rank {cta} of cluster {cluster}"
            case events.CtaEnded(cluster, cta):
                return f"all threads of CTA {cta} of cluster {cluster} have left"
            case events.ClusterEnded(cluster):
                return f"cluster {cluster} has ended"
            case events.PhaseCompleted(cluster, cta, offset, phase):
                return f"phase {phase} of {self.barrier(offset)} of CTA {cta}{_of(cluster)} completes"
            case events.GroupCompleted(cluster, cta, barrier, generation):
                name = f"barrier {barrier} of CTA {cta}" if barrier >= 0 else "the cluster barrier"
                return f"generation {generation} of {name}{_of(cluster)} completes"
            case events.Started(operation):
                return f"{self.operation(operation)} reads its operands"
            case events.Finished(operation, regions):
                ctas = sorted({rank for r in regions if (rank := getattr(r, "cta", None)) is not None})
                where = f" in CTA {', '.join(map(str, ctas))}" if ctas else ""
                return f"{self.operation(operation)} is complete{where}"
            case events.Signalled(operation, cta, offset, phase):
                at = f"{self.barrier(offset)} of CTA {cta}, phase {phase}"
                return f"{operation.kind} arrives at {at}: {_at(operation.site)}"
            case events.BytesLanded(_, _, site, cta, offset, phase, nbytes):
                return f"{nbytes:,} bytes land for {self.barrier(offset)} of CTA {cta}, phase {phase}: {_at(site)}"
            case events.Issued(operation, agent):
                return f"{self.agent(agent)} issues {self.operation(operation)}"
            case events.Suspended(agent, site, what):
                return f"{self.agent(agent)} {what}: {_at(site)}"
            case events.Resumed(agent):
                return f"{self.agent(agent)} goes on"
            case events.Exited(agent):
                return f"{self.agent(agent)} leaves the kernel"
            case events.Diverged(agent, parts):
                return f"{self.agent(agent)} diverges into {' and '.join(lanes_of(p.lanes) for p in parts)}"
            case events.Rejoined(_, agent):
                return f"{self.agent(agent)} is together again"
            case events.Access():
                return f"{self.agent(event.agent)} {self._access(event)}: {_at(event.site)}"
            case events.Arrived(agent, site, lane, cta, offset, phase, arrivals, nbytes):
                what = (
                    f"arrives at {self.barrier(offset)} of CTA {cta}, phase {phase}"
                    if arrivals
                    else (f"announces at {self.barrier(offset)} of CTA {cta}, phase {phase},")
                )
                more = f" {'and announces ' if arrivals else ''}{nbytes:,} bytes" if nbytes else ""
                return f"{self.agent(agent)}, lane {lane}, {what}{more}: {_at(site)}"
            case events.Waited(agent, site, _, cta, offset, phase):
                return (
                    f"{self.agent(agent)} sees phase {phase} of {self.barrier(offset)} of CTA {cta} over: {_at(site)}"
                )
            case events.Polled(agent, site, _, cta, offset, phase):
                return f"{self.agent(agent)} finds phase {phase} of {self.barrier(offset)} not over: {_at(site)}"
            case events.BarrierInit(agent, site, cta, offset, arrivals):
                return (
                    f"{self.agent(agent)} initialises {self.barrier(offset)} of CTA {cta} for {arrivals}: {_at(site)}"
                )
        who = f"{self.agent(event.agent)}: " if hasattr(event, "agent") else ""
        return f"{who}{_at(event.site) if hasattr(event, 'site') else type(event).__name__}"

    def operation(self, operation: Operation) -> str:
        """Returns the kind of an asynchronous operation, and its instruction."""
        boxes = [r for r in (*operation.reads, *operation.writes) if isinstance(r, events.GlobalBox)]
        box = f" of the box at {self.box(boxes[0])}" if boxes else ""
        return f"{operation.kind}{box} ({line_of(operation.site)})"

    def box(self, box: events.GlobalBox) -> str:
        """Returns the first element of a box, which may lie outside of the tensor."""
        placed = self.buffer_at(box.tensor_map.first_inside(box.coordinates))
        name = placed.name if placed else f"0x{box.tensor_map.address:x}"
        return element(name, tuple(reversed(box.coordinates)))

    def _access(self, event: events.Access) -> str:
        verb = {"read": "reads", "write": "writes", "atomic": "updates"}[event.mode]
        first = int(np.atleast_1d(event.where)[0])
        if event.space == "shared":
            return f"{verb} {self.shared(first, event.cta)}"
        return f"{verb} {self.address(first)}" if event.space == "global" else f"{verb} {event.space} memory"


def element(name: str, index: Iterable[int | str]) -> str:
    return f"{name}[{','.join(map(str, index))}]"


def _of(cluster: int) -> str:
    return f" of cluster {cluster}" if cluster else ""


def lanes_of(mask: int) -> str:
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    whole = lanes == list(range(lanes[0], lanes[-1] + 1))
    return f"lanes {lanes[0]}-{lanes[-1]}" if whole else f"lanes 0x{mask:08x}"


def mnemonic(site: Site) -> str:
    """Returns the instruction without its guard and operands."""
    words = site.text.split()
    return words[1] if words[0].startswith("@") else words[0].rstrip(";")


def _at(site: Site) -> str:
    return f"{mnemonic(site)}, {line_of(site)}"


def line_of(site: Site) -> str:
    return f"PTX line {site.line}{f', {site.source}' if site.source else ''}"


def value_text(value: Any) -> str:
    """Returns a number with six digits, or with as many as distinguish it from its neighbours in its type.

    The type is f64 for an f64, else f32.
    """
    if isinstance(value, int | np.integer):
        return str(int(value))
    exact = float(value)
    kind = float if isinstance(value, float) else np.float32
    texts = (f"{exact:.{digits}g}" for digits in range(6, 18))
    return next((text for text in texts if float(kind(float(text))) == exact), f"{exact:g}")
