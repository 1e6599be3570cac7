"""Records launches in a folder, each as a launch file that ``emugpu run`` replays.

launch-N/launch.toml    grid, parameters as bytes, and the memory before the launch: every allocation at its address
launch-N/kernel.ptx
launch-N/*.npy          the written parts of the memory, and the variables of the module
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emugpu.driver.log import LaunchRecord
from emugpu.driver.module_calls import LoadedKernel, LoadedModule
from emugpu.driver.state import Session
from emugpu.emulator.memory.global_memory import Allocation
from emugpu.errors import CannotRun, UsageProblem

MOST_PARTS = 256
"""The largest number of parts of an allocation. With more ranges, the bytes between them count as written, too."""


class LaunchRecorder:
    """Writes launches to a folder. Creates the folder at once, and raises UsageProblem if it cannot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            empty = not any(folder.iterdir())
        except OSError as error:
            raise UsageProblem(
                f"-o {folder}/: it cannot be made ({error.strerror or error}); name another folder"
            ) from error
        if not empty:
            raise UsageProblem(f"-o {folder}/ is not empty; name a new folder")

    def wants(self, record: LaunchRecord) -> bool:
        """Returns whether to record a launch."""
        return True

    def keep(self, session: Session, function: LoadedKernel, parameters: bytes, record: LaunchRecord) -> None:
        """Records a launch that is about to start. If that fails, leaves no part of it and raises CannotRun."""
        if not self.wants(record):
            return
        place = self.folder / f"launch-{record.number}"
        try:
            place.mkdir(parents=True)
            (place / "kernel.ptx").write_text(function.module.text, encoding="utf-8")
            text = "\n".join(_launch_file(session, function, parameters, record, place))
            (place / "launch.toml").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            shutil.rmtree(place, ignore_errors=True)
            raise CannotRun(f"cannot record to {place}: {error.strerror or error}") from error


class OneLaunch(LaunchRecorder):
    """Records one launch only.

    ``which`` is its number, or its kernel's name (its first launch), or "" for the last one. After a failed launch a
    program makes no other.
    """

    def __init__(self, folder: Path, which: str) -> None:
        super().__init__(folder)
        self._which = which

    def wants(self, record: LaunchRecord) -> bool:
        if self._which.isdecimal():
            return record.number == int(self._which)
        return not self._which or (self.kept is None and self._which in record.kernel)

    def keep(self, session: Session, function: LoadedKernel, parameters: bytes, record: LaunchRecord) -> None:
        if self.wants(record):
            for before in self.folder.iterdir():
                shutil.rmtree(before)
        super().keep(session, function, parameters, record)

    @property
    def kept(self) -> Path | None:
        """Returns the launch file, or None if the program has not made this launch."""
        return next(self.folder.glob("launch-*/launch.toml"), None)


def _launch_file(
    session: Session, function: LoadedKernel, parameters: bytes, record: LaunchRecord, place: Path
) -> Iterator[str]:
    symbols = session.device.symbols(function.module.ptx)
    yield f"# Launch {record.number} of process {record.process}, recorded before it started."
    yield 'ptx = "kernel.ptx"\n'
    yield "[buffers]"
    others = set(_variables(session))
    for number, block in enumerate(b for b in session.memory.allocations if b.base not in others):
        yield _buffer(f"memory_{number}", block, place)
    if symbols:
        yield "\n[symbols]"
    for number, (name, address) in enumerate(symbols.items()):
        yield _symbol(session, name, address, f"variable-{number}.npy", place)
    yield "\n[launch]"
    yield f"kernel = {json.dumps(function.name)}"
    for key, sizes in (("grid", record.grid), ("cluster", record.cluster), ("block", record.block)):
        yield f"{key} = {list(sizes)}"
    yield f"dynamic_shared = {record.dynamic_shared}"
    if record.cooperative:
        yield "cooperative = true"
    raw = (parameters[p.offset : p.offset + p.size].hex() for p in function.kernel.parameters)
    yield "arguments = [" + ", ".join(f'{{ hex = "{data}" }}' for data in raw) + "]"


def _variables(session: Session) -> Iterator[int]:
    """Yields the addresses of all modules' variables, which are not buffers."""
    for module in session.all(LoadedModule):
        yield from session.device.symbols(module.ptx).values()


def _buffer(name: str, block: Allocation, place: Path) -> str:
    parts = []
    for start, end in _written(block):
        file = f"{name}-{start}.npy"
        np.save(place / file, block.data[start:end])
        parts.append([start, file])
    return (
        f'{name} = {{ dtype = "u8", shape = [{block.data.size}], address = {block.base:#x}, '
        f'init = "uninitialised", parts = {json.dumps(parts)} }}  # {block.name}'
    )


def _written(block: Allocation) -> list[tuple[int, int]]:
    """Returns the ranges of bytes that were written."""
    if block.valid is None:
        return [(0, block.data.size)]
    edges = np.flatnonzero(np.diff(np.concatenate(([False], block.valid, [False])).view(np.int8)))
    ranges: NDArray[np.int64] = edges.reshape(-1, 2)
    if len(ranges) > MOST_PARTS:
        return [(int(ranges[0, 0]), int(ranges[-1, 1]))]
    return [(int(start), int(end)) for start, end in ranges]


def _symbol(session: Session, name: str, address: int, file: str, place: Path) -> str:
    found = session.find(address, 0)
    assert found is not None
    np.save(place / file, found[0].data)
    return f'{json.dumps(name)} = {{ dtype = "u8", init = "{file}" }}'
