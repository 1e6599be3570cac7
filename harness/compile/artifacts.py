"""Compiles kernels with Mojo, once, and makes launchables of them; `emugpu.cache` keeps what is compiled.

A build turns one or several configurations into one host program, which prints the PTX of each of them and is not
needed any more. The planner (`harness.compile.planner`) computes the launch plans. The cache has

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
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from emugpu import cache
from emugpu.emulator import Region, Swizzle
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.expectation import Comparison, Holds
from emugpu.launch.expression import parse_expression
from emugpu.launch.launching import LaunchOutcome
from emugpu.launch.ptxas import assemble, ptxas_version, refusal_in, why_no_ptxas
from emugpu.launch.spec import DATA_TYPES, AddressArgument, Buffer, Fill, Launch, Launchable, Map, Scalar, WarpRole
from emugpu.launch.spec import Argument as LaunchArgument
from harness import fp8
from harness.block_scaling import ATOM_BYTES, FORMATS, to_atoms
from harness.compile import planner
from harness.compile.compiler import (
    ask,
    compiled,
    driver_source,
    key_of,
    mojo_version,
    with_notice,
)
from harness.compile.config import KernelConfig
from harness.compile.planner import (
    Argument,
    Plan,
    ScalarArgument,
    TensorArgument,
    TensorMapArgument,
    WorkspaceArgument,
    parse_plan,
)
from harness.problem import ELEMENT_TYPES, FP8, Inputs, Shape, make_inputs
from harness.quantised import QUANTISED, quantised
from harness.validation import Matmul, Validation, compute_reference

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """Holds one compiled configuration. ``folder`` is its place in the cache.

    ``edited`` is the file whose PTX, ``edited_ptx``, runs in place of the compiled one (see `harness.run.edited`).
    ``planner`` is the program of another commit that plans the launches in place of this checkout's.
    """

    config: KernelConfig
    folder: Path
    compiled_now: bool
    edited: Path | None = None
    edited_ptx: str = ""
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
        """Returns the launch plan for a problem."""
        return parse_plan(self.plan_json(shape), self.config.sources.epilogue)

    def plan_json(self, shape: Shape) -> str:
        """Returns the launch plan as the planner computes it, with the name of the kernel's entry: one line of JSON."""
        return _plan(self.planner or planner.own_planner(self.config.sources.root), self.folder, shape)

    def statistics(self) -> dict:
        """Returns what ptxas says about the kernel (see `emugpu.launch.ptxas`). The cache keeps it for compiled PTX."""
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

    def require_accepted(self) -> None:
        """Raises CannotRun if ptxas is installed and refuses the PTX."""
        refusal = refusal_in(self.statistics())
        if refusal:
            raise CannotRun(f"ptxas refuses the PTX: {refusal}; fix it, or add --emulate ptxas=false")

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


def build(configs: Sequence[KernelConfig], notice: bool = False) -> list[Artifact]:
    """Returns the artifacts of these configurations, in their order. Compiles all that the cache lacks in one run.

    With ``notice``, says on standard error what it compiles, because that takes a while.
    """
    folders = {config: _kernel_folder(config) for config in dict.fromkeys(configs)}
    missing = {config: folder for config, folder in folders.items() if not _is_whole(folder)}
    for config, folder in missing.items():
        _log.info("%s is compiled: %s is not in the cache, whole", config.label, folder)
        ready = planner.compiled_with_planner(config.options(), config.sources.root)
        if ready:
            _keep(config, folder, ready)
    rest = {config: folder for config, folder in missing.items() if not _is_whole(folder)}
    if rest:
        labels = ", ".join(config.label for config in rest)
        with_notice(labels if notice else "", lambda: _compile(rest))
    for config, folder in folders.items():
        if not _is_whole(folder):
            raise CannotRun(f"the build cache at {cache.root()} lost {config.label} again; is it being cleaned?")
    return [Artifact(config, folders[config], compiled_now=config in missing) for config in configs]


def build_each(configs: Sequence[KernelConfig]) -> dict[KernelConfig, Artifact | str]:
    """Returns each artifact, or the reason why there is none. One that does not compile does not cost the others."""
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
    """Works as `build`, and says what it compiles."""
    return build(configs, notice=True)


def is_built(config: KernelConfig) -> bool:
    """Returns whether the cache holds this configuration."""
    return _is_whole(_kernel_folder(config))


def plan_json(config: KernelConfig, shape: Shape) -> str:
    """Returns the launch plan of any configuration, as `Artifact.plan_json` does, but without the entry's name.

    This does not compile the kernel: one planner, compiled once, serves all configurations.
    """
    return planner.plan_json(config.options(), shape, config.sources.root)


def _is_whole(folder: Path) -> bool:
    return cache.is_whole(folder / "kernel.ptx", folder / "artifact.json")


def _compile(folders: Mapping[KernelConfig, Path]) -> None:
    """Compiles configurations, each for its place in the cache."""
    for root in dict.fromkeys(config.sources.root for config in folders):
        together = [config for config in folders if config.sources.root == root]
        with compiled(driver_source([config.options() for config in together]), root) as program:
            for index, config in enumerate(together):
                _keep(config, folders[config], ask(program, "ptx", index))


def keep(made: Mapping[KernelConfig, str]) -> None:
    """Puts the PTX of these configurations into the build cache."""
    for config, ptx in made.items():
        _keep(config, _kernel_folder(config), ptx)


def _keep(config: KernelConfig, place: Path, ptx: str) -> None:
    """Publishes the PTX of a configuration."""
    about = {"config": config.as_dict(), "mojo": mojo_version()}
    with cache.temporary_folder() as temporary:
        folder = cache.ensure(Path(temporary, "kernel"))
        (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
        (folder / "artifact.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        cache.publish(folder, place, partial(_is_whole, place))


@lru_cache(maxsize=256)
def _plan(program: Path, folder: Path, shape: Shape) -> str:
    """Returns a launch plan. The contents of a folder of the cache never change, so a process reads them once."""
    options = json.loads((folder / "artifact.json").read_text(encoding="utf-8"))["config"]
    found = json.loads(planner.ask_plan(program, options, shape))
    entry = _ENTRY.search((folder / "kernel.ptx").read_text(encoding="utf-8"))
    return json.dumps({**found, "entry": entry and entry[1]}) + "\n"


_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def _kernel_folder(config: KernelConfig) -> Path:
    return cache.place("kernels", key_of(driver_source([config.options()]), config.sources.root))


OUTPUT = "C"
FACTORS_OF_C = "factors"
"""The name of the argument that takes the scale factors of C."""
FACTORS = ("alpha", "beta")
C_SCALE = "c_scale"
"""The name of the argument by which the kernel multiplies a C of nvfp4."""
COUNTER_TYPE = DATA_TYPES["u32"]
NAN = 0x7FFFFFFF
"""The bits of an f32 NaN."""


def make_launchable(artifact: Artifact, shape: Shape, kind: str, seed: int) -> Launchable:
    """Makes a launchable of a compiled kernel and a problem, with inputs that it draws."""
    config = artifact.config
    inputs = make_inputs(shape, config.dtype, kind, seed, config.fused_epilogue, config.scales)
    return to_launchable(artifact, artifact.plan(shape), inputs)


def to_launchable(artifact: Artifact, plan: Plan, inputs: Inputs) -> Launchable:
    """Makes a launchable of a compiled kernel, its plan for a problem, and the problem's inputs.

    C begins with NaN, or with other wrong values, so the check finds each element that the kernel does not write.
    """
    dtype = plan.out_type
    buffers = {
        **operands(plan.config["dtype"], inputs, plan.layout, plan.problem.ld),
        **other_buffers(plan, inputs),
    }
    reference, tile, scalars = compute_reference(inputs), plan.output_tile, {"alpha": inputs.alpha, **inputs.given}
    expected = [Matmul(OUTPUT, dtype, tile, reference, inputs.rows)]
    first = Fill("nan")
    if plan.config["out_dtype"] in QUANTISED:
        made = quantised(reference, plan.config["out_dtype"])
        together = (1, ATOM_BYTES) if dtype.name in FORMATS else (-(-tile[1] // fp8.BLOCK), tile[0])
        of_factors = Matmul(FACTORS_OF_C, made.factor_type, together, made.factors)
        expected = [Matmul(OUTPUT, dtype, tile, made.elements), of_factors]
        scalars[C_SCALE] = made.c_scale
        if dtype.bits < 8:  # no NaN: what is far from each element
            far = np.where(made.elements.values > 0, -6, 6).astype(dtype.numpy)
            first = Fill("array", array=far)
    buffers[OUTPUT] = Buffer(OUTPUT, DATA_TYPES[dtype.ptx], plan.stored_output, first)
    workspaces = [argument for argument in plan.arguments if isinstance(argument, WorkspaceArgument)]
    for workspace in workspaces:
        buffers[workspace.name] = workspace_buffer(workspace)
    label, about = describe(artifact, plan.problem)
    return Launchable(
        artifact.ptx_file,
        buffers,
        maps_of(plan),
        (launch_of(plan, scalars),),
        (*expected, *(_left_at_zero(workspace) for workspace in workspaces)),
        text_given=artifact.ptx,
        label=label,
        about=about,
        persistent=plan.tiles is not None,
        roles=tuple(WarpRole(role.name, role.warps) for role in plan.roles),
    )


def operands(dtype: str, inputs: Inputs, layout: str, ld: Sequence[int] = ()) -> dict[str, Buffer]:
    """Returns A, B and their scale factors, by the names of the plan's tensors, as they lie in memory.

    NaN fills the gaps between rows if a leading dimension is larger than a row.
    """
    block_format = FORMATS.get(dtype)
    element = block_format.element if block_format else DATA_TYPES[FP8 if dtype == FP8 else ELEMENT_TYPES[dtype].ptx]
    found = {}
    for name, values, as_drawn, letter, apart in zip(
        "AB", (inputs.in_memory(inputs.a), inputs.b), "nt", layout, ld or (0, 0), strict=False
    ):
        if letter != as_drawn:
            values = np.ascontiguousarray(values.T)
        if apart:
            values = np.pad(values, ((0, 0), (0, apart - values.shape[1])), constant_values=np.nan)
        found[name] = Buffer(name, element, values.shape, Fill("array", array=values))
    for operand, factors in zip("AB", inputs.factors or (), strict=False):
        name, kind = f"{operand} scales", DATA_TYPES["u8" if block_format else "f32"]
        laid_out = to_atoms(factors) if block_format else fp8.in_memory(factors, operand)
        found[name] = Buffer(name, kind, laid_out.shape, Fill("array", array=laid_out))
    return found


def other_buffers(plan: Plan, inputs: Inputs) -> dict[str, Buffer]:
    """Returns the buffers that an epilogue reads, the scale factors that it writes, and the sizes of groups.

    Raises UsageProblem if the user's own epilogue reads an operand that its formula lacks.
    """
    given = {**inputs.given_in_memory, "sizes": np.array(inputs.groups, np.int32)}
    found = {}
    for argument in plan.arguments:
        if isinstance(argument, TensorArgument) and argument.name == FACTORS_OF_C:
            shape = (prod(argument.shape[:-1]), argument.shape[-1])
            found[argument.name] = Buffer(argument.name, DATA_TYPES[argument.dtype], shape, Fill("nan"))
        elif isinstance(argument, TensorArgument) and argument.name not in ("A", "B", "C"):
            if argument.name not in given:
                raise UsageProblem(f"epilogue {inputs.epilogue.name} takes a {argument.name}, and its formula has none")
            element = ELEMENT_TYPES.get(argument.dtype)
            dtype = DATA_TYPES[element.ptx if element else argument.dtype]
            array = given[argument.name]
            found[argument.name] = Buffer(argument.name, dtype, argument.shape, Fill("array", array=array))
    return found


def describe(artifact: Artifact, shape: Shape) -> tuple[str, dict[str, Any]]:
    """Describes a launch, in one line and as data."""
    config = artifact.config
    about = {"kernel": config.kernel, "config": config.as_dict(), "problem": shape.as_dict()}
    return f"{config.label}, {shape}", about


def workspace_buffer(workspace: WorkspaceArgument, first: Mapping[int, int] = MappingProxyType({})) -> Buffer:
    """Makes a workspace: partial sums at NaN, and counters at 0 or at the value that ``first`` has for their place."""
    words = np.full(workspace.bytes // 4, NAN, np.uint32)
    words[: workspace.counters] = 0
    for place, value in first.items():
        words[place] = value
    return Buffer(workspace.name, COUNTER_TYPE, words.shape, Fill("array", array=words))


def launch_of(plan: Plan, given: Mapping[str, Any] = MappingProxyType({})) -> Launch:
    """Makes the launch that a plan describes. Tensor maps and workspaces have the names of their arguments.

    ``given`` holds the factors of C by their names; a plan does not know them.
    """
    return Launch(
        plan.entry,
        plan.grid,
        plan.cluster,
        plan.block,
        plan.dynamic_smem,
        tuple(
            (name, Scalar(given[name]) if name in given and name in (*FACTORS, C_SCALE) else _argument(argument))
            for name, argument in ((each.name, each) for each in plan.arguments)
        ),
        regions=tuple(regions_of(plan)),
    )


def maps_of(plan: Plan) -> dict[str, Map]:
    """Returns the tensor maps of a plan, by the names of its arguments."""
    return {
        argument.name: Map(
            argument.name,
            argument.tensor,
            box=argument.box,
            dims=argument.dims,
            strides=argument.strides,
            element=ELEMENT_TYPES[argument.dtype].ptx if argument.dtype in ELEMENT_TYPES else argument.dtype,
            swizzle=Swizzle.from_name(argument.swizzle),
            offset=argument.offset,
            l2_promotion=argument.l2_promotion,
        )
        for argument in plan.arguments
        if isinstance(argument, TensorMapArgument)
    }


def _argument(argument: Argument) -> LaunchArgument:
    return Scalar(argument.value) if isinstance(argument, ScalarArgument) else AddressArgument(argument.name)


def _left_at_zero(workspace: WorkspaceArgument) -> Holds:
    """Expects 0 in all counters, because the next launch gets them as this one leaves them."""
    return Holds(workspace.name, COUNTER_TYPE, "0", parse_expression("0", ()), size=workspace.counters)


def regions_of(plan: Plan) -> list[Region]:
    """Returns the parts of dynamic shared memory by the names that the plan gives them, and each stage of a ring."""
    regions = []
    offset = 0
    for part in plan.shared_memory:
        for n in range(part.count):
            size = part.bytes // part.count
            regions.append(Region(f"{part.one} {n}" if part.one else part.name, offset + n * size, size))
        offset += part.bytes
    for barrier in plan.barriers:
        for n in range(barrier.count):
            name = barrier.name if barrier.count == 1 else f"{barrier.name}[{n}]"
            regions.append(Region(name, barrier.offset + 8 * n, 8))
    return regions


@dataclass(frozen=True)
class Judged:
    """Holds the result of a run of a kernel: C, whether it is right, and the counters by the names of tensors."""

    output: np.ndarray
    validation: Validation
    counters: dict[str, Any]


def judged(outcome: LaunchOutcome, plan: Plan) -> Judged:
    """Returns the verdict on C, or on its scale factors if those are wrong. Raises CannotRun if the kernel has not left
    its counters at 0.
    """
    validations = [verdict for verdict in outcome.verdicts if isinstance(verdict, Validation)]
    validation = next((one for one in reversed(validations) if not one.passed), validations[0])
    for other in outcome.verdicts:
        if isinstance(other, Comparison) and not other.passed:
            raise CannotRun(
                f"argument {other.buffer}: the kernel left {other.mistakes[0].got:g} in counter "
                f"{other.mistakes[0].index[0]}, not 0; the next launch would leave out tiles or parts of them"
            )
    names = {
        f"argument {n}": argument.tensor
        for n, argument in enumerate(plan.arguments)
        if isinstance(argument, TensorMapArgument)
    }
    return Judged(outcome.contents[OUTPUT], validation, named_counters(outcome.counters, names))


def named_counters(counters: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Names the tensors in the counters of the emulator, which knows only the places of the tensor maps."""
    by_tensor = counters["tma_global_bytes_read_by_tensor"]
    return {**counters, "tma_global_bytes_read_by_tensor": {names[key]: value for key, value in by_tensor.items()}}
