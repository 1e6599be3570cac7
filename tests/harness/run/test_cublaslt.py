"""The search among cuBLASLt's algorithms, with a library in its place that computes what its descriptors say."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from emugpu.errors import CannotRun

torch = pytest.importorskip("torch")
from test_gpu_validation import SHAPE, no_gpu, nothing_compiled, operands_of, request_for, right_output  # noqa: E402, F401

from harness.run import cublaslt, vendors  # noqa: E402

TYPES = {number: getattr(torch, name) for name, number in cublaslt.TYPES.items()}
REFUSES = 1


class Library:
    """cuBLASLt: columns are contiguous, alpha op(A) op(B) + beta C. ``times`` are seconds, by algorithm."""

    handle = ctypes.c_void_p(1)

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.times = [3e-5, None, 1e-5, 2e-5]
        self.last = -1
        self.wrong = False

    def made(self, name: str, *about: Any) -> ctypes.c_void_p:
        self.things.append(SimpleNamespace(about=[getattr(each, "value", each) for each in about], set={}))
        return ctypes.c_void_p(len(self.things))

    def set(self, function: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self._thing(target).set[attribute] = value.value

    def _thing(self, number: ctypes.c_void_p) -> Any:
        return self.things[(number.value or 0) - 1]

    def call(self, name: str, *arguments: Any) -> None:
        if name == "cublasLtMatmulAlgoGetHeuristic":
            found, count = arguments[-2], arguments[-1]._obj
            count.value = len(self.times)
            for number in range(count.value):
                found[number].algorithm[0] = number
            return
        assert name == "cublasLtMatmul"
        _, description, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, *_ = arguments
        self.last = algorithm._obj[0]
        if self.times[self.last] is None:
            raise CannotRun("cublasLtMatmul failed with status 15")
        about = self._thing(description).set
        a, b, c, d = (
            self._matrix(address, of) for address, of in ((a, of_a), (b, of_b), (c, of_c), (d, of_d))
        )  # as doubles, but D, which is written
        a, b = (x.t() if about.get(key) else x for x, key in ((a, cublaslt.TRANS_A), (b, cublaslt.TRANS_B)))
        for key in (cublaslt.A_SCALE, cublaslt.B_SCALE):
            if key in about:
                a = a * ctypes.c_float.from_address(about[key]).value
        value = alpha._obj.value * (a.double() @ b.double())
        if beta._obj.value:
            value += beta._obj.value * c.double()
        epilogue = about[cublaslt.EPILOGUE]
        if epilogue & 4:
            value += vector(about[cublaslt.BIAS_POINTER], d.shape[0], d.dtype).double()[:, None]
        if epilogue & 2:
            value = value.relu()
        if epilogue & 32:
            value = torch.nn.functional.gelu(value, approximate="tanh")
        d.copy_(value if not self.wrong else value.flip(0))

    def _matrix(self, address: ctypes.c_void_p, layout: ctypes.c_void_p) -> Any:
        kind, rows, columns, apart = self._thing(layout).about
        assert apart >= rows
        memory = vector(address.value, (columns - 1) * apart + rows, TYPES[kind])
        memory = memory.float() if kind == cublaslt.TYPES["float8_e4m3fn"] else memory
        return memory.as_strided((rows, columns), (1, apart))


def vector(address: int | None, count: int, dtype: Any) -> Any:
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=count)


@pytest.fixture
def library(monkeypatch) -> Library:
    made = Library()

    class Batch:
        def __init__(self, launches: list[Any], count: int) -> None:
            self.launches = launches
            launches[0]()

        def seconds(self) -> float:
            self.launches[0]()
            return made.times[made.last]

    monkeypatch.setattr(cublaslt, "_Library", lambda: made)
    monkeypatch.setattr(cublaslt, "Batch", Batch)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"epilogue": "bias"},
        {"epilogue": "bias-relu"},
        {"epilogue": "bias-gelu"},
        {"epilogue": "residual"},
        {"out_dtype": "f32", "dtype": "e4m3"},
        {"layout": "tn", "mma_shape": (128, 128), "ld": (104, 160, 144)},
        {"layout": "nn", "mma_shape": (128, 128), "ld": (64, 152, 144)},
    ],
    ids=str,
)
def test_cublaslt_multiplies_the_same(tmp_path, library, options):
    ld = options.pop("ld", ())
    request = request_for(tmp_path, "integer", replace(SHAPE, ld=ld), **options)
    given, right = operands_of(request), right_output(request)
    [launch], tried = cublaslt.best_launches([vendors._as_product(given)], lambda: None)
    given.c.fill_(float("nan"))
    launch()
    assert tried == 3 and torch.allclose(given.c.double(), right.double(), rtol=2.0**-7)


def test_the_fastest_that_the_problem_allows_is_kept(tmp_path, library):
    """A sign of life comes with each trial: a search takes a while for a large problem."""
    request, trials = request_for(tmp_path, "integer"), []
    [launch], _ = cublaslt.best_launches(
        [vendors._as_product(operands_of(request))], lambda: trials.append(library.last)
    )
    launch()
    assert library.last == 2 and len(trials) == len(library.times) + cublaslt.ROUNDS
    library.times = [None]
    with pytest.raises(CannotRun, match="cuBLASLt ran none of its 1 algorithms for this problem"):
        cublaslt.best_launches([vendors._as_product(operands_of(request))], lambda: None)


@pytest.mark.parametrize("reason", ["wrong", "refused"])
def test_a_vendor_that_fails_is_noted(tmp_path, library, monkeypatch, reason):
    """PyTorch refuses some problems with a ValueError."""
    given, told = operands_of(request_for(tmp_path, "normal")), []
    assert len(vendors.launches_of("best_of_cublaslt", [given], told.append, lambda: None)) == 1
    assert told == ["best_of_cublaslt: the fastest of 3 algorithms"] and given.c.isnan().all()
    if reason == "wrong":
        library.wrong = True
        said = "best_of_cublaslt not timed: its C differs from cuBLAS's by 1.4 of it"
    else:

        def refuse(*_, **__):
            raise ValueError("no such\nscaling")

        monkeypatch.setattr(torch, "matmul", refuse)
        said = "best_of_cublaslt not timed: no such scaling"
    assert vendors.launches_of("best_of_cublaslt", [given], told.append, lambda: None) == []
    assert told[1:] == [said]


@pytest.mark.parametrize("name", ["cublas", "best_of_cublaslt"])
def test_the_product_alone_is_noted(tmp_path, library, name):
    told: list[str] = []
    given = operands_of(request_for(tmp_path, "integer", epilogue="swiglu"))
    assert vendors.launches_of(name, [given], told.append, lambda: None)
    assert told[-1] == f"{name} is the product alone, without swiglu"
