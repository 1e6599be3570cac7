"""The commands of the debugger, one per line, for scripts and for the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from emugpu.check.findings import by_cause
from emugpu.debug.debugger import Debugger
from emugpu.debug.decoded import decoded
from emugpu.debug.reading import qualified, whole
from emugpu.debug.recording import RecordedBuffer
from emugpu.debug.shows import registers, show
from emugpu.debug.targets import FORMS
from emugpu.errors import UsageProblem
from emugpu.launch.spec import find_type

HELP = f"""\
continue [TO], run    go to the next breakpoint or the end; with TO, go to that place
back [TO]             go back to the previous breakpoint or the start; with TO, to that place
step, next [N]        go to the selected warp's next event; to its next source line (or PTX line)
back step, back next  the same, backwards
break TO              stop at these places;  breakpoints: list them;  delete N
watch C[3,517]        the same as break watch C[3,517]
warp [[CLUSTER:]CTA:WARP]   select the warp that steps; without a warp, show the selected one
why C[3,517]          what made an element, and the first step at which it is wrong
why-waits             for each waiting warp: on which barrier, who would have to arrive, and where that thread is
where                 the event, and the PTX around it
operands              of an MMA or a TMA copy: its descriptors and tensor map, decoded
warps, barriers [cta N]   where all warps are; the mbarriers and their arrivals
findings              what the checker finds in this schedule
show C[3,517] [ROWSxCOLUMNS]   elements of a buffer here
show %r1 %p2          registers of the selected warp;  registers: all that it may still read
show full[0]          an mbarrier
show A stage 0 [TYPE] [ROWSxCOLUMNS] [cta N]   shared memory by name or as 0x400: the box there, its swizzle
                      undone; with a TYPE, the bytes in order
show tensor LANE,COLUMN [TYPE] [ROWSxCOLUMNS] [cta N]   a rectangle of tensor memory
buffer C PLACE TYPE SHAPE   give memory a name: PLACE is a buffer, 0xADDRESS or a parameter (+ bytes); SHAPE as 64x64
buffers               the named memory, and the targets of the kernel's pointers
quit
TO is one of
{FORMS}
A dot stands for an element that was never written."""


class Quit(Exception):
    """The script or the user is done."""


class Commands:
    """Carries out commands on a debugger. Each command yields lines of text."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._known: dict[str, Callable[[str], Iterator[str]]] = {
            "continue": self._continue, "c": self._continue, "run": self._continue, "back": self._back,
            "step": self._step, "next": self._next, "break": self._break,
            "watch": lambda rest: self._break(f"watch {rest}"),
            "delete": self._delete, "warp": self._warp, "why": self._why,
            "warps": self._warps, "barriers": self._barriers,
            "show": lambda rest: show(self._debugger, rest),
            "registers": lambda rest: registers(self._debugger, rest.split()), "buffer": self._buffer,
        }  # fmt: skip
        self._alone: dict[str, Callable[[], Iterator[str]]] = {
            "where": self._debugger.where, "why-waits": self._why_waits, "findings": self._findings,
            "operands": self._operands, "breakpoints": self._breakpoints, "buffers": self._buffers,
            "help": lambda: iter(HELP.split("\n")), "quit": self._quit,
        }  # fmt: skip
        """Commands without arguments."""

    @property
    def names(self) -> list[str]:
        return [*self._known, *self._alone]

    def do(self, line: str) -> list[str]:
        """Carries out one line. Raises UsageProblem for an unknown command, Quit for quit."""
        word, _, rest = line.partition("#")[0].strip().partition(" ")
        if not word:
            return []
        if word in self._alone:
            if rest.strip():
                raise UsageProblem(f"{word} takes no argument, not '{rest.strip()}'")
            return "\n".join(self._alone[word]()).splitlines()
        if word not in self._known:
            raise UsageProblem(f"'{word}' is not a command; help lists them")
        return "\n".join(self._known[word](rest.strip())).splitlines()

    # ---- forward and back ----

    def _continue(self, to: str) -> Iterator[str]:
        to = to.removeprefix("to ")
        yield from self._arrived(self._debugger.to(to) if to else self._debugger.run())

    def _back(self, to: str) -> Iterator[str]:
        d, (word, _, count) = self._debugger, to.partition(" ")
        to = to.removeprefix("to ")
        if word == "step":
            yield from self._arrived(d.step_back(whole(count or "1", "how often")))
        elif word == "next":
            yield from self._arrived(d.next_back(whole(count or "1", "how often")))
        else:
            yield from self._arrived(d.back_to(to) if to else d.run_back())

    def _step(self, count: str) -> Iterator[str]:
        yield from self._arrived(self._debugger.step(whole(count or "1", "how often")))

    def _next(self, count: str) -> Iterator[str]:
        yield from self._arrived(self._debugger.next(whole(count or "1", "how often")))

    def _arrived(self, why: str) -> Iterator[str]:
        if why:
            yield why
        yield from self._debugger.where()

    def _break(self, to: str) -> Iterator[str]:
        number = self._debugger.add_breakpoint(to)
        count = len(self._debugger.breakpoints[number].positions)
        yield f"breakpoint {number}: {to}, {f'{count:,} times in this run' if count != 1 else 'once in this run'}"

    def _breakpoints(self) -> Iterator[str]:
        for number, target in self._debugger.breakpoints.items():
            yield f"breakpoint {number}: {target.what}, at {len(target.positions):,} events"

    def _delete(self, which: str) -> Iterator[str]:
        if self._debugger.breakpoints.pop(whole(which, f"delete {which}"), None) is None:
            raise UsageProblem(f"delete {which}: no such breakpoint; breakpoints lists them")
        yield from ()

    def _warp(self, text: str) -> Iterator[str]:
        d = self._debugger
        if text:
            words = text.split(":")
            if not 2 <= len(words) <= 3:
                raise UsageProblem(f"warp {text}: write CTA:WARP or CLUSTER:CTA:WARP, as in 0:4")
            cluster, cta, warp = (whole(word, f"warp {text}") for word in ("0", *words)[-3:])
            if (cluster, cta, warp) not in d.warps:
                raise UsageProblem(f"warp {text}: there is none in this launch; {d.names.warp(*d.warps[0])} is one")
            d.warp = cluster, cta, warp
        if d.warp is None:
            raise UsageProblem("no warp is selected; write warp CTA:WARP")
        lines = list(d.status.warp_lines(lambda agent: agent[:3] == d.warp))
        yield from lines or [f"{d.names.warp(*d.warp)} has done nothing yet"]

    def _warps(self, rest: str) -> Iterator[str]:
        d, of = self._debugger, self._cta("warps", rest)
        lines = list(d.status.warp_lines(lambda agent: not d.status.warps[agent].left and of in (None, agent[:2])))
        yield from lines or ["all warps have left" if d.status.warps else "no warp has started yet"]

    def _barriers(self, rest: str) -> Iterator[str]:
        of = self._cta("barriers", rest)
        yield from list(self._debugger.status.barrier_lines(of)) or ["there is none yet"]

    def _cta(self, word: str, rest: str) -> tuple[int, int] | None:
        """Reads ``cta 1``: a CTA in the selected warp's cluster. Returns None for all CTAs."""
        d, text = self._debugger, f"{word} {rest}"
        words, asked = qualified(rest.split(), text, "cta")
        if words:
            raise UsageProblem(f"{text}: nothing but cta NUMBER may follow")
        d.names.check_cta(asked.get("cta"), text)
        return ((d.warp or (0,))[0], asked["cta"]) if asked else None

    # ---- why ----

    def _why(self, text: str) -> Iterator[str]:
        yield from self._debugger.why(text)

    def _why_waits(self) -> Iterator[str]:
        lines = list(self._debugger.status.waits())
        yield from lines or ["no warp waits here"]

    def _findings(self) -> Iterator[str]:
        found = self._debugger.recording.findings
        at = {id(finding): event for event, finding in found}
        for cause in by_cause(finding for _, finding in found):
            first = cause[0]
            more = f" (and {len(cause) - 1} more like it)" if len(cause) > 1 else ""
            yield f"event {at[id(first)]}: {first.severity} {first.rule}: {first.message}{more}"
            yield from (f"    {place}" for place in (first.first, first.second) if place is not None)
            yield from (f"    {text}" for text in (first.missing, first.fix) if text)
        if not found:
            yield "the checker has found nothing in this schedule"

    # ---- shows ----

    def _operands(self) -> Iterator[str]:
        operation = getattr(self._debugger.event, "operation", None)
        lines = list(decoded(operation, self._debugger.names)) if operation is not None else []
        if not lines:
            raise UsageProblem(
                "operands: this event belongs to no MMA and no copy with a tensor map; try continue tcgen05.mma"
            )
        yield from lines

    def _buffer(self, text: str) -> Iterator[str]:
        words = text.split()
        dtype = find_type(words[2]) if len(words) == len(("name", "place", "type", "shape")) else None
        if dtype is None or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){,7}", words[3], re.ASCII):
            raise UsageProblem(f"buffer {text[:80]}: write name, place, type and shape, as in C param_2 f32 64x64")
        shape = tuple(whole(extent, f"buffer {text}") for extent in words[3].split("x"))
        yield self._describe(self._debugger.name_buffer(words[0], words[1], dtype, shape))

    def _buffers(self) -> Iterator[str]:
        d = self._debugger
        yield from (self._describe(placed) for placed in d.recording.placed.values())
        yield from (f"{name} points to {d.names.address(address)}" for name, address in d.pointers)

    def _describe(self, placed: RecordedBuffer) -> str:
        return f"{placed.name}: {'x'.join(map(str, placed.shape))} {placed.dtype.name} at 0x{placed.address:x}"

    def _quit(self) -> Iterator[str]:
        raise Quit
