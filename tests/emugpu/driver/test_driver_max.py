"""Kernels of the series through MAX on the emulated GPU: custom op, InferenceSession and host code are MAX's own.

What MAX launches is compared with the plan, its tensor maps too, and the output is exact.
"""

import json
import sys
from pathlib import Path

import max_on_emulated_gpu as emulated
import pytest
from driver_programs import PROGRAMS
from driver_programs import run as run_program

from emugpu.driver.gpu_model import gpu_model
from emugpu.emulator.memory.tensor_map_bytes import NBYTES, Fields
from emugpu.gpus import usual_gpu
from emugpu.launch.launching import EmulationOptions
from harness import paths
from harness.compile.artifacts import build, judged, to_launchable
from harness.compile.catalog import ARCHITECTURES
from harness.compile.config import make_config
from harness.compile.planner import TensorMapArgument
from harness.problem import Shape, make_inputs
from harness.run.case import Request
from harness.run.runner import run

nightly_unless_changed = pytest.mark.nightly_unless_changed(
    "emugpu/driver/", "kernels/host/", "harness/launch/max_ops", "tests/support/max_"
)
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
PROMOTIONS = {128: 2, 256: 3}


def run_through_max(monkeypatch, config, shape, kind="index"):
    """The result of a run with its counters, the plan, and the launch as the driver saw it."""
    seen = []
    check = emulated._the_launch
    monkeypatch.setattr(emulated, "_the_launch", lambda log, plan: seen.append(check(log, plan)) or seen[-1])
    [artifact], problem = build([config]), Shape(*shape)
    plan = artifact.plan(problem)
    inputs = make_inputs(problem, config.dtype, kind, 0, config.fused_epilogue, config.scales)
    what = to_launchable(artifact, plan, inputs)
    found = judged(emulated.run_on_emulated_gpu(artifact, plan, what, inputs, EmulationOptions()), plan)
    return found, plan, seen[0]


def assert_as_planned(launch, plan):
    assert (launch.grid, launch.cluster, launch.block) == (plan.grid, plan.cluster, plan.block)
    assert launch.dynamic_shared == plan.dynamic_smem
    maps = [argument for argument in plan.arguments if isinstance(argument, TensorMapArgument)]
    assert len(maps) == (5 if plan.config["scales"] == "block" else 3)
    for n, planned in enumerate(maps):
        fields = Fields.unpack(launch.parameters[NBYTES * n : NBYTES * (n + 1)])
        assert (fields.dims, fields.strides, fields.box) == (planned.dims, planned.strides, planned.box)
        assert fields.element == planned.dtype.replace("fp16", "f16")
        assert fields.swizzle == SWIZZLES[planned.swizzle]
        assert fields.l2_promotion == PROMOTIONS[planned.l2_promotion]


@pytest.mark.slow
@nightly_unless_changed
def test_kernel_7_on_a_b200(monkeypatch):
    config = make_config("kernel7", arch="sm_100a", cluster=(2, 1))
    found, plan, launch = run_through_max(monkeypatch, config, (520, 264, 200))
    assert found.validation.passed and found.validation.as_dict()["max_abs_error"] == 0
    assert_as_planned(launch, plan)
    assert found.counters["tma_global_bytes_read_by_tensor"].keys() == {"A", "B"}
    # The same kernel launched by the harness itself counts the same, but for what only a schedule changes.
    alone = run(Request(config, Shape(520, 264, 200), inputs="index"))
    ours, theirs = alone.record["counters"], found.counters
    assert {name for name in ours if ours[name] != theirs[name]} <= {"mbarrier_stalls", "max_stores_in_flight"}


@pytest.mark.slow
@nightly_unless_changed
@pytest.mark.parametrize(
    "config",
    [
        make_config("kernel9", cluster=(2, 1), out_dtype="f32"),
        make_config("kernel8", arch="sm_90a", dtype="e4m3", scales="block", cluster=(1, 2), scheduler="dynamic"),
    ],
    ids=lambda config: config.dtype,
)
def test_scale_factors_of_blocks(monkeypatch, config):
    """They and alpha go through MAX's host code, too."""
    found, plan, launch = run_through_max(monkeypatch, config, (300, 520, 544))
    assert found.validation.passed and found.validation.as_dict()["max_abs_error"] == 0
    assert_as_planned(launch, plan)
    assert "A scales" in found.counters["tma_global_bytes_read_by_tensor"]


@pytest.mark.slow
@nightly_unless_changed
def test_groups(monkeypatch):
    """Their sizes are on the device, and each has its bias; the tensor map of C is one of windows."""
    config = make_config("kernel8", arch="sm_90a", mma_shape=(64, 64), cluster=(1, 1), grouped=True, epilogue="bias")
    found, plan, launch = run_through_max(monkeypatch, config, (135, 72, 136, (40, 0, 70, 1, 24)), "integer")
    assert found.validation.passed and found.validation.exact
    assert_as_planned(launch, plan)


@pytest.mark.slow
@nightly_unless_changed
def test_addresses_in_place_of_tensor_maps(monkeypatch):
    """The kernel for few rows of A has no tensor maps."""
    config = make_config("rows", arch="sm_90a", mma_shape=(16, 40), epilogue="residual", out_dtype="f32")
    found, plan, launch = run_through_max(monkeypatch, config, (11, 72, 200, (), (216, 208, 0)), "integer")
    assert found.validation.passed and found.validation.exact
    assert (launch.grid, launch.block, launch.dynamic_shared) == (plan.grid, plan.block, plan.dynamic_smem)


SERIES = {
    "b200": [
        (make_config("kernel5", arch="sm_100a"), (384, 512, 200)),
        (make_config("kernel6", arch="sm_100a", cluster=(2, 2)), (512, 520, 256)),
        (make_config("kernel7", arch="sm_100a", cluster=(4, 2), dtype="fp16"), (1024, 512, 264)),
        (make_config("kernel8", arch="sm_100a", out_dtype="f32"), (768, 520, 256)),
    ],
    "h200": [
        (make_config("kernel5", arch="sm_90a"), (384, 264, 200)),
        (make_config("kernel6", arch="sm_90a", cluster=(1, 2)), (264, 520, 136)),
        (make_config("kernel7", arch="sm_90a", cluster=(2, 1), dtype="fp16"), (384, 520, 264)),
        (make_config("kernel8", arch="sm_90a", cluster=(2, 1)), (768, 520, 256)),
    ],
}


@pytest.mark.slow
@nightly_unless_changed
@pytest.mark.parametrize("gpu", SERIES)
def test_the_series_in_one_graph(capfd, gpu):
    """Four custom ops, compiled together: that takes little more time than one."""
    asked = json.dumps([[config.to_json(), shape] for config, shape in SERIES[gpu]])
    done = run_program(capfd, gpu, sys.executable, PROGRAMS / "python/max_series.py", asked)
    assert done.out == "".join(f"{config.kernel}: 0 wrong\n" for config, _ in SERIES[gpu]), done.err
    assert done.code == 0 and not done.log.failure
    for artifact, (_, shape), launch in zip(
        build([config for config, _ in SERIES[gpu]]), SERIES[gpu], done.log.launches, strict=True
    ):
        assert_as_planned(launch, artifact.plan(Shape(*shape)))


@pytest.mark.slow
@nightly_unless_changed
def test_an_mlp_block_in_two_launches(capfd):
    """Fused epilogues through MAX: the example is right within its bound, and launches its two kernels alone."""
    done = run_program(capfd, "h200", sys.executable, paths.ROOT / "docs/examples/mlp.py")
    assert done.code == 0 and "y[96,256]: 0 wrong" in done.out, done.err
    assert ["swiglu" in done.log.launches[0].kernel, "residual" in done.log.launches[1].kernel] == [True, True]
    assert len(done.log.launches) == 2


def test_a_launch_that_is_not_the_plans_is_told():
    config = make_config("kernel7", arch="sm_100a", cluster=(2, 1))
    plan = build([config])[0].plan(Shape(512, 256, 128))
    launch = emulated.LaunchRecord(0, plan.entry, (9, 1, 1), plan.cluster, plan.block, plan.dynamic_smem, 1)
    log = emulated.Log(quiet=True)
    with pytest.raises(emulated.CannotRun, match=r"launched 0 \(none\)"):
        emulated._the_launch(log, plan)
    log.launches.append(launch)
    with pytest.raises(emulated.CannotRun, match=r"with grid \(9, 1, 1\); the plan says"):
        emulated._the_launch(log, plan)


@pytest.mark.parametrize("error", ["LimitExceeded: it was ended", ""])
def test_what_max_says_of_a_launch_that_has_failed_is_left_out(monkeypatch, capfd, error):
    """It is a traceback, and the launch has been told; else what it says is all that is known."""

    def run(command, gpu, environment, stderr):
        stderr.write(b"Traceback: of MAX\n")
        gpu.log.launches.append(emulated.LaunchRecord(0, "kernel", (1, 1, 1), (1, 1, 1), (1, 1, 1), 0, 1, error=error))
        return 1

    monkeypatch.setattr(emulated, "compile_artifact", lambda config, **_: (Path("model"), False))
    monkeypatch.setattr(emulated, "run_program", run)
    config, shape = make_config("kernel7", arch="sm_100a", cluster=(2, 1)), Shape(8, 8, 8)
    artifact = build([config])[0]
    plan, inputs = artifact.plan(shape), make_inputs(shape, config.dtype, "integer", seed=0)
    with pytest.raises(emulated.CannotRun, match=error or "ended with code 1"):
        emulated.run_on_emulated_gpu(artifact, plan, to_launchable(artifact, plan, inputs), inputs, EmulationOptions())
    assert ("Traceback" in capfd.readouterr().err) == (not error)


def test_a_gpu_for_every_architecture():
    for arch in ARCHITECTURES:
        assert gpu_model(usual_gpu(arch).name).target == arch
