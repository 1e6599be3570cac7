"""What a call keeps, and what it says when it cannot be launched; tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
on_cpu = pytest.importorskip("pytorch_on_cpu")
from emugpu.errors import CannotRun  # noqa: E402
from harness.launch.launcher import MISALIGNED, Launch, Workspace  # noqa: E402
from harness.pytorch import calls  # noqa: E402

M, N, K = 40, 48, 64


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    return on_cpu.FakeGpu(monkeypatch)


def draw(*size: int):
    return torch.randint(-3, 4, size).bfloat16()


A, B = draw(M, K), draw(N, K)
PRODUCT = (A.double() @ B.double().t()).bfloat16()


def test_a_call_is_prepared_once_and_reads_other_addresses(gpu):
    assert torch.equal(functions.matmul(A, B), PRODUCT)
    other = draw(M, K)
    assert torch.equal(functions.matmul(other, B), (other.double() @ B.double().t()).bfloat16())
    assert len(gpu.launched) == 2 and len(gpu.prepared) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda: functions.matmul(draw(M + 8, K), B),
        lambda: functions.matmul(draw(K, M).t(), B),
        lambda: functions.matmul(A.half(), B.half()),
        lambda: functions.matmul(A, B, bias=draw(N)),
        lambda: functions.matmul(A, B, activation="relu"),
        lambda: functions.matmul(A, B, out_dtype=torch.float32),
        lambda: functions.matmul(A, B, out=draw(M, 2 * N)[:, N:]),
        lambda: functions.matmul(A, B, stages=2),
        lambda: functions.matmul(A, B, kernel="kernel7"),
    ],
)
def test_another_kind_of_call_is_prepared_for_itself(gpu, change):
    functions.matmul(A, B)
    change()
    assert len(gpu.prepared) == 2


def test_group_sizes_that_are_no_longer_contiguous_are_refused():
    sizes = torch.tensor([8, 0, 16, 0, 16, 0], dtype=torch.int32)
    of_groups = draw(3, N, K)
    functions.grouped_matmul(A, of_groups, sizes[::2].contiguous())
    with pytest.raises(ValueError, match=r"group_sizes has strides \(2,\); call group_sizes.contiguous\(\) first"):
        functions.grouped_matmul(A, of_groups, sizes[::2])


def test_options_may_be_lists(gpu):
    functions.matmul(A, B, cluster=[2, 1])
    functions.matmul(A, B, cluster=(2, 1))
    assert len(gpu.prepared) == 1 and gpu.prepared[0][0].cluster == (2, 1)


def test_the_oldest_call_is_forgotten(gpu, monkeypatch):
    monkeypatch.setattr(calls, "MOST_CALLS", 2)
    for rows in (8, 16, 24, 16):
        functions.matmul(A[:rows], B)
    assert [shape.m for _, shape in gpu.prepared] == [8, 16, 24]
    functions.matmul(A[:8], B)
    assert [shape.m for _, shape in gpu.prepared] == [8, 16, 24, 8]


def test_threads_that_forget_calls_at_the_same_time_do_not_disturb_each_other(gpu, monkeypatch):
    """A second thread makes a call of its own just before the first one deletes the oldest."""

    class Calls(dict):
        def __delitem__(self, key):
            other = threading.Thread(target=functions.matmul, args=(A[:32], B), daemon=True)
            if not others:
                others.append(other)
                other.start()
                other.join(0.2)
            super().__delitem__(key)

    others = []
    monkeypatch.setattr(calls, "_calls", Calls())
    monkeypatch.setattr(calls, "MOST_CALLS", 1)
    for rows in (8, 16):
        functions.matmul(A[:rows], B)
    others[0].join()
    assert [key[1][0] for key in calls._calls] == [32]


def test_a_call_that_is_refused_is_not_kept():
    for _ in range(2):
        with pytest.raises(ValueError, match="differ in K"):
            functions.matmul(A, B[:, :32].contiguous())


def test_what_was_saved_for_backward_may_not_be_overwritten():
    """As with any in-place operation of PyTorch."""
    x = torch.zeros(M, N, requires_grad=True)
    out = torch.zeros(M, N)
    y = x * out
    functions.matmul(A, B, out=out, out_dtype=torch.float32)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("number", "name", "multiple"), [(0, "out", 16), (1, "a", 16), (2, "b", 16), (3, "bias", 4), (4, "residual", 4)]
)
def test_tensors_that_begin_where_the_kernels_cannot_read_are_named(gpu, number, name, multiple):
    gpu.answer = MISALIGNED + number
    options = {"bias": draw(N)} if number == 3 else {"residual": draw(M, N)}
    with pytest.raises(ValueError, match=rf"^{name} begins at the address 0x.*a multiple of {multiple} bytes: copy it"):
        functions.matmul(A, B, **options)


def test_scale_factors_begin_at_16_bytes(gpu):
    gpu.answer = MISALIGNED + 4
    e4m3 = [x.to(torch.float8_e4m3fn) for x in (A, B)]
    with pytest.raises(ValueError, match=r"b_scales begins at the address 0x.*a multiple of 16 bytes"):
        functions.scaled_matmul(*e4m3, torch.zeros(1, M), torch.zeros(1, 4))


def test_what_the_driver_refuses_is_no_result(gpu):
    gpu.answer = 400
    with pytest.raises(CannotRun, match=r"kernel8 sm_90a bf16 .*: the driver refuses the launch .*error 400"):
        functions.matmul(A, B)


def given_with(name: str, change):
    """Returns a function and its arguments, among them the tensor of this name, changed."""
    function, given = functions.matmul, {"a": A, "b": B}
    if name == "group_sizes":
        function, given = functions.grouped_matmul, {"a": A, "b": B[None], name: torch.tensor([M], dtype=torch.int32)}
    elif name not in given:
        given[name] = {"bias": draw(N), "residual": draw(M, N), "out": draw(M, N)}[name]
    return function, given | {name: change(given[name])}


class Seen(torch.Tensor):
    """A class of tensors that is told which functions get one of its own."""

    functions: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.functions.append(str(function))
        return super().__torch_function__(function, types, arguments, options)


@pytest.mark.parametrize("name", ["a", "b", "bias", "residual", "group_sizes", "out"])
def test_the_class_of_any_tensor_sees_the_operator(name):
    function, given = given_with(name, lambda x: x.as_subclass(Seen))
    Seen.functions.clear()
    function(**given)
    assert "blackwell_lab.gemm" in Seen.functions


@pytest.mark.parametrize("name", ["a", "b", "bias", "residual"])
def test_tensors_that_pytorch_negates_only_when_they_are_read(name):
    """Their memory has the opposite of their elements (torch.Tensor.is_neg), as that of `x.conj().imag` has."""
    function, given = given_with(name, lambda x: torch._neg_view(-x))
    assert given[name].is_neg()
    exact = A.double() @ B.double().t()
    exact += sum(given[more].double() for more in ("bias", "residual") if more in given)
    assert torch.equal(function(**given), exact.bfloat16())


def test_group_sizes_that_pytorch_negates_only_when_they_are_read(gpu):
    function, given = given_with("group_sizes", lambda x: torch._neg_view(-x))
    function(**given)
    assert gpu.launched[0].sizes != given["group_sizes"].data_ptr(), "a copy is read"


def test_out_that_pytorch_negates_only_when_it_is_read_is_refused():
    function, given = given_with("out", torch._neg_view)
    with pytest.raises(ValueError, match=r"^out.is_neg\(\) is True: .*; give an ordinary tensor$"):
        function(**given)


WORKSPACE = Workspace(counters=3, bytes=64)


def workspaces_of(monkeypatch, streams, capturing=False) -> list[int]:
    """The addresses of workspaces that launches on these streams get, which a CUDA graph captures or not. The tensors
    are on another device than PyTorch's current one, on which the opposite is the case.
    """
    seen, current = [], []

    @contextmanager
    def on(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: (current == [A.device]) == capturing)
    monkeypatch.setattr(calls, "load", lambda configs, shapes, device: [Launch(7, WORKSPACE, "a kernel", None)])
    monkeypatch.setattr(calls, "launcher", lambda: lambda values: seen.append(on_cpu.FORMAT.unpack(values)[9]) or 0)
    monkeypatch.setattr(calls, "_workspaces", {})
    for stream in streams:
        monkeypatch.setattr(calls, "current_stream", lambda index, stream=stream: stream)
        functions.matmul(A, B)
    return seen


def test_launches_on_a_stream_share_a_workspace_and_streams_do_not(monkeypatch):
    first, second, again, other = workspaces_of(monkeypatch, [1, 2, 1, 3])
    assert first == again and len({first, second, other}) == 3
    kept = list(calls._workspaces.values())
    assert [len(each) for each in kept] == [16] * 3 and not any(each[:3].any() for each in kept)


def test_a_graph_has_its_own_workspaces_and_zeroes_them(monkeypatch):
    zeroed = []  # it keeps the memory, as the pool of a graph does
    monkeypatch.setattr(torch.Tensor, "zero_", lambda self: zeroed.append(self))
    first, second = workspaces_of(monkeypatch, [1, 1], capturing=True)
    assert first != second and [each.data_ptr() for each in zeroed] == [first, second]
    assert [len(each) for each in zeroed] == [3, 3] and not calls._workspaces


def test_warm_prepares_all_shapes_together(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    loads = []
    load = calls.load
    monkeypatch.setattr(calls, "load", lambda *given: loads.append(given) or load(*given))
    functions.warm([(1, 256, 128), (512, 256, 128)], bias=True, activation="gelu", dtype=torch.float16)
    assert len(loads) == 1 and not gpu.launched
    assert [(shape.m, config.dtype, config.epilogue) for config, shape in gpu.prepared] == [
        (1, "fp16", "bias-gelu"),
        (512, "fp16", "bias-gelu"),
    ]
    with pytest.raises(ValueError, match="no fused epilogue bias-silu"):
        functions.warm([(1, 256, 128)], bias=True, activation="silu")
