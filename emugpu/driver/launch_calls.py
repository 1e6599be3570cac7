"""Launches of kernels: their checks, the run on the emulator, and the error codes that the program gets."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from functools import partial
from math import prod

from emugpu.check import Checker
from emugpu.check.footprint import Footprint
from emugpu.check.verdict import how_it_ended
from emugpu.driver.api import handles
from emugpu.driver.log import Dims, LaunchRecord
from emugpu.driver.memory import HostMemoryShort
from emugpu.driver.module_calls import LoadedKernel
from emugpu.driver.results import DriverError
from emugpu.driver.state import Abandoned, Session
from emugpu.driver.stream_order import submit_launch
from emugpu.emulator import Deadlock, EmulatorError, Fault, Interrupted, LaunchError, LimitExceeded, PtxSyntaxError
from emugpu.emulator.machine.grid import sm_limits
from emugpu.emulator.machine.register_pool import SM_REGISTERS
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from emugpu.emulator.names import readable_name, short_name
from emugpu.host_memory import SPARE, free_bytes

PORTABLE_CLUSTER = 8
LARGEST_CLUSTER = 16
_COOPERATIVE, _CLUSTER, _PROGRAMMATIC = 2, 4, 6
_RESULTS = {
    "address": "ILLEGAL_ADDRESS",
    "alignment": "MISALIGNED_ADDRESS",
    "assert": "ASSERT",
}
"""The result of a fault, by its rule. For other faults a GPU returns CUDA_ERROR_LAUNCH_FAILED, or no error at all."""


@dataclass(frozen=True)
class LaunchShape:
    """The configuration of a launch, without the parameters."""

    grid: Dims
    block: Dims
    cluster: Dims | None
    dynamic_shared: int
    cooperative: bool
    starts_early: bool = False
    """Whether it may start before the launch in front of it in its stream has ended."""

    @property
    def cluster_size(self) -> int:
        return prod(self.cluster or (1,))

    @property
    def threads(self) -> int:
        return prod(self.block)


def read_shape(shape: bytes, attributes: bytes, function: LoadedKernel) -> LaunchShape:
    """Reads the seven numbers of a CUlaunchConfig, and its attributes of 72 bytes each. Others have no effect here."""
    sizes = struct.unpack("=7I", shape)
    cluster: Dims | None = None
    cooperative = starts_early = False
    for at in range(0, len(attributes), 72):
        number, x, y, z = struct.unpack_from("=I4xIII", attributes, at)
        if number == _CLUSTER and x:
            cluster = (x, y, z)
        elif number == _COOPERATIVE:
            cooperative = bool(x)
        elif number == _PROGRAMMATIC:
            starts_early = bool(x)
    if cluster is None:
        x, y, z = (function.attributes.get(number, 0) for number in (11, 12, 13))
        cluster = (x, y, z) if x and y and z else None
    return LaunchShape(sizes[:3], sizes[3:6], cluster, sizes[6], cooperative, starts_early)


def blocks_per_multiprocessor(session: Session, function: LoadedKernel, threads: int, dynamic_shared: int) -> int:
    """Returns how many CTAs a multiprocessor holds at once; 0 if not even one."""
    if not 0 < threads <= function.most_threads:
        return 0
    warps = -(-threads // 32)
    shared = RESERVED_SHARED + function.code.static_shared + dynamic_shared
    registers = function.registers * 32 * warps
    limits = sm_limits(session.gpu.model.target)
    return min(limits.threads // (32 * warps), limits.ctas, limits.shared // shared, SM_REGISTERS // registers)


def _check(session: Session, function: LoadedKernel, shape: LaunchShape) -> None:
    """Refuses a launch that a driver refuses before the kernel starts."""
    if shape.dynamic_shared > function.dynamic_shared:
        raise DriverError(
            "INVALID_VALUE",
            f"{shape.dynamic_shared} bytes of dynamic shared memory; kernel '{readable_name(function.name)}' may have "
            f"{function.dynamic_shared}, set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        )
    limit = LARGEST_CLUSTER if function.any_cluster else PORTABLE_CLUSTER
    if shape.cluster_size > limit:
        raise DriverError(
            "INVALID_CLUSTER_SIZE",
            f"a cluster of {shape.cluster_size} CTAs; at most {limit} are allowed"
            + ("" if function.any_cluster else ", set CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"),
        )
    if any(extent % size for extent, size in zip(shape.grid, shape.cluster or (1, 1, 1), strict=True)):
        raise DriverError(
            "INVALID_CLUSTER_SIZE", f"a grid of {shape.grid} CTAs is not a whole number of clusters of {shape.cluster}"
        )
    if shape.cooperative:
        ctas, room = prod(shape.grid), _clusters(session, function, shape, 1)
        if ctas > room:
            raise DriverError(
                "COOPERATIVE_LAUNCH_TOO_LARGE", f"a cooperative grid of {ctas} CTAs; the GPU holds {room} at once"
            )


@handles("emulatedLaunch")
def launch(
    session: Session,
    handle: int,
    stream: int,
    shape: bytes,
    parameters: bytes,
    _nbytes: int,
    attributes: bytes,
    _count: int,
) -> None:
    function = session.get(handle, LoadedKernel)
    asked = read_shape(shape, attributes, function)
    if function.module.unlaunchable:
        name = readable_name(function.name)
        session.gpu.log.failed(f"kernel '{name}' cannot be launched: {function.module.unlaunchable}")
        raise DriverError("NO_BINARY_FOR_GPU")
    try:
        _check(session, function, asked)
        run(session, function, asked, parameters, stream)
    except PtxSyntaxError as error:
        session.gpu.log.failed(f"kernel '{readable_name(function.name)}' cannot be run: {error}")
        raise DriverError("INVALID_PTX") from error


def run(session: Session, function: LoadedKernel, shape: LaunchShape, parameters: bytes, stream: int = 0) -> None:
    """Runs a kernel to its end. An error is reported, and the program's next calls return it."""
    gpu, kernel = session.gpu, function.kernel
    if len(parameters) < kernel.parameter_bytes:
        raise DriverError("INVALID_VALUE", f"{len(parameters)} bytes of parameters, of {kernel.parameter_bytes}")
    x, y, z = (*(kernel.directives.get("reqnctapercluster") or ()), 1, 1, 1)[:3]
    cluster = shape.cluster or (x, y, z)
    record = LaunchRecord(
        len(gpu.log.launches),
        readable_name(function.name),
        shape.grid,
        cluster,
        shape.block,
        shape.dynamic_shared,
        session.number,
        cooperative=shape.cooperative,
        parameters=parameters,
        kernel_read=kernel,
        gpu=gpu.model.target,
    )
    footprint = Footprint(session.order.key, shape.starts_early) if gpu.check else None
    checker = Checker(footprints=[footprint]) if footprint is not None else None
    workers = gpu.options.jobs
    if workers > 1 and (shape.cooperative or checker or session.device.why_one_worker(function.code)):
        workers = 1
    if gpu.recorder is not None:
        gpu.recorder.keep(session, function, parameters, record)
    gpu.interrupted = False
    begun = time.monotonic()
    try:
        result = session.device.launch(
            function.module.ptx,
            function.name,
            grid=shape.grid,
            block=shape.block,
            cluster=cluster,
            dynamic_smem=shape.dynamic_shared,
            cooperative=shape.cooperative,
            arguments=[parameters[p.offset : p.offset + p.size] for p in kernel.parameters],
            gpu=gpu.model.target,
            watch=partial(_stop_if_told, session, record.kernel),
            sinks=(checker,) if checker else (),
            workers=workers,
            max_steps=gpu.options.max_steps,
            timeout=gpu.options.timeout,
            limit=gpu.seconds_left(),
        )
    except LaunchError as error:
        raise DriverError("INVALID_VALUE", f"launch of kernel '{record.kernel}': {error}") from error
    except PtxSyntaxError:
        raise
    except EmulatorError as error:
        _failed(session, record, error)
        record.warnings = error.warnings
        if checker:
            checker.failed(error)
    else:
        record.counters, record.seconds, record.warnings = result.counters, result.seconds, result.warnings
        session.printed.append(result.output)
        session.clock += result.seconds
    finally:
        gpu.spent += time.monotonic() - begun
    if checker:
        record.findings = checker.report().findings
    gpu.log.launched(record)
    if footprint is not None:
        submit_launch(session.order, record, stream, footprint)


def _stop_if_told(session: Session, kernel: str) -> None:
    """Ends a launch if its process has ended, on Ctrl-C, or if the host has no memory left for the kernel's writes."""
    if session.is_gone():
        raise Abandoned
    if session.gpu.interrupted:
        raise Interrupted(f"kernel '{short_name(kernel)}' was ended by Ctrl-C (SIGINT)")
    if (have := free_bytes() - SPARE) < 0:
        raise HostMemoryShort(-have, 0)


def result_of(error: EmulatorError) -> str:
    """Returns the CUresult of a kernel that did not run to its end."""
    if isinstance(error, Deadlock | LimitExceeded):
        return "LAUNCH_TIMEOUT"
    if isinstance(error, Fault):
        return _RESULTS.get(error.rule, "LAUNCH_FAILED")
    return "LAUNCH_FAILED"


def _failed(session: Session, record: LaunchRecord, error: EmulatorError) -> None:
    log = session.gpu.log
    session.printed.append(error.output)
    record.error, record.result = f"{type(error).__name__}: {error}", f"CUDA_ERROR_{result_of(error)}"
    record.ended = how_it_ended(error)
    where = f"launch {record.number}, kernel '{short_name(record.kernel)}'"
    if isinstance(error, Fault) and error.rule == "unsupported":
        log.failed(f"{where}: {error}")
    else:
        log.say(f"{where}: {record.error}\n  (the program sees {record.result})")
    session.fail(result_of(error))


# ---- occupancy ----


@handles("cuOccupancyMaxActiveBlocksPerMultiprocessor", "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags")
def active_blocks(session: Session, handle: int, threads: int, shared: int, *_flags: int) -> int:
    return blocks_per_multiprocessor(session, session.get(handle, LoadedKernel), threads, shared)


@handles("cuOccupancyAvailableDynamicSMemPerBlock")
def available_shared(session: Session, handle: int, blocks: int, threads: int) -> int:
    function = session.get(handle, LoadedKernel)
    if blocks <= 0 or blocks_per_multiprocessor(session, function, threads, 0) < blocks:
        raise DriverError("INVALID_VALUE", f"a multiprocessor does not hold {blocks} blocks of {threads} threads")
    each = sm_limits(session.gpu.model.target).shared // blocks - RESERVED_SHARED - function.code.static_shared
    return min(each // 128 * 128, function.dynamic_shared)


@handles("emulatedActiveClusters")
def active_clusters(session: Session, handle: int, shape: bytes, attributes: bytes, _count: int) -> int:
    function = session.get(handle, LoadedKernel)
    asked = read_shape(shape, attributes, function)
    return _clusters(session, function, asked, asked.cluster_size)


@handles("emulatedLargestCluster")
def largest_cluster(session: Session, handle: int, shape: bytes, attributes: bytes, _count: int) -> int:
    function = session.get(handle, LoadedKernel)
    asked = read_shape(shape, attributes, function)
    size = LARGEST_CLUSTER if function.any_cluster else PORTABLE_CLUSTER
    while size > 1 and not _clusters(session, function, asked, size):
        size //= 2
    return size


def _clusters(session: Session, function: LoadedKernel, shape: LaunchShape, size: int) -> int:
    """Returns how many clusters of ``size`` CTAs the GPU holds at once.

    CuTe DSL asks with 128 threads for a kernel that is compiled for one, and gets an answer from NVIDIA's driver.
    """
    each = blocks_per_multiprocessor(session, function, min(shape.threads, function.most_threads), shape.dynamic_shared)
    return session.gpu.model["multiprocessor_count"] * each // size
