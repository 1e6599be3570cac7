"""The ops `matmul` and `matmul_into` compile through MAX for sm_100a without a GPU, refuse misuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.paths import ROOT

# The virtual device is set for a whole process, and before any device exists: each program below is one.
COMPILE = """
import os, sys
from pathlib import Path
import max.driver

max.driver.set_virtual_device_api("cuda")
max.driver.set_virtual_device_count(1)
max.driver.set_virtual_device_target_arch("sm_100a")
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

device = max.driver.Accelerator()
where = DeviceRef.from_device(device)


def tensor(*shape):
    return TensorType(DType.bfloat16, list(shape), device=where)


common = dict(cta_group=2, mma_m=256, mma_n=256, stages=0, epilogue_width=0, multicast=True)
calls = [dict(kernel="kernel5", cluster_m=2, cluster_n=1), dict(kernel="kernel6", cluster_m=2, cluster_n=2),
         dict(kernel="kernel7", cluster_m=4, cluster_n=4)]
inputs = [tensor("m", "k"), tensor("n", "k"), BufferType(DType.bfloat16, ["m", "n"], device=where)]
with Graph("matmul", input_types=inputs, custom_extensions=[Path(sys.argv[1])]) as graph:
    a, b, c = graph.inputs
    into = common | dict(kernel="kernel7", cluster_m=2, cluster_n=1)
    ops.inplace_custom("matmul_into", where, [c.buffer, a.tensor, b.tensor], parameters=into)
    out = dict(device=where, values=[a, b], out_types=[tensor("m", "n")])
    graph.output(*[ops.custom(name="matmul", parameters=common | call, **out)[0] for call in calls])
InferenceSession(devices=[device]).compile(graph).export_mef(sys.argv[2])
os._exit(0)  # the stand-in device does not survive an ordinary exit
"""

ON_CPU = """
import sys
from pathlib import Path
import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops


def tensor(*shape, kind=TensorType):
    return kind(DType.float16, list(shape), device=DeviceRef.CPU())


options = dict(kernel="kernel6", cta_group=2, mma_m=256, mma_n=256, stages=0, cluster_m=2, cluster_n=1,
               epilogue_width=0, multicast=True)
inputs = [tensor("m", "k"), tensor("n", "l")]
with Graph("matmul", input_types=inputs, custom_extensions=[Path(sys.argv[1])]) as graph:
    a, b = graph.inputs
    out = dict(device=DeviceRef.CPU(), values=[a, b], out_types=[tensor("m", "n")])
    graph.output(ops.custom(name="matmul", parameters=options, **out)[0])
into_inputs = [tensor("x", "y", kind=BufferType), *inputs]
with Graph("into", input_types=into_inputs, custom_extensions=[Path(sys.argv[1])]) as into:
    c, a, b = into.inputs
    ops.inplace_custom("matmul_into", DeviceRef.CPU(), [c.buffer, a.tensor, b.tensor], parameters=options)
    into.output()
session = InferenceSession(devices=[CPU()])
models = [session.load(graph), session.load(into)]


def zeros(*shape):
    return Buffer.from_numpy(np.zeros(shape, np.float16))


for model, arguments in [
    (models[0], [zeros(32, 16), zeros(48, 16)]),
    (models[0], [zeros(32, 16), zeros(48, 24)]),
    (models[1], [zeros(32, 64), zeros(32, 16), zeros(48, 16)]),
]:
    try:
        model.execute(*arguments)
        print("no error")
    except Exception as error:
        print(" ".join(str(error).split()))
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(Path(ROOT, "kernels")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_op_compiles_for_a_virtual_sm_100a_device(tmp_path: Path) -> None:
    artifact = tmp_path / "matmul.mef"
    done = run(COMPILE, artifact)
    assert done.returncode == 0, done.stderr
    content = artifact.read_bytes()
    labels = (
        "kernel5_bf16_2cta_256x256x64_s1_c2x1",
        "kernel6_bf16_2cta_256x256x64_s5_c2x2",
        "kernel7_bf16_2cta_256x256x64_s6_c4x4",
        "kernel7_bf16_2cta_256x256x64_s6_c2x1",
    )
    for label in labels:
        assert b".text." + label.encode() in content, f"no machine code of {label}"


def test_op_refuses_other_devices_and_shapes_that_do_not_match() -> None:
    done = run(ON_CPU)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert "kernel6 runs on GPUs of compute capability 10.0 (sm_100a); this device is not one" in lines[0]
    assert "A [32, 16] and B [48, 24] differ in K" in lines[1]
    assert "C is [32, 64], not [32, 48]" in lines[2]
