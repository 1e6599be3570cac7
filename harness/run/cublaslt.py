"""The best of cuBLASLt's algorithms for a product: the vendor's library as fast as a search makes it.

`torch.matmul` takes the first algorithm that cuBLAS's heuristics name. They give a list, and another of it is often
faster. Here each is timed, and the fastest is kept. The calls are cuBLASLt's, through ctypes, in the library that
PyTorch has loaded. Numbers of enumerations are those of cublasLt.h (CUDA 13.1).
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.errors import CannotRun
from harness.run.gpu_timing import Batch

LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")
MOST_ALGORITHMS = 64
"""Asked of the heuristics; they have fewer for most problems."""
WORKSPACE_BYTES = 64 << 20
LAUNCHES, ROUNDS, FINALISTS = 10, 9, 4
"""Launches of each algorithm in a trial, but no fewer than there are products; and the rounds in which the fastest of
these try again, in turns.
"""
TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float8_e4m3fn": 28}
"""cudaDataType, by the names of PyTorch's types."""
COMPUTE_32F, R_32F = 68, 0
TRANS_A, TRANS_B, EPILOGUE, BIAS_POINTER, A_SCALE, B_SCALE, FAST_ACCUM = 3, 4, 7, 8, 17, 18, 25
EPILOGUES = {"none": 1, "bias": 4, "bias-relu": 6, "bias-gelu": 36, "residual": 1}
"""cublasLtEpilogue_t, by the names of ours that cuBLASLt has. A residual is its C, with beta."""
MOST_WORKSPACE = 1


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Product:
    """D = alpha * A . B + beta * C as PyTorch's tensors: A [M, K], B [K, N], each contiguous along one dimension, C and
    D [M, N]. ``scales`` are factors of e4m3's A and B, on the GPU.
    """

    a: Any
    b: Any
    d: Any
    c: Any = None
    bias: Any = None
    epilogue: str = "none"
    alpha: float = 1.0
    beta: float = 0.0
    scales: tuple[Any, Any] | None = None


def best_launches(products: Sequence[Product], alive: Callable[[], None]) -> tuple[list[Callable[[], None]], int]:
    """Returns a launch of each product, which differ in their addresses alone, by the algorithm that is fastest for
    them, and the number of algorithms that were tried. Calls ``alive`` at each trial. Raises CannotRun if cuBLASLt
    has none.
    """
    import torch

    library = _Library()
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=products[0].d.device)
    calls = [_Call(library, product, workspace) for product in products]
    algorithms = calls[0].algorithms()
    found = []
    for algorithm in algorithms:
        alive()
        launches = [call.by(algorithm) for call in calls]
        try:
            batch = Batch(launches, LAUNCHES)
        except CannotRun:  # the heuristics name some that refuse the problem after all
            continue
        found.append((min(batch.seconds() for _ in range(2)), batch))
    if not found:
        raise CannotRun(f"cuBLASLt ran none of its {len(algorithms)} algorithms for this problem")
    finalists = [batch for _, batch in sorted(found, key=lambda one: one[0])[:FINALISTS]]
    rounds = []
    for _ in range(ROUNDS):
        rounds.append([batch.seconds() for batch in finalists])
        alive()
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return finalists[medians.index(min(medians))].launches, len(found)


class _Library:
    """cuBLASLt, with a handle."""

    def __init__(self) -> None:
        self.library = self._loaded()
        self.handle = self.made("cublasLtCreate")

    def _loaded(self) -> Any:
        for name in LIBRARIES:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        raise CannotRun(f"no cuBLASLt here ({', '.join(LIBRARIES)})")

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise CannotRun(f"{name} failed with status {status}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Returns what a function creates."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found

    def set(self, function: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self.call(function, target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


class _Call:
    """One product, described. cuBLASLt's matrices have contiguous columns, so it computes D^T = B^T . A^T: its A is our
    B, and its B our A.
    """

    def __init__(self, library: _Library, product: Product, workspace: Any) -> None:
        self.library, self.product, self.workspace = library, product, workspace
        self.description = library.made("cublasLtMatmulDescCreate", COMPUTE_32F, R_32F)
        self._set(TRANS_A, ctypes.c_int32(_is_by_columns(product.b)))
        self._set(TRANS_B, ctypes.c_int32(_is_by_columns(product.a)))
        self._set(EPILOGUE, ctypes.c_uint32(EPILOGUES[product.epilogue]))
        if product.bias is not None:
            self._set(BIAS_POINTER, ctypes.c_uint64(product.bias.data_ptr()))
        if product.scales is not None:
            of_a, of_b = product.scales
            self._set(A_SCALE, ctypes.c_uint64(of_b.data_ptr()))
            self._set(B_SCALE, ctypes.c_uint64(of_a.data_ptr()))
            self._set(FAST_ACCUM, ctypes.c_int8(1))
        self.alpha, self.beta = ctypes.c_float(product.alpha), ctypes.c_float(product.beta)
        self.c = product.d if product.c is None else product.c
        self.layouts = [self._layout(each) for each in (product.b, product.a, self.c, product.d)]

    def _set(self, attribute: int, value: Any) -> None:
        self.library.set("cublasLtMatmulDescSetAttribute", self.description, attribute, value)

    def _layout(self, x: Any) -> ctypes.c_void_p:
        """Returns the layout of a matrix's memory: columns that are rows, or columns, of the matrix."""
        length, count = reversed(x.shape) if not _is_by_columns(x) else x.shape
        apart = max(x.stride()) if count > 1 else length
        kind = TYPES[str(x.dtype).removeprefix("torch.")]
        sizes = ctypes.c_uint64(length), ctypes.c_uint64(count), ctypes.c_int64(apart)
        return self.library.made("cublasLtMatrixLayoutCreate", kind, *sizes)

    def algorithms(self) -> list[_Result]:
        """Returns what the heuristics name for this product, their first choice first."""
        wanted = self.library.made("cublasLtMatmulPreferenceCreate")
        most = ctypes.c_uint64(WORKSPACE_BYTES)
        self.library.set("cublasLtMatmulPreferenceSetAttribute", wanted, MOST_WORKSPACE, most)
        found, count = (_Result * MOST_ALGORITHMS)(), ctypes.c_int()
        self.library.call(
            "cublasLtMatmulAlgoGetHeuristic", self.library.handle, self.description, *self.layouts, wanted,
            MOST_ALGORITHMS, found, ctypes.byref(count),
        )  # fmt: skip
        return [one for one in found[: count.value] if one.state == 0]

    def by(self, algorithm: _Result) -> Callable[[], None]:
        """Returns a launch by this algorithm on PyTorch's current stream."""
        import torch

        a, b, c, d = (ctypes.c_void_p(x.data_ptr()) for x in (self.product.b, self.product.a, self.c, self.product.d))
        of_a, of_b, of_c, of_d = self.layouts
        memory, size = ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES)
        by = ctypes.byref(algorithm.algorithm)

        def launch() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            self.library.call(
                "cublasLtMatmul", self.library.handle, self.description, ctypes.byref(self.alpha), a, of_a, b, of_b,
                ctypes.byref(self.beta), c, of_c, d, of_d, by, memory, size, stream,
            )  # fmt: skip

        return launch


def _is_by_columns(x: Any) -> bool:
    """Returns whether a matrix lies in memory column by column."""
    rows, columns = x.stride()
    return bool(rows == 1 and columns != 1)
