"""Kernels of other compilers (tests/data) as probes: the same launches on a GPU of sm_90a and on the emulator.

``PYTHONPATH=. python tests/conformance/foreign_probes.py`` asks the GPU of this machine and writes
its answers to the recording.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.probe import Argument, MapArgument, Outputs, Pointer, Probe, ProbeCase, StructArgument
from conformance.record import record

DATA = Path(__file__).parents[2] / "tests/data"
NULL = np.uint64(0)
Buffers = dict[str, np.ndarray]


def source(path: str) -> str:
    """PTX of tests/data for sm_90a; nvcc's programs hold nothing that only sm_100a has."""
    return (DATA / path).read_text().replace(".target sm_100a", ".target sm_90a")


def entry_of(ptx: str) -> str:
    found = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert found is not None
    return found[1]


def bits(array: np.ndarray) -> np.ndarray:
    """The array as unsigned integers, which files can hold whatever the type."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """All ones, which is NaN in every float type."""
    return np.full(shape, -1, f"i{np.dtype(dtype).itemsize}").view(f"u{np.dtype(dtype).itemsize}")


def probe(
    name: str,
    path: str,
    cases: dict[str, tuple[Buffers, tuple[Argument, ...], tuple[str, ...]]],
    *,
    entry: str = "",
    exact: bool = True,
    **launch: Any,
) -> Probe:
    """cases: buffers, arguments and outputs by name."""
    ptx = source(path)
    made = [
        ProbeCase(case, {n: bits(b) for n, b in buffers.items()}, arguments, outputs, **launch)
        for case, (buffers, arguments, outputs) in cases.items()
    ]
    return Probe(
        name=name,
        question=f"What does {path} compute?",
        ptx=ptx,
        cases=tuple(made),
        read=_first_words,
        accumulation="tensor_core",
        entry=entry or entry_of(ptx),
        exact=exact,
    )


def _first_words(outputs: Outputs) -> dict[str, Any]:
    return {
        f"{case}, {name}": [hex(v) for v in array.ravel()[:4].tolist()]
        for case, buffers in outputs.items()
        for name, array in buffers.items()
    }


# ---- matmuls ----


def matrices(dtype: Any, *shapes: tuple[int, int]) -> dict[str, list[np.ndarray]]:
    """Integers, whose products are exact, and random numbers, whose sums are rounded."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    with np.errstate(over="ignore"):
        return {
            "integers": [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes],
            "normal": [rng.standard_normal(shape).astype(dtype) for shape in shapes],
        }


def by_pointers(name: str, path: str, dtype: Any, result: Any, m: int, n: int, k: int, arguments: tuple[Argument, ...],
                transposed: bool = False, **launch: Any) -> Probe:  # fmt: skip
    """C = A @ B, or A @ B.T; the buffers A, B and C come first."""
    shapes = ((m, k), (n, k) if transposed else (k, n))
    cases = {}
    for case, (a, b) in matrices(dtype, *shapes).items():
        buffers = {"a": a, "b": b, "c": blank((m, n), result)}
        cases[case] = (buffers, (Pointer("a"), Pointer("b"), Pointer("c"), *arguments), ("c",))
    return probe(name, path, cases, **launch)


def triton_matmul(name: str, dtype: Any, result: Any, shared: int) -> Probe:
    """Ragged in every dimension."""
    m, n, k = 100, 80, 144
    sizes = (np.int32(m), np.int32(n), np.int32(k), NULL, NULL)
    path = f"triton/matmul_{name}_sm90.ptx"
    return by_pointers(f"triton_matmul_{name}", path, dtype, result, m, n, k, sizes,
                       grid=(2, 2), block=128, shared=shared)  # fmt: skip


def shared_of(path: str) -> int:
    """Bytes of dynamic shared memory, from the file's first line."""
    found = re.search(r"(\d+) bytes of shared memory", source(path))
    assert found is not None
    return int(found[1])


def triton_tma() -> Probe:
    m, n, k = 256, 64, 192
    cases = {}
    for case, (a, b) in matrices(ml_dtypes.bfloat16, (m, k), (n, k)).items():
        buffers = {"a": a, "b": b, "c": blank((m, n), np.uint16)}
        arguments: list[Argument] = []
        for buffer, shape, rows in (("a", (m, k), 128), ("b", (n, k), 64), ("c", (m, n), 128)):
            tensor_map = MapArgument(buffer, "bf16", shape, (rows, 64), "128B")
            arguments += [tensor_map, *map(np.int32, shape), np.int64(shape[1]), np.int64(1)]
        cases[case] = (buffers, (*arguments, np.int32(k), NULL, NULL), ("c",))
    path = "triton/tma_matmul_sm90.ptx"
    return probe("triton_tma_matmul", path, cases, grid=(2, 1), block=128, shared=shared_of(path))


def cute_persistent(name: str, dtype: Any, element: str, k: int, columns: int, result: Any) -> Probe:
    """Three CTAs share twelve tiles."""
    m, n = 256, 192
    path = f"cute/persistent_{name}_sm90.ptx"
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", source(path))
    assert threads is not None
    cases = {}
    for case, (a, b) in matrices(dtype, (m, k), (n, k)).items():
        buffers = {"a": a, "b": b, "c": blank((m, n), result)}
        sizes = [np.int32(size) for size in (m, n, k)]
        arguments = (
            np.uint8(0),
            MapArgument("a", element, (m, k), (64, columns), "128B"),
            StructArgument((sizes[0], sizes[2])),
            MapArgument("b", element, (n, k), (64, columns), "128B"),
            StructArgument((sizes[1], sizes[2])),
            StructArgument((Pointer("c"), sizes[0], sizes[1], np.int64(n))),
        )
        cases[case] = (buffers, arguments, ("c",))
    return probe(f"cute_persistent_{name}", path, cases, grid=(3, 1), block=int(threads[1]), shared=shared_of(path))


def cute_axpy() -> Probe:
    rng = np.random.default_rng(80)
    x, y = rng.standard_normal((2, 1000)).astype(np.float32)
    vectors = [StructArgument((Pointer(name), np.int32(1000))) for name in ("x", "y")]
    path = "cute/axpy_sm90.ptx"
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", source(path))
    assert threads is not None
    cases = {"normal": ({"x": x, "y": y}, (np.float32(0.3), *vectors), ("y",))}
    return probe("cute_axpy", path, cases, grid=(8, 1), block=int(threads[1]), shared=shared_of(path))


# ---- nvcc ----


def nvcc_split_k(kind: str) -> Probe:
    rng = np.random.default_rng(81)
    m, n, k = 32, 32, 48
    if kind == "s32":
        a, b = (rng.integers(-(1 << 31), 1 << 31, shape, np.int32) for shape in ((m, k), (k, n)))
    else:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    buffers = {"a": a, "b": b, "c": blank((m, n), np.uint32), "locks": np.zeros(16, np.uint32)}
    arguments = (*map(Pointer, buffers), np.int32(n), np.int32(k))
    cases = {"any bits" if kind == "s32" else "normal": (buffers, arguments, ("c", "locks"))}
    return probe(f"nvcc_split_k_{kind}", "cuda/split_k.ptx", cases, entry=f"split_k_{kind}", grid=(4, 4, 3),
                 block=(8, 8))  # fmt: skip


def nvcc_histogram() -> Probe:
    data = np.random.default_rng(82).integers(0, 1 << 32, 700, np.uint32)
    buffers = {"data": data, "bins": np.zeros(256, np.uint32)}
    cases = {"any bits": (buffers, (Pointer("data"), np.int32(700), Pointer("bins")), ("bins",))}
    return probe("nvcc_histogram", "cuda/histogram.ptx", cases, grid=(8, 1), cluster=(4, 1), block=32)


def nvcc_chain(entry: str) -> Probe:
    data = np.random.default_rng(83).integers(-1000, 1000, 128, np.int32)
    buffers = {"flags": np.zeros(4, np.uint32), "input": data, "totals": np.zeros(4, np.int32)}
    cases = {"integers": (buffers, tuple(map(Pointer, buffers)), ("totals", "flags"))}
    return probe(f"nvcc_{entry}", "cuda/flag_chain.ptx", cases, entry=entry, grid=(4, 1), block=32)


def nvcc_numerics(entry: str, dtype: Any, result: Any, functions: int, exact: bool) -> Probe:
    x = np.sort(np.random.default_rng(84).uniform(-6, 6, 256)).astype(dtype)
    buffers = {"x": x, "y": np.zeros((functions, 256), result)}
    cases = {"uniform": (buffers, (Pointer("x"), Pointer("y"), np.int32(256)), ("y",))}
    return probe(f"nvcc_{entry}", "cuda/numerics.ptx", cases, entry=entry, exact=exact, block=256)


def nvcc_calls(name: str) -> Probe:
    """Calls, local arrays and printf, optimised and as -G leaves them."""
    cases = {"one warp": ({"out": np.zeros(32, np.int32)}, (Pointer("out"),), ("out",))}
    return probe(f"nvcc_{name}", f"cuda/{name}.ptx", cases, entry="calls", block=32)


# ---- by rows ----


def triton_rows(name: str, dtype: Any, columns: int, rows: int, more: int) -> Probe:
    """Softmax and layer norm, which use approximate functions."""
    rng = np.random.default_rng(85)
    x = rng.normal(0, 2, (rows, columns)).astype(dtype)
    extra = rng.standard_normal((more, columns)).astype(np.float32)
    buffers = {"x": x, **{f"extra{n}": extra[n] for n in range(more)}, "y": blank(x.shape, dtype)}
    last: tuple[Argument, ...] = (np.float32(1e-5),) if more else ()
    cases = {"normal": (buffers, (*map(Pointer, buffers), np.int32(columns), *last, NULL, NULL), ("y",))}
    path = f"triton/{name}_sm90.ptx"
    return probe(f"triton_{name}", path, cases, exact=False, grid=(rows, 1), block=128, shared=shared_of(path))


def triton_sum() -> Probe:
    """Sums that are exact in any order."""
    x = np.random.default_rng(86).integers(-1000, 1000, 1500).astype(np.float32)
    cases = {"integers": ({"x": x, "total": np.zeros(1, np.float32)},
                          (Pointer("x"), Pointer("total"), np.int32(1500), NULL, NULL), ("total",))}  # fmt: skip
    path = "triton/split_sum_sm90.ptx"
    return probe("triton_split_sum", path, cases, grid=(3, 1), block=128, shared=shared_of(path))


HALF, BF16, E4M3, SINGLE = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32

FOREIGN: dict[str, Probe] = {
    made.name: made
    for made in (
        triton_matmul("f16", HALF, SINGLE, shared_of("triton/matmul_f16_sm90.ptx")),
        triton_matmul("bf16", BF16, HALF, shared_of("triton/matmul_bf16_sm90.ptx")),
        triton_matmul("fp8", E4M3, SINGLE, shared_of("triton/matmul_fp8_sm90.ptx")),
        triton_matmul("f32", SINGLE, SINGLE, shared_of("triton/matmul_f32_sm90.ptx")),
        triton_tma(),
        triton_rows("softmax", SINGLE, 200, 3, 0),
        triton_rows("layer_norm", HALF, 300, 2, 2),
        triton_sum(),
        cute_persistent("f16", HALF, "f16", 320, 64, HALF),
        cute_persistent("fp8", E4M3, "u8", 640, 128, SINGLE),
        cute_axpy(),
        by_pointers("nvcc_mma_gemm", "cuda/mma_gemm.ptx", HALF, HALF, 128, 64, 160, (np.int32(64), np.int32(160)),
                    transposed=True, grid=(1, 2), block=128),
        by_pointers("nvcc_wgmma_gemm", "cuda/wgmma_gemm.ptx", HALF, HALF, 128, 128, 192,
                    (np.int32(128), np.int32(192)), transposed=True, grid=(2, 2), block=128),
        by_pointers("nvcc_sgemm", "cuda/sgemm.ptx", SINGLE, SINGLE, 64, 64, 96, (np.int32(64), np.int32(96)),
                    entry="sgemm", grid=(2, 2), block=(32, 32)),
        nvcc_split_k("s32"),
        nvcc_split_k("f32"),
        nvcc_histogram(),
        nvcc_chain("chain_forward"),
        nvcc_chain("chain_backward"),
        nvcc_numerics("singles", SINGLE, SINGLE, 16, exact=False),
        nvcc_numerics("doubles", np.float64, np.float64, 8, exact=False),
        nvcc_numerics("halves", SINGLE, SINGLE, 10, exact=False),
        nvcc_calls("calls"),
        nvcc_calls("calls_debug"),
    )
}  # fmt: skip


RECORDING = DATA / "hardware" / "kernels" / "h200.json"


if __name__ == "__main__":
    sys.exit(not record(FOREIGN.values(), "gpu", RECORDING))
