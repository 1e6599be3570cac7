"""The process that is the emulated GPU of another Python process: see `emugpu.driver.attached`.

It receives ("begin", options) and ("verdict", target, failure) over a pipe, and replies (True, value) or (False,
exception). Its first message holds the environment variables that the other process needs. It ends when the pipe
closes. Ctrl-C reaches both processes: here it ends the launch that runs, so that the other one, which waits for it,
goes on and ends in its own way.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from emugpu.check.verdict import Verdict
from emugpu.driver.gpu_model import GpuModel, gpu_model
from emugpu.driver.library import libraries
from emugpu.driver.log import Log, judge
from emugpu.driver.server import Server, listening, variables
from emugpu.driver.state import SharedGpu
from emugpu.driver.toolchains import folder_for_ptx
from emugpu.emulator import EmulatorError
from emugpu.errors import ReportedError, UsageProblem
from emugpu.launch.launching import EmulationOptions


def main(descriptor: int, gpu: str) -> None:
    """Serves as the GPU until the other process has ended. ``descriptor`` is that of the pipe."""
    control = Connection(descriptor)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            model = gpu_model(gpu)
        except ValueError as error:
            control.send((False, UsageProblem(str(error))))
            return
        try:
            _serve(control, model)
        except ReportedError as error:
            control.send((False, error))


def _serve(control: Connection, model: GpuModel) -> None:
    with folder_for_ptx() as kept, listening() as (listener, name):
        given = variables(os.environ, libraries(), name, kept)
        gpu = SharedGpu(model, EmulationOptions(), Log(), kept_ptx=Path({**os.environ, **given}["CUTE_DSL_DUMP_DIR"]))
        control.send((True, given))
        with Server(listener, gpu) as server:
            signal.signal(signal.SIGINT, lambda *_: setattr(server.gpu, "interrupted", True))
            server.serve(partial(_serve_requests, control, server), control.fileno())


def _serve_requests(control: Connection, server: Server) -> bool:
    """Serves the pending requests. Returns whether the other process is still there."""
    try:
        while control.poll():
            what, *rest = control.recv()
            try:
                control.send((True, _HANDLERS[what](server, *rest)))
            except ReportedError as error:
                control.send((False, error))
    except (EOFError, ConnectionError):
        return False
    return True


def _begin(server: Server, options: dict[str, Any]) -> None:
    """Continues with new options and an empty log."""
    for name in ("timeout", "limit"):
        value = options.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise UsageProblem(f"emulated GPU: {name} {value!r}: must be a finite number above 0; give seconds")
    check, limit = options.pop("check", False), options.pop("limit", None)
    try:
        emulation = EmulationOptions(**{"uninitialised": "report", **options})
        emulation.make_device()
    except (TypeError, ValueError, EmulatorError) as error:
        raise UsageProblem(f"emulated GPU: {error}") from None
    log = Log()
    log.lacking = server.gpu.log.lacking  # a library asks once, and keeps the answer
    server.use(SharedGpu(server.gpu.model, emulation, log, check=check, kept_ptx=server.gpu.kept_ptx, limit=limit))


def _verdict(server: Server, target: str, failure: str) -> tuple[Verdict, list[dict[str, Any]]]:
    gpu = server.gpu
    verdict = judge(gpu.log, target, failure, gpu.check)
    return verdict, [launch.as_dict() for launch in gpu.log.launches]


_HANDLERS: dict[str, Callable[..., Any]] = {"begin": _begin, "verdict": _verdict}
