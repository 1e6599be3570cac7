"""What the GPU process validates, with PyTorch's tensors on the CPU in place of a GPU's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compile.artifacts import Artifact, plan_json
from harness.compile.config import make_config
from harness.compile.planner import Plan, parse_plan
from harness.problem import OUT_TYPES, Shape
from harness.run import operands, vendors, worker
from harness.run.operands import Operands, make_sets, on_gpu
from harness.validation import allowed_error, compute_reference

torch = pytest.importorskip("torch")
FakeGpu = pytest.importorskip("pytorch_on_cpu").FakeGpu
host_time = pytest.importorskip("harness.run.host_time")
SHAPE = Shape(96, 144, 64)
CONFIGURATIONS: list[dict[str, Any]] = [
    {"dtype": "bf16"},
    {"dtype": "fp16", "out_dtype": "f32"},
    {"dtype": "e4m3", "scales": "block"},
    {"dtype": "bf16", "epilogue": "swiglu"},
]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)


def request_for(folder: Path, kind: str, shape: Shape = SHAPE, **options: Any) -> worker.MeasurementRequest:
    config = make_config("kernel8", arch="sm_90a", cluster=(2, 1), **options)
    artifact = Artifact(config, folder / "kernel", False)
    return worker.MeasurementRequest(artifact, shape, kind, 1, folder, 1.0, [], False, False)


def right_output(request: worker.MeasurementRequest) -> Any:
    dtype = OUT_TYPES[request.artifact.config.out_dtype]
    values = compute_reference(worker.draw_inputs(request)).rounded(dtype)
    return on_gpu(values.astype(dtype.numpy))


def operands_of(request: worker.MeasurementRequest) -> Operands:
    config = request.artifact.config
    return make_sets(config, plan_of(request), request.shape, worker.draw_inputs(request))[0]


def plan_of(request: worker.MeasurementRequest) -> Plan:
    """The plan without the name of an entry, as no kernel is compiled."""
    return parse_plan(plan_json(request.artifact.config, request.shape))


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(Artifact, "plan", lambda artifact, shape: parse_plan(plan_json(artifact.config, shape)))


@pytest.mark.parametrize("kind", ["normal", "integer"])
@pytest.mark.parametrize("options", CONFIGURATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_what_is_right_passes_and_one_wrong_element_of_any_output_fails(tmp_path, options, kind):
    request = request_for(tmp_path, kind, **options)
    inputs, right = worker.draw_inputs(request), right_output(request)
    found = worker.validate_all(request, inputs, [right, right.clone()])
    assert found["passed"] and found["elements"] == right.numel()
    for wrong_one in (0, 1):
        outputs = [right.clone(), right.clone()]
        outputs[wrong_one][5, 7] += 64 + abs(outputs[wrong_one][5, 7])
        found = worker.validate_all(request, inputs, outputs)
        assert not found["passed"] and found["mismatches"] == 1 and found["wrong_tiles"]
    outputs[1][5, 7] = float("nan")
    assert worker.validate_all(request, inputs, outputs)["non_finite"] == 1


def test_a_later_process_compares_with_what_was_found_right(tmp_path, monkeypatch):
    request = request_for(tmp_path, "normal")
    inputs, right = worker.draw_inputs(request), right_output(request)
    worker.validate_all(request, inputs, [right])
    validated = []
    monkeypatch.setattr(worker, "_validate", lambda *given: validated.append(given) or {"passed": False})
    assert worker.validate_all(request, inputs, [right.clone(), right.clone()]) == {"passed": True} and not validated
    other = right.clone()
    other[0, 0] += 1
    assert not worker.validate_all(request, inputs, [right, other])["passed"] and len(validated) == 1


def test_a_wrong_output_is_not_what_later_ones_are_compared_with(tmp_path):
    request = request_for(tmp_path, "integer")
    inputs, right = worker.draw_inputs(request), right_output(request)
    wrong = right + 1
    assert not worker.validate_all(request, inputs, [wrong])["passed"]
    assert not worker.validate_all(request, inputs, [wrong, wrong])["passed"]
    assert worker.validate_all(request, inputs, [right])["passed"]


def test_a_timed_launch_that_gave_something_else_is_validated_anew(tmp_path, monkeypatch):
    request = request_for(tmp_path, "normal")
    inputs, right = worker.draw_inputs(request), right_output(request)
    told: list[tuple[str, dict]] = []
    monkeypatch.setattr(worker, "emit", lambda event, **fields: told.append((event, fields)))
    worker._check_again(request, inputs, [right.clone()], right)
    assert not told
    reference = compute_reference(inputs)
    near = right.clone()
    worker._bits(near)[:] += 1
    off = (near.double() - torch.from_numpy(reference.values)).abs()
    may = off <= torch.from_numpy(allowed_error(reference, OUT_TYPES["bf16"]))
    assert may.any(), "some sum lies nearly between two numbers"
    near = torch.where(may, near, right)
    worker._check_again(request, inputs, [near], right)
    assert [event for event, _ in told] == ["note"]
    near[3, 4] += 100
    worker._check_again(request, inputs, [near], right)
    assert told[1][0] == "checked" and told[1][1]["validation"]["mismatches"] == 1


def test_the_inputs_are_drawn_once(tmp_path, monkeypatch):
    request = request_for(tmp_path, "index", dtype="e4m3")
    first = worker.draw_inputs(request)
    monkeypatch.setattr(worker, "make_inputs", lambda *_: pytest.fail("drawn again"))
    again = worker.draw_inputs(request)
    assert np.array_equal(first.a.view(np.uint8), again.a.view(np.uint8)) and first.alpha == again.alpha


def test_inputs_pass_through_l2_but_those_of_a_tiny_problem_are_not_copied_for_minutes():
    """At 8x8x8 it would take 349,527 sets to fill L2 twice."""

    def count(size: int) -> int:
        inputs = [torch.empty((size, size), dtype=torch.bfloat16, device="meta")] * 2
        return operands._set_count(inputs, (size, size))

    assert count(8) == operands.MOST_SETS == 512
    assert (count(512) - 1) * 3 * 2 * 512**2 >= 2 * operands.L2_BYTES
    assert count(8192) == 2


def test_sets_of_operands_share_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(operands, "_set_count", lambda *_: 3)
    request = request_for(tmp_path, "integer", epilogue="bias")
    sets = make_sets(request.artifact.config, plan_of(request), SHAPE, worker.draw_inputs(request))
    addresses = [address for one in sets for name, address in one.named().items() if name not in ("alpha", "beta")]
    assert len(set(addresses)) == len(addresses) == 3 * len({"A", "B", "C", "bias"})
    assert all(torch.equal(one.tensors["A"], sets[0].tensors["A"]) and one.c.isnan().all() for one in sets)


@pytest.mark.parametrize("options", [{}, {"epilogue": "bias"}, {"epilogue": "bias-relu"}, {"epilogue": "residual"}])
def test_the_vendor_and_the_function_multiply_the_same(tmp_path, options, monkeypatch):
    fake = FakeGpu(monkeypatch)
    request = request_for(tmp_path, "integer", **options)
    given, right = operands_of(request), right_output(request)
    for launch in (vendors.by_pytorch(given), host_time.function_call(given)):
        given.c.fill_(float("nan"))
        launch()
        assert torch.equal(given.c, right)
    assert [config for config, _ in fake.prepared] == [request.artifact.config], "the very kernel that is timed"


def test_the_vendor_and_the_function_read_a_and_b_as_they_lie(tmp_path, monkeypatch):
    """A [K, M] and B [K, N], both in rows that are longer."""
    fake = FakeGpu(monkeypatch)
    request = request_for(tmp_path, "integer", replace(SHAPE, ld=(104, 160, 144)), mma_shape=(128, 128), layout="tn")
    given, right = operands_of(request), right_output(request)
    assert [given.tensors[name].shape for name in "AB"] == [(SHAPE.k, 104), (SHAPE.k, 160)]
    assert given.a.stride() == (1, 104) and given.b.stride() == (1, 160)
    for launch in (vendors.by_pytorch(given), host_time.function_call(given)):
        given.c.fill_(float("nan"))
        launch()
        assert torch.equal(given.c, right)
    assert [shape.ld for _, shape in fake.prepared] == [(104, 160, 144)]


def test_the_function_writes_c_with_gaps_between_its_rows(tmp_path, monkeypatch):
    FakeGpu(monkeypatch)
    request = request_for(tmp_path, "integer", replace(SHAPE, ld=(64, 64, 152)))
    given, right = operands_of(request), right_output(request)
    host_time.function_call(given)()
    assert given.c.shape == (96, 152) and torch.equal(given.c[:, :144], right) and given.c[:, 144:].isnan().all()


@pytest.mark.parametrize("reason", ["another commit's", "refused"])
def test_the_host_is_noted_if_it_cannot_be_timed(tmp_path, monkeypatch, reason):
    """What was timed before is kept, and C is as the timed launches left it."""
    FakeGpu(monkeypatch)
    told: list[str] = []
    monkeypatch.setattr(worker, "note", told.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(host_time, "CALLS", 1)
    request = request_for(tmp_path, "integer", stages=2)
    given = operands_of(request)
    assert worker._host_time(request, given, {}, lambda: None).keys() == {"kernel"} and not told
    assert given.c.isnan().all()
    if reason == "refused":
        monkeypatch.setattr(host_time, "matmul", lambda *_, **__: worker.KernelLoader(-1))  # it raises CannotRun
        why = "host not timed: no CUDA driver"
    else:
        request = replace(request, artifact=replace(request.artifact, planner=tmp_path))
        why = "host not timed: no function of harness.pytorch launches this kernel"
    assert worker._host_time(request, given, {}, lambda: None) == {}
    assert len(told) == 1 and told[0].startswith(why)


def test_the_vendor_has_the_scale_factors_of_a_matrix(tmp_path):
    request = request_for(tmp_path, "normal", dtype="e4m3")
    given, right = operands_of(request), right_output(request)
    vendors.by_pytorch(given)()
    assert (given.c.double() - right.double()).abs().max() <= 2.0**-7 * right.double().abs().max()


def test_what_the_vendor_needs_is_made_before_it_is_timed(tmp_path, monkeypatch):
    """A scale factor that is filled in with each launch is a launch of its own."""
    launch = vendors.by_pytorch(operands_of(request_for(tmp_path, "integer", dtype="e4m3")))
    monkeypatch.setattr(torch, "full", lambda *_, **__: pytest.fail("made while it is timed"))
    launch()


@pytest.mark.parametrize("options", [{}, {"stages": 2, "epilogue": "bias"}], ids=str)
def test_the_call_names_what_the_kernel_would_not_choose(tmp_path, monkeypatch, options):
    """Options cost time in every call, and users name few."""
    FakeGpu(monkeypatch)
    config = make_config("kernel8", arch="sm_90a", shape=SHAPE, **options)
    artifact = Artifact(config, tmp_path, False)
    given = operands_of(worker.MeasurementRequest(artifact, SHAPE, "integer", 1, tmp_path, 1.0, [], False, False))
    asked = {}
    monkeypatch.setattr(host_time, "matmul", lambda *_, **named: asked.update(named))
    host_time.function_call(given)()
    beside = {"out", "kernel", "activation", "tuned", "bias"}
    assert asked.keys() - beside == options.keys() - {"epilogue"}


def test_what_has_no_function_has_no_host_time(tmp_path):
    """PyTorch's function would choose the sizes of groups on the GPU, and has none for the user's own kernel."""
    request = request_for(tmp_path, "integer", replace(SHAPE, groups=(40, 56)), grouped=True)
    assert host_time.function_call(operands_of(request)) is None


FP8_CALLS: list[tuple[str, dict[str, Any], bool]] = [
    ("rows", {"scales": "tensor"}, True),
    ("rows", {"scales": "tensor", "split_k": 4}, False),
    ("kernel8", {"scales": "tensor"}, False),
    ("kernel8", {"scales": "tensor", "cluster": (1, 1), "stages": 3}, True),
    ("kernel8", {"scales": "block"}, True),
]


@pytest.mark.parametrize(("kernel", "options", "takes"), FP8_CALLS, ids=str)
def test_the_function_for_few_rows_of_e4m3_is_that_of_this_kernel(tmp_path, monkeypatch, kernel, options, takes):
    """`scaled_matmul` chooses the kernel itself, so for some builds there is no call."""
    fake, shape = FakeGpu(monkeypatch), Shape(8, 144, 128)
    config = make_config(kernel, arch="sm_90a", dtype="e4m3", shape=shape, **options)
    artifact = Artifact(config, tmp_path, False)
    given = operands_of(worker.MeasurementRequest(artifact, shape, "integer", 1, tmp_path, 1.0, [], False, False))
    call = host_time.function_call(given)
    assert (call is not None) == takes
    if call:
        call()
        assert [found for found, _ in fake.prepared] == [config]
