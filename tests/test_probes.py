"""The probes: on the emulator, through a driver that is played by the emulator, and against what GPUs answered."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import types
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.emulator import Device, Module, TensorMap
from harness.probes import emulator, gpu, recording
from harness.probes.__main__ import main
from harness.probes.catalogue import PROBES
from harness.probes.probe import decode, differences, encode

RECORDINGS = sorted(Path(__file__).parent.glob("data/hardware/*.json"))


@pytest.mark.parametrize("name", PROBES)
def test_outputs_survive_a_recording(name, tmp_path):
    probe = PROBES[name]
    outputs = emulator.run(probe)
    path = tmp_path / "recording.json"
    recording.write(path, {"gpu": "none"}, {name: recording.entry(probe, outputs, 1.0)})
    entry = recording.read(path)["probes"][name]
    assert differences(outputs, decode(entry["outputs"])) == []
    assert entry["answer"] == json.loads(json.dumps(probe.read(outputs)))
    assert entry["digest"] == probe.digest()


def test_what_the_emulator_answers():
    """The points that the machine model rests on, in words."""
    answers = {name: PROBES[name].read(emulator.run(PROBES[name])) for name in PROBES}
    assert all(case["whole box signalled"] for case in answers["tma_out_of_bounds"].values())
    assert answers["tma_row_pitch"]["128B box 64 bytes wide at 0"]["rows 0 and 1 begin at"] == [0, 128 + 16]
    assert answers["elect_sync"]["0x7fff8000"] == [15]
    masks = answers["tma_multicast_ranks"]
    assert masks["cluster 2x2, rank 3 loads, mask 0b0110"]["data in ranks"] == [1, 2]
    assert masks["cluster 2x2, rank 3 loads, mask 0b0110"]["cluster_ctaid of ranks"][2] == [0, 1]
    plain = answers["tma_plain_load_barrier"]["cluster 2x1, rank 1 loads, barrier of rank 0"]
    assert plain["barrier completed in ranks"] == plain["data in ranks"] == [1]
    assert answers["cluster_addresses"]["own address"][3] == "0x3000400"
    assert all(answers[name] == {"exact": True} for name in answers if name.startswith("wgmma_tile"))


def test_differences_name_case_buffer_and_place():
    first = {"one": {"d": np.arange(6, dtype=np.uint32).reshape(2, 3)}}
    second = {"one": {"d": np.array([[0, 1, 2], [3, 0xFF, 5]], np.uint32)}}
    assert differences(first, decode(encode(first))) == []
    assert differences(first, second) == ["one, d: 1 of 6 elements differ, first at (1, 1): 0x4 and 0xff"]


def test_the_digest_changes_with_inputs_and_launch():
    probe = PROBES["elect_sync"]
    case = probe.cases[0]
    other = dict(case.buffers, masks=case.buffers["masks"] ^ 1)
    digests = {
        probe.digest(),
        replace(probe, ptx=probe.ptx + "\n").digest(),
        replace(probe, cases=(replace(case, buffers=other),)).digest(),
        replace(probe, cases=(replace(case, block=64),)).digest(),
    }
    assert len(digests) == 4


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", PROBES)
def test_ptxas_assembles_it_without_remarks(name, tmp_path):
    source = tmp_path / "probe.ptx"
    source.write_text(PROBES[name].ptx)
    command = ["ptxas", "-arch=sm_90a", str(source), "-o", str(tmp_path / "probe.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- the GPU side, on a driver that the emulator plays ----


class FakeDriver(types.SimpleNamespace):
    """As much of cuda.bindings.driver as `gpu.Driver` uses; kernels run on an emulated GPU."""

    def __init__(self, accumulation: str) -> None:
        super().__init__(device=Device(accumulation=accumulation), maps={}, shared=None, alive=set())
        number = types.SimpleNamespace
        self.CUlaunchConfig = self.CUlaunchAttribute = lambda: number(value=number(clusterDim=number()))
        self.CUdeviceptr = self.CUstream = self.cuuint32_t = self.cuuint64_t = int
        for name in ("CUfunction_attribute", "CUlaunchAttributeID", "CUtensorMapDataType", "CUtensorMapInterleave",
                     "CUtensorMapSwizzle", "CUtensorMapL2promotion", "CUtensorMapFloatOOBfill"):  # fmt: skip
            setattr(self, name, _Names())

    def cuInit(self, flags):
        return (0,)

    def cuDeviceGet(self, ordinal):
        return 0, "device"

    def cuDevicePrimaryCtxRetain(self, device):
        return 0, "context"

    def cuCtxSetCurrent(self, context):
        return (0,)

    def cuCtxSynchronize(self):
        return (0,)

    def cuModuleLoadData(self, image):
        assert image.endswith(b"\0")
        return 0, Module.from_text(image[:-1].decode())

    def cuModuleGetFunction(self, module, name):
        assert module.entries == (name.decode(),)
        return 0, module

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self.shared = value
        return (0,)

    def cuMemAlloc(self, nbytes):
        address = self.device.alloc(nbytes)
        self.alive.add(address)
        return 0, address

    def cuMemFree(self, address):
        self.alive.remove(address)
        return (0,)

    def cuMemcpyHtoD(self, address, host, nbytes):
        data = np.frombuffer(ctypes.string_at(host, nbytes), np.uint8)
        self.device._memory.write(address, data)
        return (0,)

    def cuMemcpyDtoH(self, host, address, nbytes):
        data = self.device.download(address, np.uint8, nbytes)
        ctypes.memmove(host, data.ctypes.data, nbytes)
        return (0,)

    def cuTensorMapEncodeTiled(
        self, element, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill
    ):
        names = {"BFLOAT16": "bf16", "FLOAT16": "f16"}
        tensor_map = TensorMap(
            address,
            names[element.removeprefix("CU_TENSOR_MAP_DATA_TYPE_")],
            tuple(dims),
            tuple(strides),
            tuple(box),
            tuple(steps),
            swizzle.removeprefix("CU_TENSOR_MAP_SWIZZLE_"),
            fill_nan="NAN" in fill,
        )
        assert tensor_map.rank == rank == len(steps)
        image = len(self.maps).to_bytes(128, "little")
        self.maps[image] = tensor_map
        buffer = ctypes.create_string_buffer(image, 128)
        return 0, types.SimpleNamespace(getPtr=lambda: ctypes.addressof(buffer), keep=buffer)

    def cuLaunchKernelEx(self, config, module, parameters, extra):
        sizes = [p.size for p in module.code(None).kernel.parameters]
        pointers = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        images = [ctypes.string_at(p, size) for p, size in zip(pointers, sizes, strict=True)]
        attribute = config.attrs[0]
        assert attribute.id == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION" and config.numAttrs == 1
        cluster = attribute.value.clusterDim
        assert config.sharedMemBytes == self.shared
        self.device.launch(
            module,
            grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
            cluster=(cluster.x, cluster.y, cluster.z),
            block=(config.blockDimX, config.blockDimY, config.blockDimZ),
            dynamic_smem=config.sharedMemBytes,
            arguments=[self.maps.get(image, image) for image in images],
        )
        return (0,)


class _Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name):
        return name


def play(monkeypatch, driver) -> None:
    """Make `from cuda.bindings import driver` give this object."""
    cuda, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    bindings.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)


@pytest.mark.parametrize("name", PROBES)
def test_the_driver_calls_launch_the_same_as_the_emulator(monkeypatch, name):
    probe = PROBES[name]
    driver = FakeDriver(probe.accumulation)
    play(monkeypatch, driver)
    assert differences(emulator.run(probe), gpu.run(probe)) == []
    assert not driver.alive


def test_a_failing_driver_call_is_named(monkeypatch):
    driver = FakeDriver("f32")
    driver.cuModuleLoadData = lambda image: (218, None)
    play(monkeypatch, driver)
    with pytest.raises(gpu.GpuError, match="cuModuleLoadData failed: 218"):
        gpu.run(PROBES["elect_sync"])


def test_a_child_that_fails_or_hangs():
    """Without cuda.bindings the child says so; one that outlives its time is ended."""
    probe = PROBES["elect_sync"]
    if find_spec("cuda") is None:
        with pytest.raises(gpu.GpuError, match="install cuda-bindings"):
            gpu.run_in_child(probe)
    with pytest.raises(gpu.GpuError, match="no answer after 0 s; the probe hangs"):
        gpu.run_in_child(probe, seconds=0.01)


def fake_nvidia_smi(monkeypatch, answer: str) -> None:
    done = types.SimpleNamespace(returncode=0, stdout=answer, stderr="")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *a, **k: done)


def test_the_recorder_compares_and_writes(monkeypatch, tmp_path):
    fake_nvidia_smi(monkeypatch, "NVIDIA H200, 580.1, 9.0\n")

    def answer(probe, seconds):
        outputs = emulator.run(probe)
        if probe.name == "mbarrier_phases":
            outputs["steps"]["report"] = outputs["steps"]["report"] ^ 1
        if probe.name == "stmatrix_ldmatrix":
            raise gpu.GpuError("no answer")
        return outputs

    monkeypatch.setattr(gpu, "run_in_child", answer)
    path = tmp_path / "new" / "h200.json"
    first = CliRunner().invoke(main, ["--device", "gpu", "--json", str(path), "elect_sync"])
    assert first.exit_code == 0, first.output
    assert "NVIDIA H200, driver 580.1" in first.output and "as the emulator" in first.output
    names = ["mbarrier_phases", "stmatrix_ldmatrix"]
    second = CliRunner().invoke(main, ["--device", "gpu", "--json", str(path), *names])
    assert second.exit_code == 1
    assert "differs from the emulator" in second.output and "failed: no answer" in second.output
    data = recording.read(path)
    assert data["machine"]["driver"] == "580.1"
    assert set(data["probes"]) == {"elect_sync", *names}
    assert data["probes"]["stmatrix_ldmatrix"]["error"] == "no answer"


def test_a_gpu_that_cannot_answer(monkeypatch):
    fake_nvidia_smi(monkeypatch, "NVIDIA B200, 580.1, 10.0\n")
    result = CliRunner().invoke(main, ["--device", "gpu"])
    assert result.exit_code == 1
    assert "NVIDIA B200 has compute capability 10.0; the probes are written for 9.0" in result.output


# ---- what GPUs answered ----


@pytest.mark.skipif(not RECORDINGS, reason="no answers of a GPU are recorded in tests/data/hardware yet")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", PROBES)
def test_the_emulator_does_what_the_gpu_did(path, name):
    data = recording.read(path)
    again = f"record it again: python -m harness.probes --device gpu --json {path.name} {name}"
    assert name in data["probes"], f"{name} was not recorded on {data['machine']['gpu']}; {again}"
    entry, probe = data["probes"][name], PROBES[name]
    assert "error" not in entry, f"{name} failed on {data['machine']['gpu']}: {entry.get('error')}; {again}"
    assert entry["digest"] == probe.digest(), f"{name} has changed since it was recorded; {again}"
    assert differences(decode(entry["outputs"]), emulator.run(probe)) == []
