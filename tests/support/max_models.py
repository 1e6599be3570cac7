"""Builds a MAX model of a kernel configuration: a graph of one custom op that writes C into the caller's buffer.

Compiling needs no GPU (a virtual device replaces it), so it happens in its own process and gives a file that loads in
milliseconds; see ``compile_artifact``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu import cache
from emugpu.driver.toolchains import toolchain_variables
from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.program import run as run_program
from harness import paths
from harness.block_scaling import ATOM_BYTES, FORMATS
from harness.compile.artifacts import FACTORS, operands
from harness.compile.compiler import digest, package_version, readable_errors, sources_hash
from harness.compile.config import KernelConfig
from harness.epilogues import NONE
from harness.launch.max_ops import op_parameters, operation
from harness.problem import ELEMENT_TYPES, FP8, OUT_TYPES, Inputs
from harness.quantised import QUANTISED

COMPILE_SECONDS = 600
BESIDE = ("bias", "residual")
"""Tensors that the ops with a fused epilogue take besides A and B."""

_PROGRAM = "import sys; from max_models import _compile_here; _compile_here(*sys.argv[1:])"


def artifact_path(config: KernelConfig, ptx: bool = False, views: bool = False) -> Path:
    """Returns the place of the compiled model of a configuration."""
    return cache.place("models", f"{model_key(config)}{'-views' if views else ''}{'-ptx' if ptx else ''}.mef")


def compile_artifact(config: KernelConfig, ptx: bool = False, views: bool = False) -> tuple[Path, bool]:
    """Returns the compiled model, from the cache or from MAX, and whether it was compiled now.

    With ``ptx`` it holds the kernel as PTX instead of machine code, as the emulated driver needs. With ``views`` it
    takes leading dimensions. Raises CannotRun if MAX cannot compile it, UsageProblem if no op supports the
    configuration.
    """
    if config.out_dtype in QUANTISED and (config.grouped or views):
        raise UsageProblem(
            f"out dtype {config.out_dtype}: the MAX ops of groups and of leading dimensions have no place for scale "
            "factors of C; use bf16, fp16 or f32, or --device emulator"
        )
    what = "views" if views else "kernel"
    return _compile(artifact_path(config, ptx, views), config, what, config.to_json(), config.label, ptx)


def _compile(
    place: Path, config: KernelConfig, what: str, about: str, label: str, ptx: bool = False
) -> tuple[Path, bool]:
    if cache.is_whole(place):
        return place, False
    with cache.temporary_folder() as folder:
        made = Path(folder) / "model.mef"
        command = [sys.executable, "-c", _PROGRAM, config.arch, what, about, str(made)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *sys.path])}
        if ptx:
            environment |= toolchain_variables({})
        try:
            done = run_program(command, COMPILE_SECONDS, env=environment)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"MAX did not compile {label} in {COMPILE_SECONDS} s") from None
        if not made.exists():
            errors = readable_errors(done.stdout + done.stderr, config.sources.root)
            raise CannotRun(f"MAX could not compile {label}:\n{errors}")
        cache.publish_file(made, place)
    return place, True


def _compile_here(arch: str, what: str, about: str, target: str) -> None:
    """Runs in the compiling process: stand-in device, graph, artifact. ``about`` is the configuration."""
    import max.driver as driver
    from max.engine import InferenceSession

    driver.set_virtual_device_api("cuda")
    driver.set_virtual_device_count(1)
    driver.set_virtual_device_target_arch(arch)
    # The host code must run on any machine that uses the artifact.
    driver.set_virtual_cpu_target("x86-64-v3")
    device = driver.Accelerator()
    session = InferenceSession(devices=[device])
    made = graph(KernelConfig.from_json(about), device, views=what == "views")
    session.compile(made).export_mef(target)
    # An ordinary exit crashes with the stand-in device.
    os._exit(0)


def graph(config: KernelConfig, device: Any, views: bool = False) -> Any:
    """Returns the MAX graph.

    Its buffers are C [m, n], A [m, k], B [n, k], or as the layout has them; with groups B is [groups, n, k]. C is
    overwritten, with its scale factors behind it. The other operands of `op_operands` follow. ``views`` are leading
    dimensions, with C, A and B flat.
    """
    from max.dtype import DType
    from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

    where = DeviceRef.from_device(device)
    quantises = config.out_dtype in QUANTISED
    out = DType.uint8 if quantises else getattr(DType, OUT_TYPES[config.out_dtype].numpy.name)
    dtype = getattr(DType, OUT_TYPES[config.dtype].numpy.name) if config.dtype in ELEMENT_TYPES else DType.uint8
    number = TensorType(DType.float32, [], device=DeviceRef.CPU())
    types = [
        BufferType(out, ["m", "columns"], device=where),
        TensorType(dtype, ["m", "k"] if config.layout[0] == "n" else ["k", "m"], device=where),
        TensorType(
            dtype,
            ["groups"] * config.grouped + (["n", "k"] if config.layout[1] == "t" else ["k", "n"]),
            device=where,
        ),
    ]
    if views:
        types = [BufferType(out, ["c"], device=where), *(TensorType(dtype, [name], device=where) for name in "ab")]
    if config.grouped:
        types += [TensorType(DType.int32, ["groups"], device=where)]
        types += [TensorType(dtype, [f"{name}_rows", f"{name}_columns"], device=where) for name in BESIDE]
        types += [number, number]
    elif config.dtype == FP8:
        types += [TensorType(DType.float32, [f"{name}_blocks", f"{name}_factors"], device=where) for name in "mn"]
        types += [number]
    elif config.dtype in FORMATS:
        types += [TensorType(dtype, [f"{name}_atoms", "k_atoms", ATOM_BYTES], device=where) for name in "mn"]
        types += [number]
    elif views or quantises or config.epilogue != NONE:
        types += [TensorType(dtype, ["x"], device=where), TensorType(dtype, ["y", "z"], device=where)]
        types += [TensorType(DType.int64, [], device=DeviceRef.CPU())] * (6 if views else 0) + [number, number]
    written = 1
    if quantises:
        factors: tuple[Any, list[Any]] = (DType.float32, ["c_blocks", "c_factors"])
        if config.out_dtype in FORMATS:
            factors = (DType.uint8, ["c_rows", "c_atoms", ATOM_BYTES])
        types[1:1] = [BufferType(*factors, device=where)]
        types += [number]
        written = 2
    with Graph("matmul", input_types=types, custom_extensions=[config.sources.root / "kernels"]) as made:
        values = [each.buffer if at < written else each.tensor for at, each in enumerate(made.inputs)]
        ops.inplace_custom(operation(config, views), where, values, parameters=op_parameters(config))
        made.output()
    return made


def op_operands(
    config: KernelConfig, inputs: Inputs, ld: Sequence[int] = (), c_scale: float = 1.0
) -> tuple[list[NDArray[Any]], list[int | float]]:
    """Returns the operands of the MAX op besides C: arrays, A and B first, and numbers.

    An operand that the op does not read is a small placeholder. With leading dimensions A and B are flat. ``c_scale``
    is the scale of a quantised C.
    """
    of_c = [c_scale] if config.out_dtype in QUANTISED else []
    kept = operands(config.dtype, inputs, config.layout, ld).values()
    arrays = [buffer.fill.array for buffer in kept if buffer.fill and buffer.fill.array is not None]
    if config.dtype in ELEMENT_TYPES:
        if config.epilogue == NONE and not of_c and not config.grouped and not ld:
            return arrays, []
        if config.grouped:
            arrays[1:] = [arrays[1].reshape(len(inputs.groups), -1, arrays[1].shape[1])]
            arrays += [np.array(inputs.groups, np.int32)]
        ranks = {name: 1 if name == "bias" and not config.grouped else 2 for name in BESIDE}
        beside = [
            inputs.given_in_memory.get(name, np.zeros((1,) * rank, arrays[0].dtype)) for name, rank in ranks.items()
        ]
        factors = [*(inputs.given.get(name, 1.0) for name in FACTORS), *of_c]
        if ld:
            (m, k), n = inputs.a.shape, len(inputs.b)
            return [*(each.reshape(-1) for each in arrays), *beside], [m, n, k, *ld, *factors]
        return arrays + beside, factors
    for at, buffer in enumerate(list(kept)[:2]):
        arrays[at] = buffer.dtype.to_memory(arrays[at]).reshape(len(arrays[at]), -1)
    return (arrays if len(arrays) > 2 else arrays + [np.zeros((1, 1), np.float32)] * 2), [inputs.alpha, *of_c]


def scalar(number: int | float) -> NDArray[Any]:
    """Returns a number as the MAX ops take it: sizes are integers."""
    return np.array(number, np.int64 if isinstance(number, int) else np.float32)


def model_key(config: KernelConfig) -> str:
    """Returns the name of a configuration's MAX model: a hash of sources, configuration and version of MAX.

    The place of the compiler does not count, because models are carried to other machines.
    """
    options = json.dumps(config.options())
    return digest(sources_hash(config.sources.root / "kernels"), options, str(package_version("max")))
