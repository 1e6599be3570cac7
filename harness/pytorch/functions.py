"""The PyTorch functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.launch.configure import AUTO
from harness.problem import FP8
from harness.pytorch import checks
from harness.pytorch.calls import Product, prepare
from harness.pytorch.checks import Asked, as_key, check
from harness.pytorch.differentiable import product


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    group_sizes: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: torch.dtype | str | None = None,
    c_scale: float = 1.0,
    out: torch.Tensor | None = None,
    kernel: str = AUTO,
    tuned: bool = True,
    **options: Any,
) -> Product:
    """C = A . B^T on the GPU that holds the tensors, or what a fused epilogue makes of it (docs/epilogues.md):
    activation(A . B^T + bias); with `residual` alpha * A . B^T + beta * residual.

    Shapes: a [M, K], b [N, K], bias [N], residual [M, N], out [M, N], with `swiglu` [M, N / 2]; on one CUDA device, of
    one dtype, bfloat16 or float16, but for out, whose dtype may also be float32 or, on sm_90a, float8_e4m3fn: then C is
    returned with its scale factors (`Product`). On sm_100a out_dtype may be the name of a block-scaled format, nvfp4,
    mxfp8 or mxfp4, C of nvfp4 multiplied by c_scale before it is quantised (docs/epilogues.md, Quantised). N is a
    multiple of 8, and K if a and b are contiguous. a and b may be views, transposed or slices of others, and out a
    slice, as long as rows of memory begin at multiples of 16 bytes (docs/tile.md, Layouts); bias and residual are
    contiguous. group_sizes: `grouped_matmul`.
    activation: relu, gelu (its tanh form), silu or swiglu. ``kernel``: auto is kernel8, or rows for up to 8 rows of a
    (docs/split-k.md), unless layout, groups, a quantised C or options ask for kernel8. ``options`` are those of
    ``harness.compile.config.make_config`` that no argument here gives (cluster, stages, ...). Without any, a call uses
    the configuration that ``harness tune`` found for this GPU and problem, or the default if it found none or
    tuned=False.

    The gradients of a, b, bias and residual are products by the same kernels. A product with groups, scale factors or a
    quantised C has no gradient: its backward raises NotImplementedError.

    Raises ValueError for tensors or options that do not fit, CannotRun if the kernel cannot be compiled or loaded. The
    first call of a configuration compiles it, says so on standard error and takes some ten seconds; the result is kept
    on disk. `warm` does this beforehand.
    """
    if residual is None and (alpha != 1.0 or beta != 1.0):
        raise ValueError(f"alpha {alpha} and beta {beta} apply only with a residual: give one, or leave them out")
    if c_scale != 1.0:
        _check_c_scale(c_scale, out_dtype)
    asked = ("", activation, out_dtype, kernel, tuned, as_key(options) if options else ())
    return product(asked, (a, b, bias, residual, group_sizes, out), (alpha, beta, c_scale))


def grouped_matmul(a: torch.Tensor, b: torch.Tensor, group_sizes: torch.Tensor, **others: Any) -> Product:
    """`matmul` of each group's rows of a by its own b, in one launch (docs/grouped.md).

    Shapes: a [M, K], b [groups, N, K], group_sizes int32 [groups], on the device: rows of a that each group has, one
    after the other; bias [groups, N]; all others as `matmul` has them, a, b and out contiguous. Nothing waits for the
    sizes: the host looks at their number alone. They must be at least 0 and add up to M; rows of out that they do not
    reach are not written.
    Masked: a is [groups, rows, K], and residual and out likewise. The kernel multiplies and stores the first rows of
    each group, as many as its size says, and leaves the other rows of out as they are.

    Raises as `matmul`.
    """
    if a.dim() != 3:
        return matmul(a, b, group_sizes=group_sizes, **others)
    flat = {}
    for name, each in {"a": a, **{name: others.get(name) for name in ("residual", "out")}}.items():
        if each is None:
            continue
        if each.dim() != 3 or each.shape[:2] != (len(b), a.shape[1]) or not each.is_contiguous():
            rule = f"it must be [{len(b)}, {a.shape[1]}, columns], contiguous, for {len(b)} masked groups"
            raise ValueError(f"{name} is {tuple(each.shape)} with strides {tuple(each.stride())}; {rule}")
        flat[name] = each.view(-1, each.shape[2])
    c = matmul(b=b, group_sizes=group_sizes, masked=True, **{**others, **flat})
    assert isinstance(c, torch.Tensor), "e4m3 has been refused"
    return c.view(*a.shape[:2], c.shape[1])


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    dtype: str = FP8,
    out_dtype: torch.dtype | str | None = None,
    c_scale: float = 1.0,
    out: torch.Tensor | None = None,
    **options: Any,
) -> Product:
    """C = alpha * A . B^T of matrices with scale factors, on the GPU that holds the tensors (docs/block-scaling.md).

    e4m3, on sm_90a: a [M, K] and b [N, K] float8_e4m3fn; no scale factors but alpha, or float32 ones, a_scales
    [ceil(K / 128), M] and b_scales [ceil(N / 128), ceil(K / 128)], rows padded to 16 bytes.
    nvfp4, mxfp8, mxfp8-e5m2, mxfp4, on sm_100a: a [M, K] and b [N, K] uint8, of 4 bits [M, K / 2] and [N, K / 2];
    scale factors uint8 in atoms, as `harness.block_scaling.to_atoms` has them. Contiguous, on one CUDA device. out:
    bfloat16, float16 or float32 [M, N]; on sm_90a float8_e4m3fn, too, on sm_100a by name nvfp4, mxfp8 or mxfp4: then C
    is returned with its scale factors (`Product`), which the next product reads as a and a_scales. c_scale: as
    `matmul` has it; divide the next product's alpha by it.

    Raises as `matmul`.
    """
    if c_scale != 1.0:
        _check_c_scale(c_scale, out_dtype)
    kernel = AUTO if dtype == FP8 else "kernel9"
    asked = (dtype, None, out_dtype, kernel, False, as_key(options) if options else ())
    return product(asked, (a, b, a_scales, b_scales, None, out), (alpha, 0.0, c_scale))


def _check_c_scale(c_scale: float, out_dtype: torch.dtype | str | None) -> None:
    if out_dtype != "nvfp4":
        raise ValueError(f"c_scale {c_scale} applies only with out_dtype='nvfp4': leave it out")


def warm(
    shapes: Iterable[tuple[int, int, int]],
    *,
    dtype: torch.dtype = torch.bfloat16,
    bias: bool = False,
    activation: str | None = None,
    out_dtype: torch.dtype | str | None = None,
    device: torch.device | int | None = None,
    kernel: str = AUTO,
    tuned: bool = True,
    **options: Any,
) -> None:
    """Compiles and loads what `matmul` needs for contiguous tensors of these M, N, K, all together, so that no first
    call has to. The result is kept on disk, for other processes too. The device is PyTorch's current one, unless given.

    Raises as `matmul`.
    """
    index = None if device is None else torch.device(device).index
    where = torch.device(checks.DEVICE, torch.cuda.current_device() if index is None else index)
    asked = Asked("", activation, out_dtype, kernel, tuned, as_key(options))
    problems = []
    with FakeTensorMode():  # shapes and types, without memory
        for m, n, k in shapes:
            a, b = (torch.empty((rows, k), dtype=dtype, device=where) for rows in (m, n))
            given = torch.empty(n, dtype=dtype, device=where) if bias else None
            problems.append(check(asked, (a, b, given, None, None, None)))
    prepare(asked, problems, where)
