"""The ops of the board: inputs, the graph, and what NumPy says that it computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROWS = (1, 7, 129, 777)
"""Of one run: the M of a model's step, most of them ragged."""
FEW = (1, 7, 65)
"""Of ops that have more to do in each row."""


@dataclass(frozen=True)
class Input:
    """shape: -1 stands for the rows, which the graph does not know. below: whole numbers from 0 to one less; 0: normal
    values.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0

    def values(self, rows: int, dice: np.random.Generator) -> Array:
        """Returns what is drawn, as the type holds it."""
        shape = tuple(rows if size < 0 else size for size in self.shape)
        drawn = dice.integers(0, self.below, shape) if self.below else dice.normal(size=shape)
        return drawn.astype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)


@dataclass(frozen=True)
class Op:
    """build: the graph's output, of `max.graph.ops` and the inputs. wanted: the same of arrays, floats in float64.
    within: the difference that is allowed, as a part of 1 + the value. known: verdicts on GPUs that docs/found.md
    explains.
    """

    inputs: tuple[Input, ...]
    build: Callable[..., Any]
    wanted: Callable[..., Array]
    within: float = 1e-5
    rows: tuple[int, ...] = ROWS
    known: tuple[str, ...] = ()


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _normed(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _windows(x: Array, size: int = 2) -> Array:
    """The windows of an NHWC image: [N, H', W', C, size, size]."""
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))


def _conv(x: Array, f: Array) -> Array:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.einsum("nhwcrs,rscf->nhwf", _windows(padded, 3), f)


def _attention(q: Array, k: Array, v: Array) -> Array:
    """Of [batch, sequence, heads, depth], without a mask."""
    weights = _softmax(np.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[-1]))
    return np.einsum("bhst,bthd->bshd", weights, v)


def _attention_ops(ops: Any, q: Any, k: Any, v: Any) -> Any:
    """The same of single ops."""
    q, k, v = (ops.permute(x, [0, 2, 1, 3]) for x in (q, k, v))
    weights = ops.softmax(ops.matmul(q, ops.transpose(k, 2, 3)) * (1 / math.sqrt(32)))
    return ops.permute(ops.matmul(weights, v), [0, 2, 1, 3])


def _flash(ops: Any, q: Any, k: Any, v: Any) -> Any:
    from max.nn.attention import MHAMaskVariant
    from max.nn.kernels import flash_attention_gpu

    return flash_attention_gpu(q, k, v, MHAMaskVariant.NULL_MASK, 1 / math.sqrt(q.shape[-1].dim))


def _rope(x: Array, c: Array, s: Array) -> Array:
    left, right = np.split(x, 2, -1)
    return np.concatenate([left * c - right * s, right * c + left * s], -1)


def _rope_ops(ops: Any, x: Any, c: Any, s: Any) -> Any:
    left, right = ops.split(x, [32, 32], -1)
    return ops.concat([left * c - right * s, right * c + left * s], -1)


def _scattered(x: Array, updates: Array, places: Array) -> Array:
    out = x.copy()
    np.add.at(out, places[:, 0], updates)
    return out


def _product(dtype: str, within: float, columns: int = 136, known: tuple[str, ...] = ()) -> Op:
    a, b = Input((-1, 264), dtype), Input((columns, 264), dtype)
    build = lambda ops, x, y: ops.matmul(x, ops.transpose(y, 0, 1))  # noqa: E731
    return Op((a, b), build, lambda x, y: x @ y.T, within, known=known)


def _plain(build: Callable[..., Any], wanted: Callable[..., Array], within: float = 1e-5, dtype: str = "float32") -> Op:
    """An op of rows of 200."""
    return Op((Input((-1, 200), dtype),), build, wanted, within)


_erf = np.vectorize(math.erf)
BF16, F16, TF32 = 2.0**-6, 2.0**-9, 2.0**-5
"""Two roundings to the type, and sums in f32; of TF32 the operands have 10 bits, and their sums are of hundreds."""
_BATCHES = (Input((3, -1, 40), "bfloat16"), Input((3, 40, 72), "bfloat16"))
_HEADS = (Input((1, -1, 2, 64), "bfloat16"),) * 3
_IMAGE, _FILTER = Input((1, -1, 9, 16)), Input((3, 3, 16, 24))
_CUBLAS = ("h100 incomplete", "h200 incomplete")
_CHOSEN = Input((-1, 1), "int64", below=50)

OPS: dict[str, Op] = {
    "matmul bf16": _product("bfloat16", BF16),
    "matmul f16": _product("float16", F16, known=(*_CUBLAS, "b200 incomplete")),
    "matmul f32": _product("float32", TF32, known=_CUBLAS),
    "matmul of one column, bf16": _product("bfloat16", BF16, columns=1),
    "matmul, bias, gelu, bf16": Op(
        (Input((-1, 64), "bfloat16"), Input((64, 128), "bfloat16"), Input((128,), "bfloat16")),
        lambda ops, x, y, b: ops.gelu(ops.matmul(x, y) + b, "tanh"),
        lambda x, y, b: (z := x @ y + b) * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
        4 * BF16,
    ),
    "batched matmul bf16": Op(_BATCHES, lambda ops, x, y: ops.matmul(x, y), np.matmul, BF16, FEW),
    "softmax": _plain(lambda ops, x: ops.softmax(x), _softmax),
    "softmax bf16": _plain(lambda ops, x: ops.softmax(x), _softmax, BF16, "bfloat16"),
    "logsoftmax": _plain(lambda ops, x: ops.logsoftmax(x), lambda x: np.log(_softmax(x))),
    "layer norm": Op(
        (Input((-1, 200)), Input((200,)), Input((200,))),
        lambda ops, x, g, b: ops.layer_norm(x, g, b, 1e-5),
        lambda x, g, b: _normed(x) * g + b,
    ),
    "rms norm": Op(
        (Input((-1, 200)), Input((200,))),
        lambda ops, x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
    ),
    "group norm": Op(
        (Input((-1, 8, 50)), Input((8,)), Input((8,))),
        lambda ops, x, g, b: ops.group_norm(x, g, b, 2, 1e-5),
        lambda x, g, b: _normed(x.reshape(-1, 2, 200)).reshape(x.shape) * g[:, None] + b[:, None],
        rows=FEW,
    ),
    "attention of single ops": Op((Input((1, -1, 2, 32)),) * 3, _attention_ops, _attention, 2.0**-8, FEW),
    "flash attention bf16": Op(_HEADS, _flash, _attention, BF16, FEW, ("b200 wrong",)),
    "rope": Op((Input((-1, 4, 64)), Input((32,)), Input((32,))), _rope_ops, _rope),
    "conv2d": Op((_IMAGE, _FILTER), lambda ops, x, f: ops.conv2d(x, f, padding=(1,) * 4), _conv, 2.0**-8, (1, 7, 17)),
    "max pool": Op(
        (_IMAGE,), lambda ops, x: ops.max_pool2d(x, (2, 2)), lambda x: _windows(x).max((-1, -2)), 0, (2, 7, 65)
    ),
    "average pool": Op(
        (_IMAGE,), lambda ops, x: ops.avg_pool2d(x, (2, 2)), lambda x: _windows(x).mean((-1, -2)), rows=(2, 7, 65)
    ),
    "gather": Op(
        (Input((50, 96)), Input((-1,), "int64", below=50)), lambda ops, x, i: ops.gather(x, i, 0), lambda x, i: x[i], 0
    ),
    "gather nd": Op(
        (Input((50, 96)), _CHOSEN), lambda ops, x, i: ops.gather_nd(x, i), lambda x, i: x[i[:, 0]], 0
    ),
    "scatter nd add": Op(
        (Input((50, 40)), Input((-1, 40)), _CHOSEN), lambda ops, x, u, i: ops.scatter_nd_add(x, u, i), _scattered,
    ),
    "top-k values": _plain(lambda ops, x: ops.top_k(x, 5)[0], lambda x: -np.sort(-x, -1)[:, :5], 0),
    "top-k places": _plain(lambda ops, x: ops.top_k(x, 5)[1], lambda x: np.argsort(-x, -1, kind="stable")[:, :5], 0),
    "argmax": _plain(lambda ops, x: ops.argmax(x), lambda x: x.argmax(-1)[:, None], 0),
    "argsort": Op((Input((-1,)),), lambda ops, x: ops.argsort(x), np.argsort, 0),
    "sum": _plain(lambda ops, x: ops.sum(x), lambda x: x.sum(-1, keepdims=True)),
    "sum of columns": _plain(lambda ops, x: ops.sum(x, axis=0), lambda x: x.sum(0, keepdims=True)),
    "mean bf16": _plain(lambda ops, x: ops.mean(x), lambda x: x.mean(-1, keepdims=True), BF16, "bfloat16"),
    "product": Op((Input((-1, 20)),), lambda ops, x: ops.prod(x), lambda x: x.prod(-1, keepdims=True)),
    "maximum": _plain(lambda ops, x: ops.max(x, axis=-1), lambda x: x.max(-1, keepdims=True), 0),
    "cumulative sum": _plain(lambda ops, x: ops.cumsum(x), lambda x: x.cumsum(-1)),
    "transpose": _plain(lambda ops, x: ops.transpose(x, 0, 1), lambda x: x.T, 0),
    "concat": _plain(lambda ops, x: ops.concat([x, x], -1), lambda x: np.concatenate([x, x], -1), 0),
    "pad": _plain(lambda ops, x: ops.pad(x, [0, 0, 3, 2]), lambda x: np.pad(x, ((0, 0), (3, 2))), 0),
    "gelu": _plain(lambda ops, x: ops.gelu(x), lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2),
    "silu bf16": _plain(lambda ops, x: ops.silu(x), lambda x: x / (1 + np.exp(-x)), BF16, "bfloat16"),
    "where": _plain(lambda ops, x: ops.where(ops.greater(x, 0), x, -x), np.abs, 0),
    "cast to bf16": _plain(lambda ops, x: x.cast(_bf16()), lambda x: x.astype(ml_dtypes.bfloat16), 2.0**-8),
}  # fmt: skip


def _bf16() -> Any:
    from max.dtype import DType

    return DType.bfloat16
