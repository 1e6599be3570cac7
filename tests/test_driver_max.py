"""Kernels of the series through MAX on the emulated GPU: custom op, InferenceSession and host code are MAX's own.

What MAX launches is compared with the plan, its tensor maps too, and the output is exact.
"""

import pytest

from harness.compiler.build import build
from harness.compiler.plan import TensorMapArgument
from harness.config.config import make_config
from harness.driver.gpu_model import gpu_model
from harness.emulator.memory.tensor_map_bytes import NBYTES, Fields
from harness.gpu import emulated
from harness.problem.shape import Shape
from harness.run.runner import Request, run

SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
PROMOTIONS = {128: 2, 256: 3}


def run_through_max(monkeypatch, config, shape, kind="index"):
    """The outcome of a run, and the launch as the driver saw it."""
    seen = []
    check = emulated._the_launch
    monkeypatch.setattr(emulated, "_the_launch", lambda log, plan: seen.append(check(log, plan)) or seen[-1])
    outcome = run(Request(config, Shape(*shape), inputs=kind, through_max=True))
    return outcome, seen[0]


def assert_right(outcome, launch):
    assert outcome.validation.passed and outcome.validation.as_dict()["max_abs_error"] == 0
    plan = outcome.plan
    assert (launch.grid, launch.cluster, launch.block) == (plan.grid, plan.cluster, plan.block)
    assert launch.dynamic_shared == plan.dynamic_smem
    maps = [argument for argument in plan.arguments if isinstance(argument, TensorMapArgument)]
    assert len(maps) == 3
    for n, planned in enumerate(maps):
        fields = Fields.unpack(launch.parameters[NBYTES * n : NBYTES * (n + 1)])
        assert (fields.dims, fields.strides, fields.box) == (planned.dims, planned.strides, planned.box)
        assert fields.element == planned.dtype.replace("fp16", "f16")
        assert fields.swizzle == SWIZZLES[planned.swizzle]
        assert fields.l2_promotion == PROMOTIONS[planned.l2_promotion]


def test_kernel_7_on_a_b200(monkeypatch):
    config = make_config("kernel7", arch="sm_100a", cluster=(2, 1))
    outcome, launch = run_through_max(monkeypatch, config, (520, 264, 200))
    assert_right(outcome, launch)
    assert outcome.record["device"]["name"] == "emulated NVIDIA B200"
    assert outcome.record["counters"]["tma_global_bytes_read_by_tensor"].keys() == {"A", "B"}
    # The same kernel launched by the harness itself counts the same, but for what only a schedule changes.
    alone = run(Request(config, Shape(520, 264, 200), inputs="index"))
    ours, theirs = alone.record["counters"], outcome.record["counters"]
    assert {name for name in ours if ours[name] != theirs[name]} <= {"mbarrier_stalls", "max_stores_in_flight"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "arch", "options", "shape"),
    [
        ("kernel5", "sm_100a", {}, (384, 512, 200)),
        ("kernel6", "sm_100a", {"cluster": (2, 2)}, (512, 520, 256)),
        ("kernel7", "sm_100a", {"cluster": (4, 2), "dtype": "fp16"}, (1024, 512, 264)),
        ("kernel8", "sm_100a", {}, (768, 520, 256)),
        ("kernel5", "sm_90a", {}, (384, 264, 200)),
        ("kernel6", "sm_90a", {"cluster": (1, 2)}, (264, 520, 136)),
        ("kernel7", "sm_90a", {"cluster": (2, 1)}, (384, 520, 264)),
        ("kernel8", "sm_90a", {"cluster": (2, 1)}, (768, 520, 256)),
    ],
)
def test_kernels_on_both_gpus(monkeypatch, kernel, arch, options, shape):
    assert_right(*run_through_max(monkeypatch, make_config(kernel, arch=arch, **options), shape))


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


def test_a_gpu_for_every_architecture():
    for arch, gpu in emulated.GPU_OF_ARCH.items():
        assert gpu_model(gpu).target == arch
