"""Finds Mojo, compiles host programs in Mojo and asks them.

Each program is known by a hash of all that it is made from.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape

from emugpu import cache
from emugpu.errors import EXIT_USAGE, CannotRun
from emugpu.gpus import kind_of
from emugpu.launch.ptxas import ASSEMBLE_SECONDS, assemble, ptxas_version
from emugpu.paths import find_mojo
from emugpu.processes.program import ask_version, output_of
from emugpu.processes.program import run as run_program


@dataclass(frozen=True)
class Gpu:
    """Describes one GPU, as its driver does."""

    name: str
    compute_capability: str
    memory: str
    driver: str

    @property
    def kind(self) -> str:
        """Returns the name of its record file, for example ``nvidia-h200``."""
        return kind_of(self.name)


def require_mojo() -> Path:
    """Returns the Mojo compiler. Raises CannotRun, with how to install it, if there is none."""
    mojo = find_mojo()
    if mojo is None or not mojo.exists():
        raise CannotRun(
            f"the Mojo compiler was not found{f' at {mojo}' if mojo else ''}; "
            "install it with `pip install 'max>=26.7,<26.8'`"
        )
    return mojo


def mojo_version() -> str | None:
    """Returns the version, for example ``1.2.0 (2016d0cd)``, or None if no compiler answers."""
    mojo = find_mojo()
    return _mojo_version(mojo) if mojo else None


@functools.cache
def _mojo_version(mojo: Path) -> str | None:
    return ask_version(mojo)[0]


def package_version(name: str) -> str | None:
    """Returns the installed version of a Python package, or None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_gpus() -> list[Gpu]:
    """Returns the NVIDIA GPUs that a program on this machine sees, in its order: those that ``nvidia-smi`` (part of the
    driver) lists and CUDA_VISIBLE_DEVICES does not hide.
    """
    smi = shutil.which("nvidia-smi")
    fields = "uuid,name,compute_cap,memory.total,driver_version"
    text = _first_words(Path(smi), f"--query-gpu={fields}", "--format=csv,noheader") if smi else None
    rows = [[cell.strip() for cell in line.split(",")] for line in (text or "").splitlines()]
    listed = {row[0]: Gpu(*row[1:]) for row in rows if len(row) == 5}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(listed.values()) if visible is None else _visible(visible, listed)


def _visible(wanted: str, listed: dict[str, Gpu]) -> list[Gpu]:
    """Returns the listed GPUs that CUDA_VISIBLE_DEVICES names, by number or by the start of a UUID. The first name that
    does not exist hides all after it (CUDA C++ Programming Guide, environment variables).
    """
    found = []
    for word in (word.strip() for word in wanted.split(",")):
        names = list(listed)
        if word.isdecimal() and int(word) < len(names):
            found.append(listed[names[int(word)]])
            continue
        matches = [uuid for uuid in names if word.startswith("GPU-") and uuid.startswith(word)]
        if len(matches) != 1:
            break
        found.append(listed[matches[0]])
    return found


def versions() -> dict[str, str | None]:
    """Returns the versions of all that a result depends on, for records; None if not installed."""
    return {
        "mojo": mojo_version(),
        "max": package_version("max"),
        "ptxas": ptxas_version(),
        "python": platform.python_version(),
        "numpy": package_version("numpy"),
    }


def _first_words(program: Path, *arguments: str) -> str | None:
    """Returns what a program prints, or None if it cannot be run or fails."""
    try:
        return output_of(program, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None


_PARTS = {"mma_shape": ("mma_m", "mma_n"), "cluster": ("cluster_m", "cluster_n")}
"""The names that the kernels give the two numbers of a pair."""

PLANNER = "from kernels.host.plan import plan_main\n\n\ndef main():\n    plan_main()\n"


def parameters(options: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """Returns the options by the names that the kernels give them, without those that are None."""
    found: dict[str, str | int | bool] = {}
    for name, value in options.items():
        if name in _PARTS and value is not None:
            found |= dict(zip(_PARTS[name], value, strict=True))
        elif value is not None:
            found[name] = value
    return found


def options_text(options: Mapping[str, Any]) -> str:
    """Writes options as the kernels read them (``kernels/common/options.mojo``). A kernel chooses those left out."""
    return " ".join(words_of(options))


def words_of(options: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in parameters(options).items()
    ]


def driver_source(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Writes a program that calls ``kernels/host/emit.mojo``. It knows each configuration, given by its options, by its
    place in the list.
    """
    return f"{_IMPORTS}\n\ndef main():\n{_emit(kernels, 4)}"


def planner_source_with(options: Mapping[str, Any]) -> str:
    """Writes a program that is the planner and also holds the PTX of one kernel."""
    return (
        f"{_IMPORTS}from kernels.host.plan import plan_main\nfrom std.sys import argv\n\n\ndef main():\n"
        f'    if len(argv()) > 1 and argv()[1] == "ptx":\n{_emit([options], 8)}    else:\n        plan_main()\n'
    )


_IMPORTS = "from kernels.host.emit import emit_main\n"


def _emit(kernels: Sequence[Mapping[str, Any]], indent: int) -> str:
    margin = " " * indent
    lines = "".join(f"{margin}    {json.dumps(options_text(options))},\n" for options in kernels)
    return f"{margin}emit_main[\n{lines}{margin}]()\n"


COMPILE_SECONDS = 600
ANSWER_SECONDS = 60
T = TypeVar("T")


@contextmanager
def compiled(source: str, root: Path) -> Iterator[Path]:
    """Compiles a host program from a Mojo source that imports the kernels in ``root``. The end of the block deletes
    the program.
    """
    mojo, key = require_mojo(), key_of(source, root)
    with cache.temporary_folder() as temporary:
        folder = Path(temporary)
        driver = folder / "driver.mojo"
        driver.write_text(source, encoding="utf-8")
        program = cache.ensure(folder / "program") / "program"
        _run_mojo([str(mojo), "build", "-I", str(root), str(driver), "-o", str(program)], folder, root)
        if key_of(source, root) != key:
            raise CannotRun("the Mojo sources changed while they were being compiled; run it again")
        yield program


CHECK = "check what EMUGPU_MOJO names, or leave it out"


def _run_mojo(command: list[str], folder: Path, root: Path) -> None:
    try:
        done = run_program(command, COMPILE_SECONDS, cwd=folder)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"the Mojo compiler did not finish in {COMPILE_SECONDS} s") from None
    except OSError as error:
        raise CannotRun(f"the Mojo compiler {command[0]} cannot be started ({error.strerror}); {CHECK}") from error
    if done.returncode or not Path(command[-1]).exists():
        said = done.stdout + done.stderr
        if not said.strip():
            raise CannotRun(
                f"the Mojo compiler {command[0]} ended with code {done.returncode}, left no program and said nothing; "
                f"{CHECK}"
            )
        raise CannotRun("the Mojo compiler reports:\n" + readable_errors(said, root))


# What the compiler says about itself, and the errors that only say that there was one.
_NOISE = re.compile(r"Failed to initialize Crashpad|Included from |Imported from ")
_FOLLOWING = re.compile(r"error: (function instantiation failed|failed to run the pass manager)")
# Why a call matches no function. Every struct can also be made from another one, by `move` and `copy`.
_MISMATCH = re.compile(r"note: (candidate not viable: (?!missing required argument: '(?:move|copy)').*)")


def readable_errors(text: str, root: Path) -> str:
    """Returns the part of the compiler's output that a person needs.

    The messages of failed constraints come first, then errors with the source lines under them. Paths are relative to
    ``root``, the folder of ``kernels``. Chains of instantiation notes are left out.
    """
    for own in (root / "kernels" / "own.mojo", root / "kernels" / "own_epilogue.mojo"):
        if own.is_symlink():
            text = text.replace(str(own), str(own.readlink()))
    text = text.replace(f"{root}{os.sep}", "")
    constraints = list(dict.fromkeys(re.findall(r"constraint failed: (.*)", text)))
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if re.match(r"\S.*: (error|warning|note|remark): ", line):
            blocks.append([line])
        elif blocks and not _NOISE.match(line):
            blocks[-1].append(line)
    errors = [
        "\n".join(block)
        for block in blocks
        if re.match(r"\S+:\d+:\d+: error: ", block[0]) and not (constraints and _FOLLOWING.search(block[0]))
    ]
    mismatches = list(dict.fromkeys(_MISMATCH.findall(text)))
    return "\n".join([*constraints, *errors, *mismatches]) or text.strip() or "no message"


class Refused(CannotRun):
    """Says that a size or a configuration breaks a rule of the kernels (kernels/host/plan.mojo)."""

    exit_code = EXIT_USAGE


def ask(program: Path, *arguments: str | int) -> str:
    """Runs a compiled program and returns what it prints."""
    words = [str(argument) for argument in arguments]
    try:
        done = run_program([program, *words], ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"the compiled program {program} could not be run: {error}") from error
    if done.returncode:
        message = (done.stderr + done.stdout).strip() or f"exit code {done.returncode}"
        if done.returncode == EXIT_USAGE:
            raise Refused(message)
        raise CannotRun(f"{' '.join(words)}: {message}")
    return done.stdout


def with_notice(what: str, work: Callable[[], T]) -> T:
    if not what:
        return work()
    console = Console(stderr=True)
    message = f"compiling {what} with Mojo ..."
    if console.is_terminal:
        with console.status(escape(message)):
            return work()
    print(message, file=sys.stderr)
    return work()


def key_of(source: str, root: Path) -> str:
    """Hashes a program's source, the kernels' sources in ``root`` that it imports, and the compiler. The compiler's
    place counts, too, because the program loads shared libraries from there.
    """
    return digest(*imported_sources(source, root), _compiler(), source)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    return f"{require_mojo().resolve()} {mojo_version()}"


def sources_hash(folder: Path) -> str:
    """Hashes all Mojo sources in a folder."""
    files = sorted(folder.rglob("*.mojo"))
    return digest(*(f"{path.relative_to(folder).as_posix()} {_read(path).sha256}" for path in files))


def imported_sources(source: str, root: Path) -> list[str]:
    """Finds the files in ``root`` that a source imports, directly or through others; returns each with the hash of its
    content.
    """
    found: dict[Path, str] = {}
    waiting = [root.joinpath(*module.split(".")) for module in _IMPORT.findall(source)]
    while waiting:
        module = waiting.pop()
        if not module.is_relative_to(root / "kernels"):  # of the standard library, or of MAX
            continue
        package = module.is_dir()
        # Of a package it imports we cannot tell what is taken: all of its files count.
        files = [*module.rglob("*.mojo")] if package else [module.with_suffix(".mojo")]
        for path in [path for path in files if path not in found and path.exists()]:
            file = _read(path)
            found[path] = f"{path.relative_to(root).as_posix()} {file.sha256}"
            for name in file.imports:
                dots = len(name) - len(name.lstrip("."))
                base = path.parents[dots - 1] if dots else root
                waiting.append(base.joinpath(*name[dots:].split(".")))
    return [found[path] for path in sorted(found)]


_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([.\w]+)", re.MULTILINE)


@dataclass(frozen=True)
class _MojoFile:
    sha256: str
    imports: tuple[str, ...]


def _read(path: Path) -> _MojoFile:
    state = path.stat()
    return _read_as_it_is(path, state.st_ino, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _read_as_it_is(path: Path, *state: int) -> _MojoFile:
    """Reads a file once for each ``state``, which changes with the content."""
    content = path.read_bytes()
    imports = _IMPORT.findall(content.decode("utf-8", "replace"))
    return _MojoFile(hashlib.sha256(content).hexdigest(), tuple(imports))


def disassemble(ptx: str, arch: str) -> str:
    """Returns the machine code (SASS) of a PTX text. Raises CannotRun without the tools of the CUDA toolkit."""
    nvdisasm = find_nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        found = assemble(source, arch)
        if "error" in found:
            raise CannotRun(f"machine code needs ptxas: {found['error']}")
        if nvdisasm is None:
            raise CannotRun(
                "machine code needs nvdisasm (CUDA toolkit, or PyTorch's triton) on PATH, and it is not; "
                "use --emit ptx, or asm-stats for the registers"
            )
        command = [nvdisasm, "--print-code", str(source.with_suffix(".cubin"))]
        done = run_program(command, ASSEMBLE_SECONDS)
    if done.returncode:
        raise CannotRun(f"nvdisasm: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout


def find_nvdisasm() -> str | None:
    """Looks for nvdisasm on PATH, and in the triton package, which PyTorch installs."""
    found = shutil.which("nvdisasm")
    triton = importlib.util.find_spec("triton")
    if found or triton is None or triton.origin is None:
        return found
    neighbour = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return str(neighbour) if neighbour.exists() else None
