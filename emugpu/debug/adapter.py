"""A Debug Adapter for editors. It carries out their requests on a debugger that can go back.

A warp is a thread of the protocol. Its location is that of its last event, so the line that an editor shows has
already been executed. If the PTX has .loc, the frame of the source line is on top of the frame of the PTX line.

Source: microsoft.github.io/debug-adapter-protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from emugpu.debug.commands import Commands, Quit
from emugpu.debug.debugger import START, Debugger, agent_of
from emugpu.debug.names import element, lanes_of
from emugpu.debug.protocol import Connection, given, given_list
from emugpu.debug.shows import matrix, register_text
from emugpu.debug.targets import Target
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.machine.state import Fragment
from emugpu.errors import CannotRun, UsageProblem

Arguments = dict[str, Any]
Warp = tuple[int, int, int]
FILTERS = {"wrong": "First values that differ from the expectation", "finding": "Findings of the checker"}
"""Exception breakpoints: targets, with their labels in the editor. A run that fails always stops at its end."""
PTX_SOURCE = 1
"""The reference of PTX that is in no file in the form that runs."""


class Adapter:
    """One session with an editor. ``load`` records the run that the words of a command line name; `launch` calls it."""

    def __init__(self, connection: Connection, load: Callable[[list[str]], Debugger]) -> None:
        self._connection = connection
        self._load = load
        self._started: Debugger | None = None
        self._reason = "entry"
        self._description = ""
        """Why it has stopped, as the protocol and as the debugger describe it."""
        self._exception_id = ""
        self._stop_on_entry = False
        self._breakpoints: dict[str, list[int]] = {}
        """Numbers of the debugger's breakpoints, by file, or for functions and for exceptions."""
        self._threads: list[Warp] = []
        self._frames: list[Agent | Warp] = []
        self._variables: list[Callable[[], Iterable[Arguments]]] = []
        self._afterwards: list[tuple[str, Arguments]] = []
        self._requests: dict[str, Callable[[Arguments], Any]] = {
            "initialize": self._initialize, "launch": self._launch, "configurationDone": self._configured,
            "setBreakpoints": self._set_breakpoints, "setFunctionBreakpoints": self._set_function_breakpoints,
            "setExceptionBreakpoints": self._set_exception_breakpoints, "exceptionInfo": self._exception,
            "threads": self._list_threads, "stackTrace": self._stack, "scopes": self._scopes,
            "variables": self._show_variables, "source": self._source, "evaluate": self._evaluate,
            "continue": self._continue, "reverseContinue": self._reverse, "next": self._next, "stepIn": self._step_in,
            "stepBack": self._step_back, "pause": self._pause,
        }  # fmt: skip

    def serve(self) -> None:
        """Serves requests until the client disconnects. A request that fails gets an error response."""
        for request in self._connection.requests():
            command = str(request.get("command", ""))
            if command == "disconnect":
                self._connection.respond(request)
                return
            self._afterwards = []
            try:
                if command not in self._requests:
                    raise UsageProblem(f"'{command}' is not a request that this adapter supports")
                body = self._requests[command](given(request, "arguments", dict, {}))
            except (UsageProblem, CannotRun) as error:
                self._connection.respond(request, problem=str(error))
                continue
            except Exception as error:  # a defect of this program; the session continues
                what = f"unexpected {type(error).__name__}: {error}".replace("\n", " ")
                self._connection.respond(request, problem=what)
                continue
            self._connection.respond(request, body)
            for event, more in self._afterwards:
                self._connection.send_event(event, **more)

    # ---- beginning ----

    def _initialize(self, asked: Arguments) -> Arguments:
        for option in ("linesStartAt1", "columnsStartAt1"):
            if not given(asked, option, bool, True):
                raise UsageProblem(f"{option} is false: lines and columns are counted from 1")
        return {
            "supportsConfigurationDoneRequest": True,
            "supportsStepBack": True,
            "supportsSteppingGranularity": True,
            "supportsFunctionBreakpoints": True,
            "supportsEvaluateForHovers": True,
            "supportsExceptionInfoRequest": True,
            "exceptionBreakpointFilters": [
                {"filter": name, "label": label, "default": name == "wrong"} for name, label in FILTERS.items()
            ],
        }

    def _launch(self, asked: Arguments) -> None:
        if self._started is not None:
            raise UsageProblem("launch: a target is debugged already; disconnect, and start another adapter")
        self._stop_on_entry = given(asked, "stopOnEntry", bool, False)
        if "program" not in asked:
            raise UsageProblem('launch: write the target as "program", kernel7 or a launch file, its options as "args"')
        self._started = self._load([given(asked, "program", str), *given_list(asked, "args", str)])
        # Breakpoints are positions in the recording, so the editor can set them only from now on.
        self._afterwards.append(("initialized", {}))

    def _configured(self, _: Arguments) -> None:
        if self._stop_on_entry:
            self._stops("entry", START)
        else:
            self._goes(self._debugger.run)

    @property
    def _debugger(self) -> Debugger:
        if self._started is None:
            raise UsageProblem("nothing is debugged yet; launch first")
        return self._started

    # ---- breakpoints ----

    def _set_breakpoints(self, asked: Arguments) -> Arguments:
        d, source = self._debugger, given(asked, "source", dict)
        file = given(source, "path", str, "") or given(source, "name", str, "")
        is_ptx = given(source, "sourceReference", int, 0) or self._is_ptx(file)
        names = [""] if is_ptx else self._sources_of(file)
        wanted = [given(breakpoint, "line", int) for breakpoint in given_list(asked, "breakpoints", dict)]

        def at(line: int) -> Target:
            """Returns the first line from ``line`` on that has an event, as other debuggers do."""
            lines = [d.targets.lines[name] for name in names]
            here = min((found for events in lines for found in events if found >= line), default=0)
            if not here:
                known = [self._ptx["name"], *(name for name in d.targets.lines if name)]
                what = f"line {line} or a line after it" if names else f"it; files with events: {', '.join(known)}"
                raise UsageProblem(f"{file}: no event belongs to {what}")
            return Target(f"{file}:{here}", tuple(sorted(n for events in lines for n in events.get(here, ()))))

        found = self._replace(file, [partial(at, line) for line in wanted])
        for breakpoint in found["breakpoints"]:
            if breakpoint["verified"]:
                breakpoint["line"] = int(d.breakpoints[breakpoint["id"]].what.rpartition(":")[2])
        return found

    def _set_function_breakpoints(self, asked: Arguments) -> Arguments:
        """Sets breakpoints at any target of `continue` and `back`: full[0] phase 3, C[3,517], tcgen05.mma."""
        names = [given(breakpoint, "name", str) for breakpoint in given_list(asked, "breakpoints", dict)]
        return self._replace("functions", [partial(self._debugger.target, name) for name in names])

    def _set_exception_breakpoints(self, asked: Arguments) -> Arguments:
        names = [name for name in given_list(asked, "filters", str) if name in FILTERS]
        return self._replace("exceptions", [partial(self._debugger.target, name) for name in names])

    def _replace(self, of: str, places: Iterable[Callable[[], Target]]) -> Arguments:
        """Replaces the breakpoints of the same file or kind."""
        d, numbers, replies = self._debugger, [], list[Arguments]()
        for number in self._breakpoints.pop(of, ()):
            d.breakpoints.pop(number, None)
        for place in places:
            try:
                number = d.add_breakpoint(place())
            except UsageProblem as problem:
                replies.append({"verified": False, "message": str(problem)})
                continue
            numbers.append(number)
            replies.append({"id": number, "verified": True})
        self._breakpoints[of] = numbers
        return {"breakpoints": replies}

    # ---- forward and back ----

    def _continue(self, _: Arguments) -> Arguments:
        self._goes(self._debugger.run)
        return {"allThreadsContinued": True}

    def _reverse(self, _: Arguments) -> None:
        self._goes(self._debugger.run_back)

    def _next(self, asked: Arguments) -> None:
        d = self._debugger
        self._steps(asked, d.step if self._by_instruction(asked) else d.next)

    def _step_in(self, asked: Arguments) -> None:
        self._steps(asked, self._debugger.step)

    def _step_back(self, asked: Arguments) -> None:
        d = self._debugger
        self._steps(asked, d.step_back if self._by_instruction(asked) else d.next_back)

    @staticmethod
    def _by_instruction(asked: Arguments) -> bool:
        return given(asked, "granularity", str, "statement") == "instruction"

    def _pause(self, _: Arguments) -> None:
        self._stops("pause", "")

    def _goes(self, move: Callable[[], str]) -> None:
        text, d = move(), self._debugger
        hit = [number for number, target in d.breakpoints.items() if d.position in target.positions]
        exceptions = set(self._breakpoints.get("exceptions", ())) & set(hit)
        self._exception_id = "fault"
        if text == START:
            self._stops("entry", text)
        elif text == d.recording.end:
            ends = ("exception", text) if d.recording.fault else ("end", f"the end of the recording: {text}")
            self._stops(*ends)
        elif exceptions:
            target = d.breakpoints[min(exceptions)]
            rules = [f.rule for at, f in d.recording.findings if at == d.position] if target.what == "finding" else []
            self._exception_id = rules[0] if rules else target.what
            self._stops("exception", target.text_at(d.position), hit)
        else:
            functions = set(hit) <= set(self._breakpoints.get("functions", ()))
            self._stops("function breakpoint" if functions else "breakpoint", text, hit)

    def _steps(self, asked: Arguments, move: Callable[[], str]) -> None:
        self._debugger.warp = self._warp_of(asked)
        self._stops("step", move())

    def _stops(self, reason: str, text: str, hit: Iterable[int] = ()) -> None:
        """Tells the client that all threads have stopped. The client's frames and variables become invalid."""
        d = self._debugger
        self._reason, self._description = reason, text
        self._frames, self._variables = [], []
        operation = getattr(d.event, "operation", None)
        warp = d.warp or next(iter(d.warps), (0, 0, 0))
        if operation is not None and agent_of(d.event) is None:
            warp = operation.agent[:3]
        where = next(d.where())
        self._afterwards += [
            ("output", {"category": "console", "output": f"{text}\n{where}\n" if text else f"{where}\n"}),
            ("stopped", {"reason": reason, "description": text or where, "text": text, "threadId": self._thread(warp),
                         "allThreadsStopped": True, "hitBreakpointIds": list(hit)}),
        ]  # fmt: skip

    def _exception(self, _: Arguments) -> Arguments:
        if self._reason != "exception":
            raise UsageProblem("it has not stopped at a fault, a finding or a difference")
        return {"exceptionId": self._exception_id, "description": self._description, "breakMode": "always"}

    # ---- threads and stacks ----

    def _list_threads(self, _: Arguments) -> Arguments:
        d = self._debugger
        return {"threads": [{"id": self._thread(warp), "name": d.names.warp(*warp)} for warp in d.warps]}

    def _thread(self, warp: Warp) -> int:
        """Returns the number of a warp, which does not change."""
        if warp not in self._threads:
            self._threads.append(warp)
        return 1 + self._threads.index(warp)

    def _warp_of(self, asked: Arguments) -> Warp:
        number = given(asked, "threadId", int)
        if not 0 < number <= len(self._threads):
            raise UsageProblem(f"threadId {number}: there is no such thread; `threads` lists them")
        return self._threads[number - 1]

    def _stack(self, asked: Arguments) -> Arguments:
        frames = list(self._stack_of(self._warp_of(asked)))
        first, levels = given(asked, "startFrame", int, 0), given(asked, "levels", int, 0) or len(frames)
        return {"stackFrames": frames[first : first + levels], "totalFrames": len(frames)}

    def _stack_of(self, warp: Warp) -> Iterator[Arguments]:
        """Yields a frame for each part of a diverged warp, and one for an operation of the warp that acts."""
        d, status = self._debugger, self._debugger.status
        operation = getattr(d.event, "operation", None)
        if operation is not None and agent_of(d.event) is None and operation.agent[:3] == warp:
            yield from self._frames_at(operation.site, d.names.event(d.event), warp)
        for agent in sorted(agent for agent in status.warps if agent[:3] == warp):
            state = status.warps[agent]
            of = "" if agent.lanes == 0xFFFFFFFF else f"{lanes_of(agent.lanes)}: "
            if state.site is not None:
                what = status.waits_for(state.waits) if state.waits is not None else state.site.text
                what = "has left the kernel" if state.left else what
                yield from self._frames_at(state.site, of + what, agent)
        if not any(agent[:3] == warp for agent in status.warps):
            yield {"id": self._frame(warp), "name": "has done nothing yet", "line": 0, "column": 0}

    def _frames_at(self, site: Site, what: str, of: Agent | Warp) -> Iterator[Arguments]:
        if site.source:
            file, _, line = site.source.rpartition(":")
            yield {"id": self._frame(of), "name": what, "source": self._source_of(file), "line": int(line), "column": 1}
        yield {"id": self._frame(of), "name": site.text if site.source else what, "source": self._ptx,
               "line": site.line, "column": 1, **({"presentationHint": "subtle"} if site.source else {})}  # fmt: skip

    def _frame(self, of: Agent | Warp) -> int:
        self._frames.append(of)
        return len(self._frames)

    # ---- files ----

    @property
    def _ptx(self) -> Arguments:
        what = self._debugger.recording.what
        if what.text_given is None:
            return {"name": what.ptx.name, "path": str(what.ptx.resolve())}
        return {"name": what.ptx.name, "sourceReference": PTX_SOURCE}

    def _is_ptx(self, file: str) -> bool:
        path = self._ptx.get("path")
        return file == self._ptx["name"] or (path is not None and Path(file).resolve() == Path(path))

    def _source_of(self, file: str) -> Arguments:
        """Returns a source file. Compilers name it relative to their working directory, or on another machine."""
        found = self._debugger.source_file(file)
        if found is not None:
            return {"name": found.name, "path": str(found.resolve())}
        return {"name": file, "presentationHint": "deemphasize"}

    def _sources_of(self, file: str) -> list[str]:
        """Returns the names that .loc uses for a file of the editor: the same path, or else the same file name."""
        known = [name for name in self._debugger.targets.lines if name]
        same = [name for name in known if self._source_of(name).get("path") == file]
        return same or [name for name in known if Path(name).name == Path(file).name]

    def _source(self, asked: Arguments) -> Arguments:
        reference = given(asked, "sourceReference", int)
        if reference != self._ptx.get("sourceReference"):
            raise UsageProblem(f"sourceReference {reference}: there is no such source; files are read by the editor")
        return {"content": self._debugger.recording.what.text, "mimeType": "text/x-ptx"}

    # ---- variables and expressions ----

    def _scopes(self, asked: Arguments) -> Arguments:
        number = given(asked, "frameId", int)
        if not 0 < number <= len(self._frames):
            raise UsageProblem(f"frameId {number}: there is no such frame here; `stackTrace` lists them")
        of = self._frames[number - 1]
        scopes: dict[str, tuple[bool, Callable[[], Iterable[Arguments]]]] = {
            "Registers": (True, lambda: self._registers(of)),
            "Barriers": (False, lambda: self._barriers(of)),
            "Tiles": (True, lambda: self._tiles(of)),
            "Buffers": (False, self._buffers),
        }
        return {
            "scopes": [
                {"name": name, "expensive": expensive, "variablesReference": self._reference(inside),
                 **({"presentationHint": "registers"} if name == "Registers" else {})}
                for name, (expensive, inside) in scopes.items()
            ]
        }  # fmt: skip

    def _reference(self, inside: Callable[[], Iterable[Arguments]]) -> int:
        self._variables.append(inside)
        return len(self._variables)

    def _show_variables(self, asked: Arguments) -> Arguments:
        number = given(asked, "variablesReference", int)
        if not 0 < number <= len(self._variables):
            raise UsageProblem(f"variablesReference {number}: there is nothing of that number here")
        found = [{"variablesReference": 0, **variable} for variable in self._variables[number - 1]()]
        first = given(asked, "start", int, 0)
        return {"variables": found[first : first + (given(asked, "count", int, 0) or len(found))]}

    def _registers(self, of: Agent | Warp) -> Iterator[Arguments]:
        for fragment in self._fragments(of):
            for name, kind, value in self._debugger.stopped.registers(fragment, ()):
                text = register_text(value, kind, fragment)
                yield {"name": name, "value": text, "type": f".{kind}", "evaluateName": name}

    def _fragments(self, of: Agent | Warp) -> list[Fragment]:
        d = self._debugger
        found = d.stopped.fragments(*of[:3]) if d.position else []
        return [f for f in found if not isinstance(of, Agent) or f.agent.lanes & of.lanes]

    def _barriers(self, of: Agent | Warp) -> Iterator[Arguments]:
        status = self._debugger.status
        for barrier in sorted(status.barriers.values(), key=lambda b: b.key):
            if barrier.key[:2] == of[:2]:
                name = status.names.barrier(barrier.key[2])
                yield {"name": name, "value": status.barrier(barrier).partition(": ")[2]}

    def _tiles(self, of: Agent | Warp) -> Iterator[Arguments]:
        d = self._debugger
        for tile in d.tiles(of[0], of[1]):
            rows = self._reference(lambda tile=tile: _rows(*tile.values(d.stopped)))  # type: ignore[misc]
            yield {
                "name": tile.place,
                "value": tile.what,
                "variablesReference": rows,
                "indexedVariables": tile.shape[0],
            }

    def _buffers(self) -> Iterator[Arguments]:
        for placed in self._debugger.recording.placed.values():
            shape = "x".join(map(str, placed.shape))
            yield {"name": placed.name, "value": f"{shape} {placed.dtype.name} at 0x{placed.address:x}"}

    def _evaluate(self, asked: Arguments) -> Arguments:
        """Carries out a command of the prompt. An expression that an editor evaluates by itself is only shown."""
        d, expression = self._debugger, given(asked, "expression", str).strip()
        frame = given(asked, "frameId", int, 0)
        if 0 < frame <= len(self._frames):
            d.warp = self._frames[frame - 1][:3]
        commands, before = Commands(d), d.position
        is_command = given(asked, "context", str, "repl") == "repl" and expression.split(" ")[0] in commands.names
        try:
            lines = commands.do(expression if is_command else f"show {expression}")
        except Quit:
            self._afterwards.append(("terminated", {}))
            return {"result": "", "variablesReference": 0}
        if d.position != before:
            self._stops("goto", lines[0])
        return {"result": "\n".join(lines), "variablesReference": 0}


def _rows(values: Any, written: Any) -> Iterator[Arguments]:
    for row, line in enumerate(matrix(values, written)):
        yield {"name": element("", [row]), "value": line.strip()}
