"""Loads kernels by the CUDA driver and prepares their launches. It needs neither PyTorch nor MAX.

Everything about a launch but its addresses, its factors and its stream is known before the first call and written into
a table. `launcher.mojo`, compiled to a shared library once on a machine, launches from the table: it puts the addresses
into the tensor maps and the other parameters, and calls the driver.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emugpu.cuda.driver import (
    PROGRAMMATIC_STREAM_SERIALIZATION,
    TENSOR_MAP_BYTES,
    Attribute,
    Driver,
    LaunchConfig,
)
from emugpu.emulator.native.library import shared_library
from emugpu.errors import CannotRun
from harness.compile.artifacts import Artifact
from harness.compile.planner import Argument, Plan, ScalarArgument, TensorMapArgument, WorkspaceArgument

VALUES = (
    ("C",), ("A",), ("B",), ("bias", "A scales"), ("residual", "B scales"), ("sizes",), ("factors",), ("workspace",),
    ("alpha",), ("beta",), ("c_scale",),
)  # fmt: skip
"""What the launcher is given behind the table and the stream, by the names that a plan has for it."""
PACK = struct.Struct("=10Q" + 3 * "f4x").pack
"""Makes the launcher's argument of the address of a table, a stream and `VALUES`."""
NUMBERS = {name: number for number, names in enumerate(VALUES) for name in names}
MAP_ALIGNMENT, OTHER_ALIGNMENT = 16, 4
"""Bytes of which an address is a multiple: of a tensor map (CUDA Driver API, cuTensorMapEncodeTiled), and of what the
kernels read two elements at a time (kernels/host/operands.mojo).
"""
ANY_ADDRESS = 1 << 21
"""What tensor maps are encoded with until a launch gives the address."""
# As in launcher.mojo.
HEADER, MOST_PARAMETERS, MOST_WORDS, MISALIGNED = 11, 32, 128, 10000
IS_MAP = 1 << 63
_WORD = 8
MAP_WORDS = 64 // _WORD
"""A tensor map begins at a multiple of 64 bytes (CUDA Driver API, CUtensorMap), as the words of the parameters do."""


@dataclass(frozen=True)
class Workspace:
    """What a kernel needs of global memory: so many bytes, of which the first words, ``counters`` of 4 bytes, are 0
    before each launch and after it.
    """

    counters: int
    bytes: int


@dataclass(frozen=True)
class Launch:
    """A prepared launch. ``table`` is the address of the launcher's table, which ``kept`` keeps alive."""

    table: int
    workspace: Workspace | None
    label: str
    kept: Any

    def run(self, stream: int, named: Mapping[str, float]) -> None:
        """Launches on a stream. ``named`` has addresses and numbers by the names of `VALUES`; what is missing is 0.

        Raises CannotRun if the driver refuses the launch.
        """
        values = (next((named[name] for name in names if name in named), 0) for names in VALUES)
        code = launcher()(PACK(self.table, stream, *values))
        if code:
            raise CannotRun(f"{self.label}: the driver refuses the launch (CUDA driver API error {code})")


class KernelLoader:
    """Loads kernels on one GPU and prepares their launches. Making it makes its context the current one."""

    def __init__(self, ordinal: int) -> None:
        self.driver = Driver(ordinal=ordinal)
        self._functions: dict[Path, ctypes.c_void_p] = {}

    def prepare(self, artifact: Artifact, plan: Plan) -> Launch:
        """Loads the kernel, if it is not yet, and returns a launch of it. Raises CannotRun if the driver refuses it."""
        with self.driver.current():  # another thread may have no context, or another
            function = self._function(artifact, plan)
            attributes = (Attribute * 1)()
            attributes[0].id, attributes[0].value[0] = PROGRAMMATIC_STREAM_SERIALIZATION, 1
            # Only a kernel that waits for the grid before it may begin while that one ends.
            overlaps = "griddepcontrol.wait" in artifact.ptx
            sizes = (ctypes.c_uint * 3)(*plan.grid), (ctypes.c_uint * 3)(*plan.block)
            config = LaunchConfig(*sizes, plan.dynamic_smem, None, attributes, int(overlaps))
            table = self._table(function, config, plan.arguments)
        workspaces = [each for each in plan.arguments if isinstance(each, WorkspaceArgument)]
        workspace = Workspace(workspaces[0].counters, workspaces[0].bytes) if workspaces else None
        return Launch(ctypes.addressof(table), workspace, artifact.config.label, (table, attributes))

    def _function(self, artifact: Artifact, plan: Plan) -> ctypes.c_void_p:
        if artifact.folder not in self._functions:
            assert plan.entry, "a kernel that was compiled has an entry"
            function = self.driver.load(artifact.ptx.encode(), plan.entry)
            self.driver.allow_shared(function, plan.dynamic_smem)
            self._functions[artifact.folder] = function
        return self._functions[artifact.folder]

    def _table(self, function: ctypes.c_void_p, config: LaunchConfig, arguments: Sequence[Argument]) -> Any:
        """Returns the table of words that launcher.mojo describes."""
        patches: list[int] = []
        places: list[int] = []
        words: list[int] = []
        for argument in arguments:
            if isinstance(argument, TensorMapArgument):
                place = f"the tensor map {argument.name} is at word {len(words)} of the parameters"
                rule = f"it must be at a multiple of {MAP_WORDS}: put it before all that is smaller"
                assert len(words) % MAP_WORDS == 0, f"{place}; {rule}"
            places.append(len(words))
            number, added, kind = self._patch(argument)
            if number is not None:
                patches += [len(words), number, added % 2**64, kind]
            words += self._words(argument)
        assert len(places) <= MOST_PARAMETERS and len(words) <= MOST_WORDS
        header: list[int | None] = [function.value, self.driver.context.value, len(patches) // 4, len(places)]
        header += (ctypes.c_uint64 * (ctypes.sizeof(config) // _WORD)).from_buffer(config)
        assert len(header) == HEADER
        words += [0] * (MOST_WORDS - len(words))
        content: list[Any] = [*header, *patches, *places, *words]
        return (ctypes.c_uint64 * len(content))(*content)

    def _patch(self, argument: Argument) -> tuple[int | None, int, int]:
        """Returns the number of the value that a launch puts in the argument's place, or None if the plan's value
        stays; what is added to it; and its kind.
        """
        if isinstance(argument, TensorMapArgument):
            return NUMBERS[argument.tensor], argument.offset, IS_MAP | (MAP_ALIGNMENT - 1)
        if isinstance(argument, ScalarArgument):
            return (NUMBERS[argument.name] if argument.type == "f32" else None), 0, 0
        return NUMBERS[argument.name], 0, (MAP_ALIGNMENT if argument.name in ("A", "B", "C") else OTHER_ALIGNMENT) - 1

    def _words(self, argument: Argument) -> list[int]:
        """Returns the words of a parameter. A tensor map has no address yet."""
        if isinstance(argument, TensorMapArgument):
            encoded = self.driver.tensor_map(
                ANY_ADDRESS,
                argument.dtype,
                argument.dims,
                argument.strides,
                argument.box,
                argument.swizzle,
                argument.l2_promotion,
            )
            return list((ctypes.c_uint64 * (TENSOR_MAP_BYTES // _WORD)).from_buffer_copy(encoded.read()))
        return [argument.value if isinstance(argument, ScalarArgument) and argument.type != "f32" else 0]


@functools.cache
def launcher() -> Any:
    """Returns the launcher's function. Its argument is what `PACK` makes. It returns 0, an error of the driver, or
    `MISALIGNED` and the number of a value.
    """
    source = Path(__file__).with_name("launcher.mojo").read_text(encoding="utf-8")
    path = shared_library({"library.mojo": source}, "the launcher of kernels on a GPU")
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # whose functions the launcher calls
    found = ctypes.CDLL(str(path)).launch
    found.argtypes = [ctypes.c_char_p]
    found.restype = ctypes.c_int32
    return found
