"""Checks what the PyTorch functions are given, and finds the problem in it. It looks at shapes, strides and types only,
so torch.compile can trace it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import torch

from harness import fp8
from harness.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS, FORMATS
from harness.epilogues import EPILOGUES, NONE
from harness.problem import C_TYPES, FP8, OUT_TYPES

DEVICE = "cuda"
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
TORCH_TYPES = {name: getattr(torch, found.numpy.name) for name, found in OUT_TYPES.items()}
OUT_DTYPES = {dtype: name for name, dtype in TORCH_TYPES.items()}
BLOCK_SCALED = tuple(name for name in C_TYPES if name not in OUT_TYPES)
"""Block-scaled types of C, by name, because PyTorch has no types for them with their scale factors."""
NOT_OPTIONS = ("arch", "dtype", "scales", "out_dtype", "epilogue", "layout")

Tensors: TypeAlias = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None
]
"""a, b, first, second, group_sizes and out. ``first`` and ``second`` are bias and residual, or a_scales and b_scales if
`Asked.dtype` is given. Every call makes such a tuple; a NamedTuple would take seven times as long.
"""
Numbers: TypeAlias = tuple[float, float, float]
"""alpha, beta and c_scale."""
Stored: TypeAlias = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a tensor in memory."""


class Asked(NamedTuple):
    """What a call asks for beside its tensors and numbers. ``dtype`` names the format of A and B with scale factors,
    and is empty for 16-bit ones.
    """

    dtype: str
    activation: str | None
    out_dtype: torch.dtype | str | None
    kernel: str
    tuned: bool
    options: tuple[tuple[str, Any], ...]


def as_key(options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Returns options as a part of a dictionary's key."""
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(options.items()))


@dataclass(frozen=True)
class Problem:
    """The problem of a call. ``options`` are those of `harness.compile.config.make_config`, ``factors`` the scale
    factors of C.
    """

    sizes: tuple[int, int, int]
    groups: int
    ld: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]
    c: Stored
    factors: Stored | None


def check(asked: Asked, tensors: Tensors) -> Problem:
    """Returns the problem. Raises ValueError for tensors that do not fit."""
    for name, _ in asked.options:
        if name in NOT_OPTIONS:
            raise ValueError(f"{name} is no option here: the tensors and the other arguments say it; leave it out")
    if asked.dtype:
        return _check_scaled(asked, tensors)
    a, b, bias, residual, group_sizes, out = tensors
    if a.dtype not in DTYPES:
        raise ValueError(f"a is {a.dtype}; it must be bfloat16 or float16")
    grouped = group_sizes is not None
    _check({"a": a, "b": b}, a, a.dtype, strided=not grouped)
    _check({"bias": bias, "residual": residual}, a, a.dtype)
    _check({"group_sizes": group_sizes}, a, torch.int32)
    epilogue = _epilogue(bias, asked.activation, residual)
    m, n, k = _sizes(a, b, 3 if grouped else 2)
    groups = (b.shape[0],) if grouped else ()
    for name, given, shape in (
        ("group_sizes", group_sizes, groups),
        ("bias", bias, (*groups, n)),
        ("residual", residual, (m, n)),
    ):
        _check_shape(name, given, shape)
    columns = n // 2 if epilogue == "swiglu" else n
    c, c_name, factors = _output(a, (m, columns), out, asked, a.dtype, not grouped)
    layout, ld = ("nt", ()) if grouped else _views(a, b, out, columns)
    if factors is not None and (grouped or ld):
        raise ValueError(f"out is to be {c[1]}, which has scale factors: that needs one contiguous a, b and out")
    options = {**dict(asked.options), "dtype": DTYPES[a.dtype], "out_dtype": c_name}
    options |= {"epilogue": epilogue} if epilogue != NONE else {}
    options |= {"layout": layout} if layout != "nt" else {}
    return Problem((m, n, k), groups[0] if groups else 0, ld, tuple(options.items()), c, factors)


def _check_scaled(asked: Asked, tensors: Tensors) -> Problem:
    dtype = asked.dtype
    a, b, a_scales, b_scales, _, out = tensors
    if dtype != FP8 and dtype not in FORMATS:
        raise ValueError(f"dtype {dtype!r}: it must be one of {', '.join((FP8, *FORMATS))}")
    if (a_scales is None) != (b_scales is None) or (a_scales is None and dtype != FP8):
        raise ValueError(f"{dtype} needs both a_scales and b_scales{', or neither' if dtype == FP8 else ''}")
    _check({"a": a, "b": b}, a, torch.float8_e4m3fn if dtype == FP8 else torch.uint8)
    _check({"a_scales": a_scales, "b_scales": b_scales}, a, torch.float32 if dtype == FP8 else torch.uint8)
    m, n, stored = _sizes(a, b)
    k = stored if dtype == FP8 else stored * 8 // FORMATS[dtype].bits
    for name, given, rows in (("a_scales", a_scales, m), ("b_scales", b_scales, n)):
        _check_shape(name, given, _scale_shape(dtype, name, rows, k))
    c, c_name, factors = _output(a, (m, n), out, asked, torch.bfloat16, False)
    options = {**dict(asked.options), "dtype": dtype, "out_dtype": c_name}
    if dtype == FP8:
        options["scales"] = "tensor" if a_scales is None else "block"
    return Problem((m, n, k), 0, (), tuple(options.items()), c, factors)


def _views(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, columns: int) -> tuple[str, tuple[int, ...]]:
    """Returns the layout of A and B, and their leading dimensions unless all are contiguous. ``columns`` is of C."""
    of_a, of_b = _view("a", a), _view("b", b)
    layout = ("t" if of_a.transposed else "n") + ("n" if of_b.transposed else "t")
    ld_of_c = columns if out is None else _view("out", out).ld
    plain = layout == "nt" and a.is_contiguous() and b.is_contiguous() and (out is None or out.is_contiguous())
    return layout, () if plain else (of_a.ld, of_b.ld, ld_of_c)


@dataclass(frozen=True)
class _View:
    """The layout of a matrix in memory: whether its columns are contiguous instead of its rows, and the distance of
    these.
    """

    transposed: bool
    ld: int


def _view(name: str, x: torch.Tensor) -> _View:
    """Returns the layout. Raises ValueError if TMA cannot address it, and for an output with contiguous columns."""
    strides = tuple(x.stride())
    transposed = strides[1] != 1
    if strides[transposed ^ 1] != 1 or (transposed and name == "out"):
        rule = "one of them must be 1" if name != "out" else "the last must be 1, as C is stored by rows"
        raise ValueError(f"{name} has strides {strides}: {rule}; call {name}.contiguous() first")
    length, ld = x.shape[transposed ^ 1], strides[int(transposed)]
    ld = length if x.shape[int(transposed)] == 1 else ld
    if ld < length or ld * x.element_size() % 16:
        rule = f"rows of memory must be {length} elements or more apart, by a multiple of 16 bytes"
        raise ValueError(f"{name} has strides {strides}: {rule}; call {name}.contiguous() first")
    return _View(transposed, ld)


def _epilogue(bias: Any, activation: str | None, residual: Any) -> str:
    words = [word for word, there in (("bias", bias is not None), ("residual", residual is not None)) if there]
    name = "-".join([*words, *([activation] if activation else [])]) or NONE
    if name not in EPILOGUES:
        raise ValueError(f"there is no fused epilogue {name}; there are: {', '.join(EPILOGUES)}")
    return name


def _sizes(a: torch.Tensor, b: torch.Tensor, b_dimensions: int = 2) -> tuple[int, int, int]:
    for name, tensor, dimensions in (("a", a, 2), ("b", b, b_dimensions)):
        if tensor.dim() != dimensions:
            must = "a matrix" if dimensions == 2 else "[groups, N, K]"
            raise ValueError(f"{name} has {tensor.dim()} dimensions; it must be {must}")
    if a.shape[1] != b.shape[-1]:
        raise ValueError(f"a {tuple(a.shape)} and b {tuple(b.shape)} differ in K, their last dimension (b is [N, K])")
    return a.shape[0], b.shape[-2], a.shape[1]


def _output(
    a: torch.Tensor,
    shape: tuple[int, int],
    out: torch.Tensor | None,
    asked: Asked,
    default: torch.dtype,
    strided: bool,
) -> tuple[Stored, str, Stored | None]:
    """Returns C, the name of its type, and its scale factors if it has any."""
    dtype = asked.out_dtype or (default if out is None else out.dtype)
    stored, in_memory = dtype, shape
    if dtype in BLOCK_SCALED:
        bits = C_TYPES[str(dtype)].bits
        multiple = max(16 * 8 // bits, FORMATS[str(dtype)].block)
        if shape[1] % multiple:
            raise ValueError(f"out has {shape[1]} columns; of {dtype} they must be a multiple of {multiple}")
        stored, in_memory = torch.uint8, (shape[0], shape[1] * bits // 8)
    elif dtype not in OUT_DTYPES:
        names = (*(found.numpy.name for found in OUT_TYPES.values()), *BLOCK_SCALED)
        raise ValueError(f"out is to be {dtype}; it must be {', '.join(names)}")
    assert isinstance(stored, torch.dtype)
    _check_shape("out", out, in_memory)
    _check({"out": out}, a, stored, strided=strided)
    if isinstance(dtype, str):
        return (in_memory, stored), dtype, (_scale_shape(dtype, "c", *shape), torch.uint8)
    name = OUT_DTYPES[dtype]
    factors = (fp8.shape_in_memory("A", *shape), torch.float32) if name == FP8 else None
    return (in_memory, stored), name, factors


def _scale_shape(dtype: str, name: str, rows: int, k: int) -> tuple[int, ...]:
    if dtype == FP8:
        return fp8.shape_in_memory(name[0].upper(), rows, k)
    return ceil(rows / ATOM_ROWS), ceil(k / (FORMATS[dtype].block * ATOM_BLOCKS)), ATOM_BYTES


def _check_shape(name: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}; it must be {shape}")


def _check(named: dict[str, torch.Tensor | None], a: torch.Tensor, dtype: torch.dtype, strided: bool = False) -> None:
    for name, tensor in named.items():
        if tensor is None:
            continue
        if tensor.device.type != DEVICE:
            raise ValueError(f"{name} is on {tensor.device}; the kernels need CUDA tensors")
        if tensor.device != a.device:
            raise ValueError(f"{name} is on {tensor.device} and a on {a.device}; move them to one device")
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype}; it must be {dtype}")
        if not strided and not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tuple(tensor.stride())}; call {name}.contiguous() first")
