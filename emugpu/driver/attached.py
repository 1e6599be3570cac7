"""The emulated GPU of a Python process that already runs.

This process loads the emulated CUDA libraries before any others. A second process (`emugpu.driver.attached_server`) is
the GPU; it ends with this one. The GPU is a process and not a thread, because C code that calls the driver may hold
Python's lock while it waits.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emugpu.driver.toolchains import startup
from emugpu.errors import CannotRun, UsageProblem
from emugpu.paths import ROOT
from emugpu.pytorch import section_begins
from emugpu.pytorch.importing import activate_when_imported

if TYPE_CHECKING:
    from emugpu.check.findings import Finding
    from emugpu.check.verdict import Verdict

LIBRARIES = (
    *("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1"),
    *("libcublas.so.13", "libcublas.so.12", "libcublasLt.so.13", "libcublasLt.so.12"),
)
"""The dynamic linker then has the emulated libraries under the names that programs ask for."""
_NVIDIA = re.compile(r"\s(/\S*/(?:libcuda|libcudart|libnvidia-ml)\.so[^/\s]*)$", re.MULTILINE)


class EmulatedGpu:
    """The emulated GPU from `begin` to `end`; a process has one such section at a time.

    ``verdict`` is the verdict of `emugpu verify`. ``launches`` is plain data, as in ``emugpu exec -o FILE.json``. Both
    can be read at any time in the section; afterwards they stay as they were at its end.
    """

    def __init__(self, process: _Process, target: str, options: dict[str, Any]) -> None:
        self._process = process
        self._target = target
        self._ended: tuple[Verdict, list[dict[str, Any]]] | None = None
        process.ask("begin", options)
        section_begins()

    @property
    def verdict(self) -> Verdict:
        return self._now()[0]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns the checker's findings, of every severity."""
        return self.verdict.findings

    @property
    def launches(self) -> list[dict[str, Any]]:
        return self._now()[1]

    @property
    def counters(self) -> dict[str, Any]:
        """Returns the sum of the counters of all launches, or {} if nothing was launched."""
        from emugpu.launch.launching import add_counters

        return add_counters([launch["counters"] for launch in self.launches])

    def end(self, failure: str = "") -> Verdict:
        """Ends the section. ``failure`` is one line with the error that the program itself reports, or ""."""
        if self._ended is None:
            self._ended = self._process.ask("verdict", self._target, failure)
        return self._ended[0]

    def _now(self) -> tuple[Verdict, list[dict[str, Any]]]:
        return self._ended or self._process.ask("verdict", self._target, "")


class _Process:
    """The GPU's process. Raises UsageProblem if there is no such GPU, CannotRun if the process cannot be started."""

    def __init__(self, gpu: str) -> None:
        ours, theirs = socket.socketpair()
        self.gpu = gpu
        self.section: EmulatedGpu | None = None
        self._control = Connection(ours.detach())
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        with theirs:
            # -P: a folder "emugpu" in the working directory must not be imported
            main = f"from emugpu.driver.attached_server import main; main({theirs.fileno()}, {gpu!r})"
            command = [sys.executable, "-P", "-c", main]
            self._process = subprocess.Popen(
                command, env=variables, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.__stderr__
            )
        os.environ.update(self._receive())
        atexit.register(self._end)
        folder = os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)[0]
        self._libraries = [ctypes.CDLL(str(Path(folder) / name)) for name in LIBRARIES]
        os.environ.update(startup(os.environ))
        activate_when_imported()

    def ask(self, *request: Any) -> Any:
        with suppress(ConnectionError):  # _receive says it
            self._control.send(request)
        return self._receive()

    def _receive(self) -> Any:
        try:
            good, value = self._control.recv()
        except (EOFError, ConnectionError):
            raise CannotRun("the process of the emulated GPU has ended; start this program again") from None
        if not good:
            raise value
        return value

    def _end(self) -> None:
        self._libraries[0].emulatedGpuLeaves()
        self._control.close()
        self._process.wait()


_process: _Process | None = None


def begin(gpu: str, target: str, options: dict[str, Any]) -> EmulatedGpu:
    """Begins a section with the emulated GPU. Earlier errors of kernels are dropped; memory and modules stay.

    ``target`` names the code in the verdict. ``options`` are ``check`` and those of `EmulationOptions`. Raises
    UsageProblem if a CUDA library is already loaded, or if the process already has another GPU.
    """
    global _process
    if _process is None:
        loaded = _NVIDIA.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
        if loaded:
            raise UsageProblem(
                f"{loaded[1]} is loaded already; ask for the emulated GPU before anything uses CUDA, or start the "
                "program by `emugpu exec -- python ...`"
            )
        _process = _Process(gpu)
    if _process.gpu != gpu:
        raise UsageProblem(f"GPU {gpu!r}: this process has an emulated {_process.gpu} already; use another process")
    _process.section = EmulatedGpu(_process, target, options)
    return _process.section


@contextmanager
def emulated_gpu(
    gpu: str = "b200",
    *,
    check: bool = False,
    schedule: str = "fifo",
    seed: int = 0,
    accumulation: str = "f32",
    uninitialised: str = "report",
    engine: str = "native",
    timeout: float | None = None,
    max_steps: int | None = None,
    limit: float | None = None,
) -> Iterator[EmulatedGpu]:
    """Gives this process an emulated GPU, for code that calls the CUDA driver: Triton, CuTe DSL, numba, cuda.core, MAX.

        with emulated_gpu("b200", check=True) as gpu:
            program()
        print(gpu.verdict.word)

    Enter it before importing anything that loads libcuda. From then on the process has this GPU and no other. Each
    ``with`` block has its own verdict. An exception in the block counts as a wrong result.

    Args:
        gpu: b200, b300, h200, h100, rtx5090 or spark.
        check: whether to look for races, as ``emugpu verify`` does; much slower.
        schedule: fifo, random, declining or reversed. seed: of a random schedule. accumulation, uninitialised, engine:
            as the settings of ``--emulate``.
        timeout: after this many seconds in which no cluster has ended, a launch is ended. max_steps: the limit of a
            launch in warp instructions. limit: the seconds that all launches may take together.

    Raises:
        UsageProblem: an argument has an unknown value, or a CUDA library is already loaded.
        CannotRun: for example, there is no C compiler.
    """
    if _process is not None and _process.section is not None and _process.section._ended is None:
        raise UsageProblem("emulated_gpu inside emulated_gpu: a process has one GPU; leave the inner one out")
    options = {
        "check": check, "schedule": schedule, "seed": seed, "accumulation": accumulation,
        "uninitialised": uninitialised, "engine": engine, "timeout": timeout, "max_steps": max_steps, "limit": limit,
    }  # fmt: skip
    section = begin(gpu, "this program", options)
    try:
        yield section
    except BaseException as error:
        harmless = isinstance(error, SystemExit) and not error.code
        section.end("" if harmless else f"the program raised {type(error).__name__}: {error}".partition("\n")[0])
        raise
    section.end()
