"""Compiles and asks host programs in Mojo; each is known by a hash of all that it is made from."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from harness import cache, paths
from harness.build.toolchain import mojo_version, require_mojo
from harness.errors import EXIT_USAGE, CannotRun
from harness.processes.program import run as run_program

COMPILE_SECONDS = 600
ANSWER_SECONDS = 60
T = TypeVar("T")


@contextmanager
def compiled(source: str) -> Iterator[Path]:
    """Compiles a host program from a Mojo source that imports the kernels; it is gone with the block."""
    mojo, key = require_mojo(), key_of(source)
    with cache.temporary_folder() as temporary:
        folder = Path(temporary)
        driver = folder / "driver.mojo"
        driver.write_text(source, encoding="utf-8")
        program = cache.ensure(folder / "program") / "program"
        _run_mojo([str(mojo), "build", "-I", str(paths.mojo_root()), str(driver), "-o", str(program)], folder)
        if key_of(source) != key:
            raise CannotRun("the Mojo sources changed while they were being compiled; run it again")
        yield program


def _run_mojo(command: list[str], folder: Path) -> None:
    try:
        done = run_program(command, COMPILE_SECONDS, cwd=folder)
    except subprocess.TimeoutExpired:
        raise CannotRun(f"the Mojo compiler did not finish in {COMPILE_SECONDS} s") from None
    except OSError as error:
        raise CannotRun(f"the Mojo compiler could not be started: {error}") from error
    if done.returncode or not Path(command[-1]).exists():
        raise CannotRun("the Mojo compiler reports:\n" + readable_errors(done.stdout + done.stderr))


# What the compiler says about itself, and the errors that only say that there was one.
_NOISE = re.compile(r"Failed to initialize Crashpad|Included from ")
_FOLLOWING = re.compile(r"error: (function instantiation failed|failed to run the pass manager)")


def readable_errors(text: str) -> str:
    """The part of the compiler's output that a person needs.

    Failed constraints come first, by their message; then errors with the source lines under them, with paths
    relative to the folder of ``kernels``. Chains of instantiation notes are left out.
    """
    text = text.replace(f"{paths.mojo_root()}{os.sep}", "")
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
    return "\n".join([*constraints, *errors]) or text.strip() or "no message"


class Refused(CannotRun):
    """A size or a configuration breaks a rule that the kernels have, so the request is wrong: see kernels/plan.mojo."""

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


def key_of(source: str) -> str:
    """Hash of a program's source, of the kernels' sources that it imports, and of the compiler. The compiler counts
    with its place, too: the program loads shared libraries from there."""
    return digest(*imported_sources(source), _compiler(), source)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    return f"{require_mojo().resolve()} {mojo_version()}"


def sources_hash(folder: Path) -> str:
    """Hash of all Mojo sources in a folder."""
    files = sorted(folder.rglob("*.mojo"))
    return digest(*(f"{path.relative_to(folder).as_posix()} {_read(path).sha256}" for path in files))


def imported_sources(source: str) -> list[str]:
    """The files that a program's source imports, directly or through others, each with the hash of its content."""
    root, found = paths.kernels_dir().parent, dict[Path, str]()
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
    """state: what changes with its content, so that each content is read once in a process."""
    content = path.read_bytes()
    imports = _IMPORT.findall(content.decode("utf-8", "replace"))
    return _MojoFile(hashlib.sha256(content).hexdigest(), tuple(imports))
