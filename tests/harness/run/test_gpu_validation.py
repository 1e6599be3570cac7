"""What the GPU process validates, with PyTorch's tensors on the CPU in place of a GPU's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compile.config import make_config
from harness.problem import OUT_TYPES, Shape
from harness.run import worker
from harness.run.model import op_operands
from harness.validation import allowed_error, compute_reference

torch = pytest.importorskip("torch")
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


def request_for(folder: Path, kind: str, **options: Any) -> worker.MeasurementRequest:
    config = make_config("kernel8", arch="sm_90a", cluster=(2, 1), **options)
    output = (SHAPE.m, SHAPE.n // (2 if config.epilogue == "swiglu" else 1))
    return worker.MeasurementRequest(config, "", output, (128, 256), SHAPE, kind, 1, folder, 1.0, [], False, None)


def right_output(request: worker.MeasurementRequest) -> Any:
    dtype = OUT_TYPES[request.config.out_dtype]
    values = compute_reference(worker._inputs(request)).rounded(dtype)
    return worker._on_gpu(values.astype(dtype.numpy))


@pytest.mark.parametrize("kind", ["normal", "integer"])
@pytest.mark.parametrize("options", CONFIGURATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_what_is_right_passes_and_one_wrong_element_of_any_output_fails(tmp_path, options, kind):
    request = request_for(tmp_path, kind, **options)
    inputs, right = worker._inputs(request), right_output(request)
    found = worker._validate_all(request, inputs, [right, right.clone()])
    assert found["passed"] and found["elements"] == right.numel()
    for wrong_one in (0, 1):
        outputs = [right.clone(), right.clone()]
        outputs[wrong_one][5, 7] += 64 + abs(outputs[wrong_one][5, 7])
        found = worker._validate_all(request, inputs, outputs)
        assert not found["passed"] and found["mismatches"] == 1 and found["wrong_tiles"]
    outputs[1][5, 7] = float("nan")
    assert worker._validate_all(request, inputs, outputs)["non_finite"] == 1


def test_a_later_process_compares_with_what_was_found_right(tmp_path, monkeypatch):
    request = request_for(tmp_path, "normal")
    inputs, right = worker._inputs(request), right_output(request)
    worker._validate_all(request, inputs, [right])
    validated = []
    monkeypatch.setattr(worker, "_validate", lambda *given: validated.append(given) or {"passed": False})
    assert worker._validate_all(request, inputs, [right.clone(), right.clone()]) == {"passed": True} and not validated
    other = right.clone()
    other[0, 0] += 1
    assert not worker._validate_all(request, inputs, [right, other])["passed"] and len(validated) == 1


def test_a_wrong_output_is_not_what_later_ones_are_compared_with(tmp_path):
    request = request_for(tmp_path, "integer")
    inputs, right = worker._inputs(request), right_output(request)
    wrong = right + 1
    assert not worker._validate_all(request, inputs, [wrong])["passed"]
    assert not worker._validate_all(request, inputs, [wrong, wrong])["passed"]
    assert worker._validate_all(request, inputs, [right])["passed"]


def test_a_timed_launch_that_gave_something_else_is_validated_anew(tmp_path, monkeypatch):
    request = request_for(tmp_path, "normal")
    inputs, right = worker._inputs(request), right_output(request)
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
    first = worker._inputs(request)
    monkeypatch.setattr(worker, "make_inputs", lambda *_: pytest.fail("drawn again"))
    again = worker._inputs(request)
    assert np.array_equal(first.a.view(np.uint8), again.a.view(np.uint8)) and first.alpha == again.alpha


def test_inputs_pass_through_l2_but_those_of_a_tiny_problem_are_not_copied_for_minutes():
    """At 8x8x8 it would take 349,527 sets to fill L2 twice."""

    def count(size: int) -> int:
        return worker._set_count([torch.empty((size, size), dtype=torch.bfloat16, device="meta")] * 2, (size, size))

    assert count(8) == worker.MOST_SETS == 512
    assert (count(512) - 1) * 3 * 2 * 512**2 >= 2 * worker.L2_BYTES
    assert count(8192) == 2


@pytest.mark.parametrize("options", [{}, {"epilogue": "bias"}, {"epilogue": "bias-relu"}, {"epilogue": "residual"}])
def test_the_vendor_multiplies_the_same(tmp_path, options):
    request = request_for(tmp_path, "integer", **options)
    arrays, numbers = op_operands(request.config, worker._inputs(request))
    right = right_output(request)
    c = torch.full_like(right, float("nan"))
    worker._by_pytorch(request, [worker._on_gpu(array) for array in arrays], numbers, c)()
    assert torch.equal(c, right)


def test_the_vendor_reads_a_and_b_as_they_lie(tmp_path):
    """A [K, M] and B [K, N], both in rows that are longer."""
    request = request_for(tmp_path, "integer", mma_shape=(128, 128), layout="tn")
    request = replace(request, shape=replace(SHAPE, ld=(104, 160, 0)))
    arrays, numbers = op_operands(request.config, worker._inputs(request), request.shape.ld)
    assert [array.shape for array in arrays[:2]] == [(SHAPE.k * 104,), (SHAPE.k * 160,)]
    assert numbers == [SHAPE.m, SHAPE.n, SHAPE.k, 104, 160, 0, 1.0, 1.0]
    right = right_output(request)
    c = torch.full_like(right, float("nan"))
    worker._by_pytorch(request, [worker._on_gpu(array) for array in arrays], numbers, c)()
    assert torch.equal(c, right)


def test_the_vendor_has_the_scale_factors_of_a_matrix(tmp_path):
    request = request_for(tmp_path, "normal", dtype="e4m3")
    arrays, numbers = op_operands(request.config, worker._inputs(request))
    right = right_output(request)
    c = torch.full_like(right, float("nan"))
    worker._by_pytorch(request, [worker._on_gpu(array) for array in arrays], numbers, c)()
    assert (c.double() - right.double()).abs().max() <= 2.0**-7 * right.double().abs().max()


def test_what_the_vendor_needs_is_made_before_it_is_timed(tmp_path, monkeypatch):
    """A scale factor that is filled in with each launch is a launch of its own."""
    request = request_for(tmp_path, "integer", dtype="e4m3")
    arrays, numbers = op_operands(request.config, worker._inputs(request))
    operands, c = [worker._on_gpu(array) for array in arrays], right_output(request)
    launch = worker._by_pytorch(request, operands, numbers, c)
    monkeypatch.setattr(torch, "full", lambda *_, **__: pytest.fail("made while it is timed"))
    launch()
