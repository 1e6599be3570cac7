"""Compiles kernels with Mojo, once: the results are kept in a cache (`harness.compiler.cache`).

A build turns one or several configurations into one host program that holds the PTX of each of them and can
compute its launch plan. Another program plans any configuration without its PTX. The cache has

    programs/<key of its source>/program
    kernels/<key of one configuration>/{kernel.ptx, artifact.json, ptxas-<version>.json}
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from harness import paths
from harness.compiler import cache
from harness.compiler.driver import PLANNER_SOURCE, driver_source, gemm_parameters
from harness.compiler.plan import Plan, parse_plan
from harness.compiler.ptxas import assemble
from harness.compiler.toolchain import mojo_version, package_version, ptxas_version, require_mojo, why_no_ptxas
from harness.config.config import KernelConfig
from harness.errors import CannotRun
from harness.problem.shape import Shape

COMPILE_SECONDS = 600
ANSWER_SECONDS = 60
T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """One compiled configuration. folder: its place in the cache; index: its number in the program.

    edited: the file whose PTX, edited_ptx, is run in place of the compiled one (see `harness.ptx.edited`).
    """

    config: KernelConfig
    folder: Path
    program: Path
    index: int
    compiled_now: bool
    edited: Path | None = None
    edited_ptx: str = ""

    @cached_property
    def ptx(self) -> str:
        if self.edited:
            return self.edited_ptx
        return (self.folder / "kernel.ptx").read_text(encoding="utf-8")

    @property
    def ptx_sha256(self) -> str:
        return hashlib.sha256(self.ptx.encode()).hexdigest()

    def plan(self, shape: Shape) -> Plan:
        """The launch plan for a problem."""
        return parse_plan(self.plan_json(shape))

    def plan_json(self, shape: Shape) -> str:
        """The launch plan as the compiled program computes it: one line of JSON."""
        return _plan(self.program, self.index, shape)

    def statistics(self) -> dict:
        """What ptxas says about the kernel (see `harness.compiler.ptxas`); of compiled PTX asked once per version."""
        version = ptxas_version()
        if version is None:
            return {"error": why_no_ptxas()}
        kept = self.folder / f"ptxas-{version}.json"
        if cache.is_whole(kept) and not self.edited:
            return json.loads(kept.read_text(encoding="utf-8"))
        try:
            return self._assemble(kept, version)
        except (OSError, CannotRun) as error:  # a full disk must not cost a result its record
            return {"error": f"ptxas could not be asked: {error}"}

    def _assemble(self, kept: Path, version: str) -> dict:
        with cache.temporary_folder() as temporary:
            ptx = Path(temporary, "kernel.ptx")
            ptx.write_text(self.ptx, encoding="utf-8")
            found = {**assemble(ptx, self.config.arch), "version": version}
            answer = Path(temporary, kept.name)
            answer.write_text(json.dumps(found), encoding="utf-8")
            if "error" not in found:
                cache.publish_file(answer, kept)
        return found


def build(configs: Sequence[KernelConfig]) -> list[Artifact]:
    """The artifacts of these configurations, in their order. What the cache lacks is compiled in one go."""
    missing = [config for config in dict.fromkeys(configs) if _load(config) is None]
    if missing:
        _compile(missing)
    return [_require(config, compiled_now=config in missing) for config in configs]


def build_each(configs: Sequence[KernelConfig]) -> dict[KernelConfig, Artifact | str]:
    """Artifacts, or the reason why there is none: one that does not compile must not cost the others."""
    configs = list(dict.fromkeys(configs))
    if not configs:
        return {}
    try:
        return dict(zip(configs, build(configs), strict=True))
    except CannotRun as error:
        if len(configs) == 1:
            return {configs[0]: str(error)}
    kernels = list(dict.fromkeys(config.kernel for config in configs))
    if len(kernels) > 1:
        parts = [[config for config in configs if config.kernel == kernel] for kernel in kernels]
    else:
        parts = [configs[: len(configs) // 2], configs[len(configs) // 2 :]]
    return {config: artifact for part in parts for config, artifact in build_each(part).items()}


def build_with_notice(configs: Sequence[KernelConfig]) -> list[Artifact]:
    """`build`, for a person: says on standard error what is being compiled, as that takes a while."""
    missing = [config.label for config in dict.fromkeys(configs) if not is_built(config)]
    return _with_notice(", ".join(missing), lambda: build(configs))


def plan_with_notice(config: KernelConfig, shape: Shape) -> str:
    """`plan_json`, for a person."""
    compiled = cache.is_whole(_program_place(_key(PLANNER_SOURCE)))
    return _with_notice("" if compiled else "the planner (once)", lambda: plan_json(config, shape))


def _with_notice(what: str, work: Callable[[], T]) -> T:
    if not what:
        return work()
    console = Console(stderr=True)
    message = f"compiling {what} with Mojo ..."
    if console.is_terminal:
        with console.status(escape(message)):
            return work()
    print(message, file=sys.stderr)
    return work()


def is_built(config: KernelConfig) -> bool:
    """True if the cache holds this configuration."""
    return _load(config) is not None


def plan_json(config: KernelConfig, shape: Shape) -> str:
    """The launch plan of any configuration, as `Artifact.plan_json` but without the entry's name.

    The kernel is not compiled: the planner, the same for all configurations, is compiled once.
    """
    program = planner()
    options = [f"{name}={value}" for name, value in gemm_parameters(config).items()]
    return _ask(program, shape.m, shape.n, shape.k, *options)


def planner() -> Path:
    """The program that plans any configuration: ``planner M N K name=value ...`` (see ``kernels/plan.mojo``)."""
    return _program(PLANNER_SOURCE)


def model_key(config: KernelConfig) -> str:
    """Names the MAX model of a configuration: a hash of sources, configuration and version of MAX.

    Where the compiler lies does not count: models are carried to other machines.
    """
    return _digest(_sources_hash(paths.kernels_dir()), config.to_json(), str(package_version("max")))


def _load(config: KernelConfig, compiled_now: bool = False) -> Artifact | None:
    folder = _kernel_folder(config)
    if not cache.is_whole(folder / "kernel.ptx", folder / "artifact.json"):
        return None
    about = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))
    program = _program_place(about["program"])
    return Artifact(config, folder, program, about["index"], compiled_now) if cache.is_whole(program) else None


def _require(config: KernelConfig, compiled_now: bool) -> Artifact:
    artifact = _load(config, compiled_now)
    if artifact is None:
        raise CannotRun(f"the build cache at {paths.cache_dir()} lost {config.label} again; is it being cleaned?")
    return artifact


def _compile(configs: list[KernelConfig]) -> None:
    places = [_kernel_folder(config) for config in configs]
    source = driver_source(configs)
    key = _key(source)
    program = _program(source)
    with cache.temporary_folder() as temporary:
        for index, (config, place) in enumerate(zip(configs, places, strict=True)):
            made = cache.ensure(Path(temporary, str(index)))
            (made / "kernel.ptx").write_text(_ask(program, "ptx", index), encoding="utf-8")
            about = {"program": key, "index": index, "config": config.as_dict(), "mojo": mojo_version()}
            (made / "artifact.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            cache.publish(made, place, partial(is_built, config))


def _program(source: str) -> Path:
    """The host program of a Mojo source that imports the kernels, from the cache or compiled now."""
    mojo, key = require_mojo(), _key(source)
    place = _program_place(key)
    if cache.is_whole(place):
        return place
    with cache.temporary_folder() as temporary:
        folder = Path(temporary)
        driver = folder / "driver.mojo"
        driver.write_text(source, encoding="utf-8")
        program = cache.ensure(folder / "program") / place.name
        _run_mojo([str(mojo), "build", "-I", str(paths.mojo_root()), str(driver), "-o", str(program)], folder)
        if _key(source) != key:
            raise CannotRun("the Mojo sources changed while they were being compiled; run it again")
        cache.publish(program.parent, place.parent, partial(cache.is_whole, place))
    return place


def _program_place(key: str) -> Path:
    return cache.place("programs", key) / "program"


def _run_mojo(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMPILE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
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


def _ask(program: Path, *arguments: str | int) -> str:
    """Runs a compiled program and returns what it prints."""
    words = [str(argument) for argument in arguments]
    try:
        done = subprocess.run(
            [program, *words],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"the compiled program {program} could not be run: {error}") from error
    if done.returncode:
        message = (done.stderr + done.stdout).strip() or f"exit code {done.returncode}"
        raise CannotRun(f"{' '.join(words)}: {message}")
    return done.stdout


@functools.lru_cache(maxsize=256)
def _plan(program: Path, index: int, shape: Shape) -> str:
    """Asked once in a process: a program is kept under a hash of its source."""
    return _ask(program, "plan", index, shape.m, shape.n, shape.k)


def _kernel_folder(config: KernelConfig) -> Path:
    return cache.place("kernels", _key(driver_source([config])))


def _key(source: str) -> str:
    """Hash of the kernels' sources, the program's source and the compiler. The compiler counts with its
    place, too: the program loads shared libraries from there."""
    return _digest(_sources_hash(paths.kernels_dir()), _compiler(), source)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _compiler() -> str:
    return f"{require_mojo().resolve()} {mojo_version()}"


def _sources_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.mojo")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
