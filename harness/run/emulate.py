"""Runs a compiled kernel on the emulated GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from harness.build.plan import Argument, CounterArgument, Plan, ScalarArgument
from harness.emulator import Device, EmulatorError, Finding, Module, Region, Swizzle, TensorMap
from harness.emulator.machine.events import Sink
from harness.errors import CannotRun
from harness.problem.dtypes import element_type
from harness.problem.inputs import Inputs

Accumulation = Literal["f32", "tensor_core"]
Schedule = Literal["fifo", "random"]


@dataclass(frozen=True)
class Emulation:
    """What came out of a run. output: C [M, N]. counters: exact. seconds: what the emulation took. warnings: rules the
    kernel breaks that hardware is known to tolerate.
    """

    output: np.ndarray
    counters: dict
    seconds: float
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class EmulationOptions:
    """How to emulate. jobs: processes. resident_clusters: at once, None: as many as the GPU holds. max_steps: warp
    instructions, timeout: seconds; None: no limit. strict: a warning is an error, except for the rules in allow.
    sinks get every event.
    """

    accumulation: Accumulation = "f32"
    schedule: Schedule = "fifo"
    seed: int = 0
    jobs: int = 1
    resident_clusters: int | None = None
    max_steps: int | None = None
    timeout: float | None = None
    strict: bool = True
    allow: tuple[str, ...] = ()
    sinks: tuple[Sink, ...] = ()


DEFAULT = EmulationOptions()
Given = TypeVar("Given", bound=EmulationOptions)


def under_schedules(options: Given, count: int) -> list[Given]:
    """The options under so many schedules: fifo, and random ones with seeds that follow one another."""
    seeds = range(options.seed, options.seed + count - 1)
    return [replace(options, schedule="fifo"), *(replace(options, schedule="random", seed=seed) for seed in seeds)]


def emulate(
    ptx: str,
    plan: Plan,
    inputs: Inputs,
    options: EmulationOptions = DEFAULT,
    progress: Callable[[int, int], None] | None = None,
) -> Emulation:
    """Launches the plan's kernel with these inputs. progress is called with (clusters done, clusters)."""
    dtype = element_type(plan.config["dtype"])
    output_shape = (plan.problem.m, plan.problem.n)
    try:
        device = Device(accumulation=options.accumulation, schedule=options.schedule, seed=options.seed)
        addresses = {
            "A": device.upload(inputs.a, "A"),
            "B": device.upload(inputs.b, "B"),
            # Elements that the kernel does not write stay NaN, and so are found as wrong with their place.
            "C": device.upload(np.full(output_shape, np.nan, dtype.numpy), "C"),
        }
        counters = [argument for argument in plan.arguments if isinstance(argument, CounterArgument)]
        for counter in counters:
            addresses[counter.name] = device.upload(np.zeros(counter.bytes, np.uint8), counter.name)
        result = device.launch(
            module_of(ptx),
            plan.entry,
            grid=plan.grid,
            cluster=plan.cluster,
            block=plan.block,
            dynamic_smem=plan.dynamic_smem,
            arguments=[argument_of(argument, addresses) for argument in plan.arguments],
            progress=progress,
            regions=regions_of(plan),
            workers=options.jobs,
            resident_clusters=options.resident_clusters,
            max_steps=options.max_steps,
            timeout=options.timeout,
            strict=options.strict,
            allow=options.allow,
            sinks=options.sinks,
        )
        output = device.download(addresses["C"], dtype.numpy, output_shape)
        for counter in counters:
            _check_counter(counter, device.download(addresses[counter.name], np.dtype(np.uint8), (counter.bytes,)))
    except EmulatorError as error:
        raise CannotRun(f"{type(error).__name__}: {error}") from error
    return Emulation(output, _named_counters(result.counters.as_dict(), plan), result.seconds, result.warnings)


@lru_cache(maxsize=4)
def module_of(ptx: str) -> Module:
    """Parsed and translated once, as the same kernel is often run on several problems."""
    return Module.from_text(ptx)


def regions_of(plan: Plan) -> list[Region]:
    """The parts of dynamic shared memory by the names that the plan gives them; of a ring, each stage."""
    regions = []
    offset = 0
    for part in plan.shared_memory:
        several = re.fullmatch(r"(\d+) x (\d+)", part.detail)
        if several:
            count, size = int(several[1]), int(several[2])
            name = part.name.removesuffix("s")
            regions += [Region(f"{name} {n}", offset + n * size, size) for n in range(count)]
        elif part.name != "barriers":
            regions.append(Region(part.name, offset, part.bytes))
        offset += part.bytes
    for barrier in plan.barriers:
        for n in range(barrier.count):
            name = barrier.name if barrier.count == 1 else f"{barrier.name}[{n}]"
            regions.append(Region(name, barrier.offset + 8 * n, 8))
    return regions


def _named_counters(counters: dict, plan: Plan) -> dict:
    """The emulator counts bytes by argument (``argument 0``); the plan knows which tensor that is."""
    names = {f"argument {i}": getattr(argument, "tensor", "") for i, argument in enumerate(plan.arguments)}
    by_tensor = counters["tma_global_bytes_read_by_tensor"]
    return {
        **counters,
        "tma_global_bytes_read_by_tensor": {names[key]: value for key, value in by_tensor.items()},
    }


def _check_counter(counter: CounterArgument, left: np.ndarray) -> None:
    """The next launch gets the counter as this one leaves it."""
    if left.any():
        raise CannotRun(
            f"argument {counter.name}: the kernel left {int.from_bytes(left.tobytes(), 'little')} in the counter, not "
            "0; the next launch would leave out tiles"
        )


def argument_of(argument: Argument, addresses: dict[str, int]) -> TensorMap | int:
    """As the emulator takes it. addresses: of the tensors and counters, by name."""
    if isinstance(argument, ScalarArgument):
        return argument.value
    if isinstance(argument, CounterArgument):
        return addresses[argument.name]
    try:
        return TensorMap(
            address=addresses[argument.tensor],
            element=element_type(argument.dtype).ptx,  # type: ignore[arg-type]  # names are accepted
            dims=argument.dims,
            strides=argument.strides,
            box=argument.box,
            swizzle=Swizzle.from_name(argument.swizzle),
        )
    except ValueError as error:
        raise CannotRun(f"argument {argument.name}: {error}") from error
