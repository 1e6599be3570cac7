"""Host programs in Mojo: compiled once, kept in the build cache, and asked."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
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


def compile_program(source: str) -> Path:
    """The host program of a Mojo source that imports the kernels, from the cache or compiled now."""
    mojo, key = require_mojo(), key_of(source)
    place = program_place(key)
    if cache.is_whole(place):
        return place
    with cache.temporary_folder() as temporary:
        folder = Path(temporary)
        driver = folder / "driver.mojo"
        driver.write_text(source, encoding="utf-8")
        program = cache.ensure(folder / "program") / place.name
        _run_mojo([str(mojo), "build", "-I", str(paths.mojo_root()), str(driver), "-o", str(program)], folder)
        if key_of(source) != key:
            raise CannotRun("the Mojo sources changed while they were being compiled; run it again")
        cache.publish(program.parent, place.parent, partial(cache.is_whole, place))
    return place


def is_compiled(source: str) -> bool:
    """True if the cache holds its program."""
    return cache.is_whole(program_place(key_of(source)))


def program_place(key: str) -> Path:
    return cache.place("programs", key) / "program"


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
    """A size or a configuration breaks a rule that the kernels have, so the request is wrong: see kernels/emit.mojo."""

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
    """Hash of the kernels' sources, the program's source and the compiler. The compiler counts with its
    place, too: the program loads shared libraries from there."""
    return digest(sources_hash(paths.kernels_dir()), _compiler(), source)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    return f"{require_mojo().resolve()} {mojo_version()}"


def sources_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.mojo")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
