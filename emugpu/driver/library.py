"""The shared libraries that stand in for the driver: their generated C, and the compiled files in the build cache.

They are C, not Mojo. A driver has state of a process and of its threads. A shared library in Mojo can keep such state
only through Mojo's runtime library, and the program may have loaded another version of that.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from emugpu import cache
from emugpu.driver.api import (
    OF_TENSORS,
    OWN,
    SCALARS,
    ApiFunction,
    ApiParameter,
    checksum,
    functions,
    refused_of_runtime,
)
from emugpu.driver.results import NAMES, name_of, text_of
from emugpu.paths import COMPILED
from emugpu.processes import compiler

SOURCES = Path(__file__).parent / "shim"
DRIVER = "libcuda.so.1"
CUTE_RUNTIME = "libcute_dsl_runtime.so"
LIBRARIES = {
    DRIVER: ("core.c", "native.c", "linker.c", "export_tables.c", "stubs.c"),
    "libcudart.so.13": ("cudart.c", "cudart_stubs.c", "cudart.map"),
    "libnvidia-ml.so.1": ("nvml.c",),
    "libcublas.so.13": ("cublas.c",),
    "libcublas.so.12": ("cublas.c",),
    "libcublasLt.so.13": ("cublaslt.c",),
    "libcublasLt.so.12": ("cublaslt.c",),
    CUTE_RUNTIME: ("cute_runtime.c", "cute_stubs.c"),
}
"""Each library with its C sources and its linker's version script. Each one is linked with those before it."""
GENERATORS = [
    Path(__file__).with_name(name)
    for name in ("api.py", "functions.txt", "library.py", "results.py", "runtime_refused.txt")
]
"""The files from which the C is generated."""
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread")
COMPILE_SECONDS = 120


def libraries() -> Path:
    """Returns the folder with the compiled libraries: the package's if it carries them, else the cache's.

    Compiles them into the cache on first use. Raises CannotRun if there is no compiler.
    """
    key = sources_key()
    carried = COMPILED / carried_name(key)
    if carried.exists():
        return carried
    place = cache.place("drivers", key)
    files = [place / name for name in LIBRARIES]
    if cache.is_whole(*files):
        return place
    with cache.temporary_folder() as folder:
        made = Path(folder) / "made"
        compile_libraries(made)
        cache.publish(made, place, partial(cache.is_whole, *files))
    return place


def sources_key() -> str:
    """Returns a hash of all inputs of the libraries: the C sources, the tables, and the generators of C."""
    parts = [" ".join(FLAGS).encode(), *(path.read_bytes() for path in [*GENERATORS, *sorted(SOURCES.iterdir())])]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def carried_name(key: str) -> str:
    """Returns the name of the folder in which a wheel carries the libraries."""
    return f"drivers-{key}"


def compile_libraries(to: Path) -> None:
    """Compiles the libraries into a new folder, and leaves their sources beside them. Raises CannotRun."""
    cache.ensure(to)
    for source in SOURCES.iterdir():
        shutil.copy(source, to.parent)
    generated = {
        "stubs.h": header(), "stubs.c": stubs(), "cudart_stubs.c": runtime_stubs(), "cute_stubs.c": cute_stubs()
    }  # fmt: skip
    for name, text in generated.items():
        (to.parent / name).write_text(text, encoding="utf-8")
    for name, sources in LIBRARIES.items():
        _compile([to.parent / source for source in sources], to / name, sorted(to.iterdir()))


def _compile(sources: list[Path], target: Path, libraries: list[Path]) -> None:
    code = [str(source) for source in sources if source.suffix == ".c"]
    scripts = [f"-Wl,--version-script={source}" for source in sources if source.suffix == ".map"]
    link = [f"-Wl,-soname,{target.name}", *scripts, *map(str, libraries), "-ldl"]
    compiler.of_c("the emulated driver", COMPILE_SECONDS).call(*FLAGS, *code, *link, "-o", str(target))


# ---- the generated C ----

_CALLED = {"text": "const char *", "image": "const void *", "in": "const void *", "out": "void *"}


def _declared(parameter: ApiParameter) -> str:
    if parameter.kind == "scalar":
        return f"{SCALARS[parameter.type]} {parameter.name}"
    if parameter.kind == "out" and parameter.type:
        return f"{SCALARS[parameter.type]} *{parameter.name}"
    return f"{_CALLED[parameter.kind]}{parameter.name}"


def _prototype(function: ApiFunction) -> str:
    parameters = ", ".join(map(_declared, function.parameters)) or "void"
    hidden = function.name.startswith(OWN) and not function.name.startswith(OF_TENSORS)
    visible = "" if hidden else "API "
    return f"{visible}Result {function.name}({parameters})"


def header() -> str:
    """Returns the prototypes of all functions, and their numbers."""
    lines = ["#pragma once", '#include "core.h"']
    for function in functions():
        lines.append(f"#define NUMBER_{function.name} {function.number}")
        lines.append(_prototype(function) + ";")
    return "\n".join(lines) + "\n"


def stubs() -> str:
    """Returns the functions that are served, fixed or refused, and the tables of all functions."""
    lines = ['#include "stubs.h"']
    write = {"served": _asking, "anytime": _asking, "fixed": _fixed, "refused": _refusing}
    lines += [write[f.disposition](f) for f in functions() if f.disposition != "native"]
    lines += [_first_form(f) for f in _without_first_form()]
    lines += _tables()
    return "\n".join(lines) + "\n"


def runtime_stubs() -> str:
    """Returns the refused functions of the CUDA runtime."""
    lines = ['#include "core.h"', "int refuse_by_name(const char *name);"]
    for name in refused_of_runtime():
        lines.append(f'API int {name}(void);\nAPI int {name}(void) {{ return refuse_by_name("{name}"); }}')
    return "\n".join(lines) + "\n"


_OF_RUNTIME = re.compile(r"^API \w+(?: \w+)* \*?(cuda\w+)\(", re.MULTILINE)


def cute_stubs() -> str:
    """Returns the runtime's and driver's functions with an underscore before their names, for code of CuTe DSL."""
    runtime = _OF_RUNTIME.findall((SOURCES / "cudart.c").read_text(encoding="utf-8"))
    driver = [function.name for function in functions() if not function.name.startswith(OWN)]
    first = [function.base for function in _without_first_form()]
    targets = {name: name for name in [*runtime, *refused_of_runtime(), *driver, *first]}
    targets["cudaLaunchKernelEx"] = "cudaLaunchKernelExC"
    lines = ["#if defined(__aarch64__)", '#define JUMP "b "', '#define PLT ""']
    lines += ["#else", '#define JUMP "jmp "', '#define PLT "@PLT"', "#endif"]
    form = r'__asm__(".text\n.globl _{0}\n.type _{0}, %function\n_{0}: " JUMP "{1}" PLT);'
    lines += [form.format(name, target) for name, target in sorted(targets.items())]
    return "\n".join(lines) + "\n"


def _asking(function: ApiFunction) -> str:
    body = [] if function.disposition == "anytime" else ["Result ready = require_context();"]
    body += [] if function.disposition == "anytime" else ["if (ready != SUCCESS) return ready;"]
    body += ["Call call;", f"begin(&call, {function.number});", *map(_put, function.parameters)]
    return _definition(function, [*body, "return finish(&call);"])


def _put(parameter: ApiParameter) -> str:
    name = parameter.name
    if parameter.kind == "scalar":
        return f"put_{'float' if parameter.type == 'f32' else 'scalar'}(&call, {_widened(parameter)});"
    if parameter.kind == "in":
        return f"put_bytes(&call, {name}, (size_t)({parameter.size}));"
    if parameter.kind == "out":
        return f"put_output(&call, {name}, (size_t)({parameter.size}));"
    return f"put_{parameter.kind}(&call, {name});"


def _widened(parameter: ApiParameter) -> str:
    return parameter.name if parameter.type in ("u64", "f32") else f"(uint64_t)(int64_t){parameter.name}"


def _fixed(function: ApiFunction) -> str:
    body = [f"(void){p.name};" for p in function.parameters if p.kind != "out"]
    body += [f"if ({p.name}) *{p.name} = {p.value};" for p in function.parameters if p.kind == "out"]
    return _definition(function, [*body, "return SUCCESS;"])


def _refusing(function: ApiFunction) -> str:
    return _definition(function, [f"return refuse({function.number});"])


def _without_first_form() -> list[ApiFunction]:
    """Returns the oldest form of each function whose forms in the table all have a version suffix."""
    names = {function.name for function in functions()}
    found: dict[str, ApiFunction] = {}
    for function in sorted(functions(), key=lambda f: (f.since, f.name)):
        if function.base not in names:
            found.setdefault(function.base, function)
    return list(found.values())


def _first_form(function: ApiFunction) -> str:
    """Returns a definition of, for example, cuCtxDestroy that calls cuCtxDestroy_v2.

    Programs that look names up in the library itself use the unversioned form, although its arguments were once of 32
    bits.
    """
    passed = ", ".join(parameter.name for parameter in function.parameters)
    return _definition(replace(function, name=function.base), [f"return {function.name}({passed});"])


def _definition(function: ApiFunction, body: list[str]) -> str:
    return "\n".join([f"{_prototype(function)} {{", *(f"    {line}" for line in body), "}"])


def _tables() -> list[str]:
    called = [function for function in functions() if not function.name.startswith(OWN)]
    entries = [f'    {{"{f.name}", "{f.base}", {f.since}, (void *){f.name}}},' for f in called]
    results = [f'    {{{code}, "{name_of(code)}", "{text_of(code)}"}},' for code in NAMES]
    return [
        "const Entry entries[] = {",
        *entries,
        f"}};\nconst int entry_count = {len(entries)};",
        f"const unsigned char table_checksum[8] = {{{', '.join(map(str, checksum()))}}};",
        "const ResultName result_names[] = {",
        *results,
        f"}};\nconst int result_name_count = {len(results)};",
    ]
