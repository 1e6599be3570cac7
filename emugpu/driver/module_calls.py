"""Calls for modules and libraries, their kernels and variables."""

from __future__ import annotations

import struct
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from operator import ne
from pathlib import Path

from emugpu.driver.api import handles
from emugpu.driver.fatbin import ImageError, ptx_of, ptx_of_cubin, stand_in_for_cubin
from emugpu.driver.results import DriverError
from emugpu.driver.state import Session
from emugpu.emulator import LaunchError, Module, PtxSyntaxError
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.register_pool import registers_at_entry
from emugpu.emulator.ptx.ast import PtxKernel
from emugpu.emulator.ptx.sections import blank_kernels, kernel_sections

DEFAULT_SHARED = 48 << 10
"""The shared memory of a kernel that has not asked for more (CUDA C++ Programming Guide, compute capabilities)."""
_ASSUMED_REGISTERS = 32
"""The registers of a kernel whose directives do not limit them: ptxas would decide, and does not run here."""
_MODULES: dict[str, tuple[Module, dict[str, str]]] = {}
"""Parsed modules by their text, because programs load the same module again and again."""


@dataclass
class LoadedModule:
    """A loaded module or library. ``broken`` holds the kernels that the emulator cannot run, each with the reason.

    ``unlaunchable`` is one line that says why no kernel of the module can be launched, or "".
    """

    text: str
    ptx: Module
    broken: dict[str, str]
    unlaunchable: str = ""
    handle: int = 0
    functions: dict[str, LoadedKernel] = field(default_factory=dict)

    @cached_property
    def names(self) -> list[str]:
        return [section.name for section in kernel_sections(self.text)]


@dataclass
class LoadedKernel:
    """A kernel of a module, as a module's function or as a library's kernel."""

    module: LoadedModule
    kernel: PtxKernel
    handle: int = 0
    asked_shared: int | None = None
    """The limit of dynamic shared memory, if the program has set it."""
    any_cluster: bool = False
    """Whether clusters of more than 8 CTAs are allowed (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)."""
    attributes: dict[int, int] = field(default_factory=dict)
    """The other attributes that the program has set."""

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def code(self) -> Code:
        """Returns the kernel's translation. Raises PtxSyntaxError for an instruction that is not implemented."""
        return self.module.ptx.code(self.name)

    @property
    def dynamic_shared(self) -> int:
        """Returns how many bytes of dynamic shared memory a launch may use."""
        if self.asked_shared is not None:
            return self.asked_shared
        return max(0, DEFAULT_SHARED - self.code.static_shared)

    @property
    def registers(self) -> int:
        return registers_at_entry(self.kernel) or _ASSUMED_REGISTERS

    @property
    def most_threads(self) -> int:
        directives = self.kernel.directives
        return prod(directives.get("reqntid") or directives.get("maxntid") or (1024,))


# ---- loading ----


def parse(text: str) -> tuple[Module, dict[str, str]]:
    """Returns a module without the kernels that the parser rejects, and the reasons. Raises PtxSyntaxError."""
    if text not in _MODULES:
        try:
            _MODULES[text] = Module.from_text(text), {}
        except PtxSyntaxError:
            _MODULES[text] = _without_broken(text)
    return _MODULES[text]


def _without_broken(text: str) -> tuple[Module, dict[str, str]]:
    broken: dict[str, str] = {}
    for section in kernel_sections(text):
        try:
            Module.from_text(blank_kernels(text, partial(ne, section.name)))
        except PtxSyntaxError as error:
            broken[section.name] = str(error)
    return Module.from_text(blank_kernels(text, broken.__contains__)), broken


@handles("cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData")
def load(session: Session, image: bytes, *_options: int) -> int:
    log, model = session.gpu.log, session.gpu.model
    unlaunchable = ""
    try:
        text = ptx_of(image, model.capability)
    except ImageError as error:
        found = ptx_of_cubin(image, session.gpu.kept_ptx)
        if found is None:
            unlaunchable, found = str(error), stand_in_for_cubin(image, model.target)
        if found is None:
            log.failed(f"a module cannot be loaded: {error}")
            raise DriverError("NO_BINARY_FOR_GPU") from error
        text = found
    try:
        ptx, broken = parse(text)
    except PtxSyntaxError as error:
        log.failed(f"a module cannot be loaded: {error}")
        raise DriverError("INVALID_PTX") from error
    module = LoadedModule(text, copy(ptx), broken, unlaunchable)  # a copy, so that it has its own variables
    module.handle = session.add(module)
    session.device.load(module.ptx)
    return module.handle


@handles("cuModuleLoad", "cuLibraryLoadFromFile")
def load_file(session: Session, path: str, *_options: int) -> int:
    try:
        image = Path(path).read_bytes()
    except OSError as error:
        raise DriverError("FILE_NOT_FOUND", f"cannot read {path}: {error.strerror}") from error
    return load(session, image)


@handles("cuModuleUnload", "cuLibraryUnload")
def unload(session: Session, handle: int) -> None:
    module = session.get(handle, LoadedModule)
    for function in module.functions.values():
        session.discard(function.handle)
    session.discard(handle)


# ---- kernels ----


def _function(session: Session, module: LoadedModule, name: str) -> int:
    if name in module.broken:
        session.gpu.log.failed(f"kernel '{name}' cannot be run: {module.broken[name]}")
        raise DriverError("INVALID_PTX")
    if name not in module.ptx.entries:
        raise DriverError("NOT_FOUND", f"the module has no kernel '{name}'")
    if name not in module.functions:
        function = LoadedKernel(module, module.ptx.find(name))
        function.handle = session.add(function)
        module.functions[name] = function
    return module.functions[name].handle


@handles("cuModuleGetFunction", "cuLibraryGetKernel")
def get_function(session: Session, handle: int, name: str) -> int:
    return _function(session, session.get(handle, LoadedModule), name)


@handles("cuKernelGetFunction")
def function_of_kernel(session: Session, kernel: int) -> int:
    return session.get(kernel, LoadedKernel).handle


@handles("cuKernelGetLibrary", "cuFuncGetModule")
def module_of(session: Session, function: int) -> int:
    return session.get(function, LoadedKernel).module.handle


@handles("cuLibraryGetModule")
def module_of_library(session: Session, library: int) -> int:
    return session.get(library, LoadedModule).handle


@handles("cuModuleGetFunctionCount", "cuLibraryGetKernelCount")
def count_functions(session: Session, handle: int) -> int:
    return len(session.get(handle, LoadedModule).names)


@handles("cuModuleEnumerateFunctions", "cuLibraryEnumerateKernels")
def enumerate_functions(session: Session, count: int, handle: int) -> bytes:
    module = session.get(handle, LoadedModule)
    found = [_function(session, module, name) for name in module.names[:count]]
    return struct.pack(f"={len(found)}Q", *found)


@handles("cuFuncGetParamInfo", "cuKernelGetParamInfo")
def parameter_info(session: Session, handle: int, index: int) -> tuple[int, int]:
    parameters = session.get(handle, LoadedKernel).kernel.parameters
    if index >= len(parameters):
        raise DriverError("INVALID_VALUE")
    return parameters[index].offset, parameters[index].size


@handles("emulatedFunctionName")
def function_name(session: Session, handle: int) -> bytes:
    return session.get(handle, LoadedKernel).name.encode()[:4095] + b"\0"


@handles("emulatedParameters")
def parameters(session: Session, handle: int) -> bytes:
    """Returns the number of parameters and their bytes, then the offset and size of each."""
    kernel = session.get(handle, LoadedKernel).kernel
    fields = [field for p in kernel.parameters for field in (p.offset, p.size)]
    return struct.pack(f"={2 + len(fields)}I", len(kernel.parameters), kernel.parameter_bytes, *fields)


# ---- attributes of kernels ----

_DYNAMIC_SHARED, _CARVEOUT, _NON_PORTABLE, _SCHEDULING = 8, 9, 14, 15


@handles("cuFuncGetAttribute", "cuKernelGetAttribute")
def attribute(session: Session, number: int, handle: int, *_device: int) -> int:
    function = session.get(handle, LoadedKernel)
    capability = session.gpu.model.capability
    cluster = (*(function.kernel.directives.get("reqnctapercluster") or (0, 0, 0)), 1, 1)
    if number in function.attributes:
        return function.attributes[number]
    if number == 1:
        return function.code.static_shared
    if number == 3:
        return function.code.local_bytes
    simple = {
        0: function.most_threads,
        2: 0,
        4: function.registers,
        5: capability[0] * 10 + capability[1],
        6: capability[0] * 10 + capability[1],
        7: 0,
        _DYNAMIC_SHARED: function.dynamic_shared,
        _CARVEOUT: -1,
        10: int("explicitcluster" in function.kernel.directives),
        11: cluster[0],
        12: cluster[1],
        13: cluster[2],
        _NON_PORTABLE: int(function.any_cluster),
        _SCHEDULING: 0,
    }
    if number not in simple:
        raise DriverError("INVALID_VALUE", f"function attribute {number} is not known")
    return simple[number]


@handles("cuFuncSetAttribute")
def set_attribute(session: Session, handle: int, number: int, value: int) -> None:
    function = session.get(handle, LoadedKernel)
    if number == _DYNAMIC_SHARED:
        most = session.gpu.model["max_shared_memory_per_block_optin"] - function.code.static_shared
        if not 0 <= value <= most:
            raise DriverError("INVALID_VALUE", f"{value} bytes of dynamic shared memory; at most {most} are possible")
        function.asked_shared = value
    elif number == _NON_PORTABLE:
        function.any_cluster = bool(value)
    elif number in (_CARVEOUT, _SCHEDULING, 10, 11, 12, 13):
        function.attributes[number] = value
    else:
        raise DriverError("INVALID_VALUE", f"function attribute {number} cannot be set")


@handles("cuKernelSetAttribute")
def set_kernel_attribute(session: Session, number: int, value: int, handle: int, _device: int) -> None:
    set_attribute(session, handle, number, value)


# ---- variables ----


@handles("cuModuleGetGlobal_v2", "cuLibraryGetGlobal")
def variable(session: Session, handle: int, name: str) -> tuple[int, int]:
    module = session.get(handle, LoadedModule)
    try:
        return session.device.symbol(name, module.ptx), session.device.symbol_bytes(name, module.ptx)
    except LaunchError as error:
        raise DriverError("NOT_FOUND", str(error)) from error
