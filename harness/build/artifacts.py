"""Compiles kernels with Mojo, once: the results are kept in a cache (`harness.cache`).

A build turns one or several configurations into one host program, which prints the PTX of each of them and is not
needed any more. The planner (`harness.build.planner`) computes the launch plans. The cache has

    kernels/<key of one configuration>/{kernel.ptx, artifact.json, ptxas-<version>.json}
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

from harness import cache, paths
from harness.build import planner
from harness.build.config import KernelConfig
from harness.build.mojo_source import driver_source
from harness.build.plan import Plan, parse_plan
from harness.build.programs import ask, compiled, digest, key_of, sources_hash, with_notice
from harness.build.ptxas import assemble, refusal_in
from harness.build.toolchain import mojo_version, package_version, ptxas_version, why_no_ptxas
from harness.errors import CannotRun
from harness.problem.shape import Shape

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """One compiled configuration. folder: its place in the cache. planner: another commit's program that plans its
    launches, if it is not to be this checkout's.

    edited: the file whose PTX, edited_ptx, is run in place of the compiled one (see `harness.run.edited`).
    model: its MAX model, if it is not to be compiled from the sources of this checkout.
    """

    config: KernelConfig
    folder: Path
    compiled_now: bool
    edited: Path | None = None
    edited_ptx: str = ""
    model: Path | None = None
    planner: Path | None = None

    @property
    def ptx_file(self) -> Path:
        return self.edited or self.folder / "kernel.ptx"

    @cached_property
    def ptx(self) -> str:
        return self.edited_ptx if self.edited else self.ptx_file.read_text(encoding="utf-8")

    @property
    def ptx_sha256(self) -> str:
        return hashlib.sha256(self.ptx.encode()).hexdigest()

    def plan(self, shape: Shape) -> Plan:
        """The launch plan for a problem."""
        return parse_plan(self.plan_json(shape))

    def plan_json(self, shape: Shape) -> str:
        """The launch plan as the planner computes it, with the name of the kernel's entry: one line of JSON."""
        return _plan(self.planner or planner.planner(), self.folder, shape)

    def statistics(self) -> dict:
        """What ptxas says about the kernel (see `harness.build.ptxas`); of compiled PTX asked once per version."""
        return self._statistics

    def require_accepted(self) -> None:
        """Raises CannotRun if ptxas is there, and refuses the PTX."""
        refusal = refusal_in(self.statistics())
        if refusal:
            file = f"{self.edited}: " if self.edited else ""
            raise CannotRun(f"{file}ptxas refuses the PTX: {refusal}; mend it, or add --no-ptxas")

    @cached_property
    def _statistics(self) -> dict:
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
    for config in missing:
        _log.info("%s is compiled: %s is not in the cache, whole", config.label, _kernel_folder(config))
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
    return with_notice(", ".join(missing), lambda: build(configs))


def is_built(config: KernelConfig) -> bool:
    """True if the cache holds this configuration."""
    return _load(config) is not None


def plan_json(config: KernelConfig, shape: Shape) -> str:
    """The launch plan of any configuration, as `Artifact.plan_json` but without the entry's name.

    The kernel is not compiled: the planner, the same for all configurations, is compiled once.
    """
    return planner.plan_json(config.options(), shape)


def model_key(config: KernelConfig) -> str:
    """Names the MAX model of a configuration: a hash of sources, configuration and version of MAX.

    Where the compiler lies does not count: models are carried to other machines.
    """
    return digest(sources_hash(paths.kernels_dir()), config.to_json(), str(package_version("max")))


def _load(config: KernelConfig, compiled_now: bool = False) -> Artifact | None:
    folder = _kernel_folder(config)
    if not cache.is_whole(folder / "kernel.ptx", folder / "artifact.json"):
        return None
    return Artifact(config, folder, compiled_now)


def _require(config: KernelConfig, compiled_now: bool) -> Artifact:
    artifact = _load(config, compiled_now)
    if artifact is None:
        raise CannotRun(f"the build cache at {paths.cache_dir()} lost {config.label} again; is it being cleaned?")
    return artifact


def _compile(configs: list[KernelConfig]) -> None:
    ready = {config: planner.compiled_with_planner(config.options()) for config in configs}
    _keep({config: ptx for config, ptx in ready.items() if ptx})
    rest = [config for config in configs if not ready[config]]
    if rest:
        with compiled(driver_source([config.options() for config in rest])) as program:
            _keep({config: ask(program, "ptx", index) for index, config in enumerate(rest)})


def _keep(made: Mapping[KernelConfig, str]) -> None:
    """Publishes the PTX of these configurations."""
    for config, ptx in made.items():
        about = {"config": config.as_dict(), "mojo": mojo_version()}
        with cache.temporary_folder() as temporary:
            folder = cache.ensure(Path(temporary, "kernel"))
            (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
            (folder / "artifact.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            cache.publish(folder, _kernel_folder(config), partial(is_built, config))


@lru_cache(maxsize=256)
def _plan(program: Path, folder: Path, shape: Shape) -> str:
    """Asked once in a process: what a folder of the cache holds stays as it is."""
    options = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))["config"]
    found = json.loads(planner.ask_plan(program, options, shape))
    entry = _ENTRY.search((folder / "kernel.ptx").read_text(encoding="utf-8"))
    return json.dumps({**found, "entry": entry and entry[1]}) + "\n"


_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def _kernel_folder(config: KernelConfig) -> Path:
    return cache.place("kernels", key_of(driver_source([config.options()])))
