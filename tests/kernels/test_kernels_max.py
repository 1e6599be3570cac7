"""The ops `matmul` and `matmul_into` compile through MAX for both architectures without a GPU, and refuse misuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly_unless_changed("kernels/host/")]

# The virtual device is set for a whole process, and before any device exists: each program below is one.
COMPILE = """
import json, os, sys
from pathlib import Path
import max.driver

max.driver.set_virtual_device_api("cuda")
max.driver.set_virtual_device_count(1)
max.driver.set_virtual_device_target_arch(sys.argv[3])
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

device = max.driver.Accelerator()
where = DeviceRef.from_device(device)


def tensor(*shape):
    return TensorType(DType.bfloat16, list(shape), device=where)


*calls, into = [{"options": options} for options in json.loads(sys.argv[4])]
inputs = [tensor("m", "k"), tensor("n", "k"), BufferType(DType.bfloat16, ["m", "n"], device=where)]
with Graph("matmul", input_types=inputs, custom_extensions=[Path(sys.argv[1])]) as graph:
    a, b, c = graph.inputs
    ops.inplace_custom("matmul_into", where, [c.buffer, a.tensor, b.tensor], parameters=into)
    out = dict(device=where, values=[a, b], out_types=[tensor("m", "n")])
    graph.output(*[ops.custom(name="matmul", parameters=call, **out)[0] for call in calls])
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


options = dict(options="kernel=kernel6 cluster_m=2 cluster_n=1")
inputs = [tensor("x", "y", kind=BufferType), tensor("m", "k"), tensor("n", "l")]
with Graph("into", input_types=inputs, custom_extensions=[Path(sys.argv[1])]) as graph:
    c, a, b = graph.inputs
    ops.inplace_custom("matmul_into", DeviceRef.CPU(), [c.buffer, a.tensor, b.tensor], parameters=options)
    graph.output()
model = InferenceSession(devices=[CPU()]).load(graph)


def byte(*shape, kind=TensorType):
    return kind(DType.uint8, list(shape), device=DeviceRef.CPU())


of_scaled = dict(options="kernel=kernel9 dtype=nvfp4 cluster_m=2 cluster_n=1")
inputs = [tensor("x", "y", kind=BufferType), byte("m", "k"), byte("n", "l"), byte("r", "s", "t"), byte("u", "v", "w"),
          TensorType(DType.float32, [], device=DeviceRef.CPU())]
with Graph("scaled", input_types=inputs, custom_extensions=[Path(sys.argv[1])]) as graph:
    c, *others = graph.inputs
    values = [c.buffer, *(other.tensor for other in others)]
    ops.inplace_custom("scaled_matmul_into", DeviceRef.CPU(), values, parameters=of_scaled)
    graph.output()
scaled = InferenceSession(devices=[CPU()]).load(graph)


def zeros(*shape):
    return Buffer.from_numpy(np.zeros(shape, np.float16))


def bytes_of(*shape):
    return Buffer.from_numpy(np.zeros(shape, np.uint8))


def of(*arguments):
    return [zeros(130, 48), *(bytes_of(*shape) for shape in arguments), Buffer.from_numpy(np.array(1, np.float32))]


for execute, arguments in [
    (model, [zeros(32, 48), zeros(32, 16), zeros(48, 16)]),
    (model, [zeros(32, 48), zeros(32, 16), zeros(48, 24)]),
    (model, [zeros(32, 64), zeros(32, 16), zeros(48, 16)]),
    (scaled, of((130, 48), (48, 48), (2, 2, 512), (1, 2, 512))),
    (scaled, of((130, 48), (48, 48), (2, 1, 512), (1, 2, 512))),
    (scaled, of((130, 48), (48, 48), (2, 2, 512), (48, 5, 1))),
    (scaled, of((130, 48), (48, 56), (2, 2, 512), (1, 2, 512))),
]:
    try:
        execute.execute(*arguments)
        print("no error")
    except Exception as error:
        print(" ".join(str(error).split()))
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(Path(ROOT, "kernels")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


BLACKWELL = {
    "kernel5_bf16_2cta_256x256x64_s1_c2x1_e64": "kernel=kernel5 cluster_m=2 cluster_n=1",
    "kernel6_bf16_2cta_256x256x64_s5_c2x2_e64": "kernel=kernel6 cluster_m=2 cluster_n=2",
    "kernel7_bf16_2cta_256x256x64_s6_c4x4_e32": "kernel=kernel7",
    "kernel7_bf16_2cta_256x256x64_s6_c2x1_e32": "kernel=kernel7 cluster_m=2 cluster_n=1 cta_group=2 multicast=true",
    "kernel8_bf16_2cta_256x256x64_s6_c2x1_e32_static_g8_a2_n148": (
        "kernel=kernel8 cluster_m=2 cluster_n=1 scheduler=static"
    ),
    "kernel8_bf16_2cta_256x256x64_s6_c4x1_e32_clc_g4_a2_d2": "kernel=kernel8 cluster_n=1 raster_group=4",
}
HOPPER = {
    "kernel6_bf16_wgmma_128x256x64_s3_c2x2_e64": "kernel=kernel6 cluster_n=2",
    "kernel7_bf16_wgmma_128x256x64_s4_c2x1_e32": "kernel=kernel7",
    "kernel8_bf16_wgmma_128x256x64_s4_c1x2_e32_static_g16_a1_n100": (
        "kernel=kernel8 cluster_m=1 cluster_n=2 raster_group=16 sms=100"
    ),
    "kernel8_bf16_wgmma_128x256x64_s4_c2x1_e32_dynamic_g8_a1_n132": "kernel=kernel8 scheduler=dynamic",
}


@pytest.mark.parametrize(("arch", "calls"), [("sm_100a", BLACKWELL), ("sm_90a", HOPPER)])
def test_ops_compile_for_a_virtual_device(tmp_path: Path, arch: str, calls: dict[str, str]) -> None:
    artifact = tmp_path / "matmul.mef"
    done = run(COMPILE, artifact, arch, json.dumps([*calls.values()]))
    assert done.returncode == 0, done.stderr
    content = artifact.read_bytes()
    for name in calls:
        assert f".text.{name}".encode() in content, f"no machine code of {name}"


def test_what_is_no_configuration_does_not_compile(tmp_path: Path) -> None:
    done = run(COMPILE, tmp_path / "matmul.mef", "sm_90a", json.dumps(["kernel=kernel6 cta_group=2"]))
    assert done.returncode and "cta group 2 is not possible on sm_90a" in done.stdout + done.stderr


def test_op_refuses_other_devices_and_shapes_that_do_not_match() -> None:
    done = run(ON_CPU)
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stdout + done.stderr
    assert "kernel6 runs on GPUs of compute capability 9.0 (sm_90a: H100, H200) and 10.0 (sm_100a: B200)" in lines[0]
    assert "A [32, 16] and B [48, 24] differ in K" in lines[1]
    assert "the shape of C is [32, 64], not [32, 48]" in lines[2]
    assert "kernel9 runs on GPUs of compute capability 9.0" in lines[3]
    assert "the shape of the scale factors of A is [2, 1, 512], not [2, 2, 512]" in lines[4]
    assert "the shape of the scale factors of B is [48, 5, 1], not [1, 2, 512]" in lines[5]
    assert "A [130, 48] and B [48, 56] differ in K" in lines[6]
