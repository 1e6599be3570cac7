"""A compiled kernel on one problem as a launchable: what its plan says, in the terms of `harness.launch.spec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.build.artifacts import Artifact
from harness.build.plan import Argument, CounterArgument, Plan, ScalarArgument, TensorMapArgument
from harness.emulator import Region, Swizzle
from harness.errors import CannotRun
from harness.launch.elements import DATA_TYPES
from harness.launch.expectation import Comparison, Holds
from harness.launch.expression import parse_expression
from harness.launch.launching import Outcome
from harness.launch.spec import Argument as LaunchArgument
from harness.launch.spec import Buffer, Fill, Launch, Launchable, Map, Reference, Scalar, WarpRole
from harness.problem.dtypes import element_type
from harness.problem.inputs import Inputs, make_inputs
from harness.problem.reference import compute_reference
from harness.problem.shape import Shape
from harness.problem.validation import Matmul, Validation

OUTPUT = "C"
COUNTER_TYPE = DATA_TYPES["u32"]


def make_launchable(artifact: Artifact, shape: Shape, kind: str, seed: int) -> Launchable:
    """A compiled kernel on a problem with drawn inputs."""
    return to_launchable(artifact, artifact.plan(shape), make_inputs(shape, artifact.config.dtype, kind, seed))


def to_launchable(artifact: Artifact, plan: Plan, inputs: Inputs) -> Launchable:
    """A compiled kernel, its plan for a problem, and the problem's inputs. Elements of C that the kernel does not write
    stay NaN, and so are found as wrong with their place.
    """
    dtype = DATA_TYPES[element_type(plan.config["dtype"]).ptx]
    output = (plan.problem.m, plan.problem.n)
    buffers = {
        "A": Buffer("A", dtype, inputs.a.shape, Fill("array", array=inputs.a)),
        "B": Buffer("B", dtype, inputs.b.shape, Fill("array", array=inputs.b)),
        OUTPUT: Buffer(OUTPUT, dtype, output, Fill("nan")),
    }
    counters = [argument for argument in plan.arguments if isinstance(argument, CounterArgument)]
    for counter in counters:
        buffers[counter.name] = counter_buffer(counter, Fill("zeros"))
    matmul = Matmul(OUTPUT, element_type(plan.config["dtype"]), plan.tile, compute_reference(inputs))
    label, about = describe(artifact, plan.problem)
    return Launchable(
        artifact.ptx_file,
        buffers,
        maps_of(plan),
        (launch_of(plan),),
        (matmul, *(_left_at_zero(counter) for counter in counters)),
        text_given=artifact.ptx,
        label=label,
        about=about,
        persistent=plan.tiles is not None,
        roles=tuple(WarpRole(role.name, role.warps) for role in plan.roles),
    )


def describe(artifact: Artifact, shape: Shape) -> tuple[str, dict[str, Any]]:
    """What is launched, in one line and as data."""
    config = artifact.config
    about = {"kernel": config.kernel, "config": config.as_dict(), "problem": asdict(shape)}
    return f"{config.label}, {shape}", about


def counter_buffer(counter: CounterArgument, fill: Fill) -> Buffer:
    return Buffer(counter.name, COUNTER_TYPE, (counter.bytes // 4,), fill)


def launch_of(plan: Plan) -> Launch:
    """The launch that a plan describes. Tensor maps and counters are called as the arguments are."""
    return Launch(
        plan.entry,
        plan.grid,
        plan.cluster,
        plan.block,
        plan.dynamic_smem,
        tuple((argument.name, _argument(argument)) for argument in plan.arguments),
        regions=tuple(regions_of(plan)),
    )


def maps_of(plan: Plan) -> dict[str, Map]:
    """The tensor maps of a plan, by the names of its arguments."""
    return {
        argument.name: Map(
            argument.name,
            argument.tensor,
            box=argument.box,
            dims=argument.dims,
            strides=argument.strides,
            element=element_type(argument.dtype).ptx,
            swizzle=Swizzle.from_name(argument.swizzle),
            l2_promotion=argument.l2_promotion,
        )
        for argument in plan.arguments
        if isinstance(argument, TensorMapArgument)
    }


def _argument(argument: Argument) -> LaunchArgument:
    return Scalar(argument.value) if isinstance(argument, ScalarArgument) else Reference(argument.name)


def _left_at_zero(counter: CounterArgument) -> Holds:
    """The next launch gets the counter as this one leaves it."""
    return Holds(counter.name, COUNTER_TYPE, "0", parse_expression("0", ()))


def regions_of(plan: Plan) -> list[Region]:
    """The parts of dynamic shared memory by the names that the plan gives them; of a ring, each stage."""
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
    """What came out of a run of a kernel: C, whether it is right, and the counters by the names of tensors."""

    output: np.ndarray
    validation: Validation
    counters: dict[str, Any]


def judged(outcome: Outcome, plan: Plan) -> Judged:
    """Raises CannotRun if the kernel has not left its counter at 0."""
    validation, *others = outcome.verdicts
    assert isinstance(validation, Validation)
    for other in others:
        if isinstance(other, Comparison) and not other.passed:
            raise CannotRun(
                f"argument {other.buffer}: the kernel left {other.mistakes[0].got:g} in the counter, not 0; the next "
                "launch would leave out tiles"
            )
    names = {
        f"argument {n}": argument.tensor
        for n, argument in enumerate(plan.arguments)
        if isinstance(argument, TensorMapArgument)
    }
    return Judged(outcome.contents[OUTPUT], validation, named_counters(outcome.counters, names))


def named_counters(counters: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The emulator counts bytes by the place of a tensor map; a plan knows which tensor that is."""
    by_tensor = counters["tma_global_bytes_read_by_tensor"]
    return {**counters, "tma_global_bytes_read_by_tensor": {names[key]: value for key, value in by_tensor.items()}}
