"""The kernels as PyTorch functions, on CUDA tensors, without copies.

    from harness.pytorch import grouped_matmul, matmul, scaled_matmul
    c = matmul(a, b)                                # a [M, K], b [N, K] -> a @ b.T, both bfloat16 or float16
    c = matmul(a, b, kernel="kernel6", cluster=(2, 1), out=c)
    c = matmul(a, b, bias=bias, activation="gelu", out_dtype=torch.float32)
    c = matmul(x[:, :K], w.t())                     # views: x [M, more than K], w [K, N]
    c = scaled_matmul(a, b, a_scales, b_scales)     # both float8_e4m3fn, float32 scale factors of blocks
    h, of_h = scaled_matmul(a, b, a_scales, b_scales, out_dtype=torch.float8_e4m3fn)  # on sm_100a "nvfp4"
    c = scaled_matmul(h, w, of_h, w_scales)         # C with its scale factors is A of the next product
    c = grouped_matmul(a, b, group_sizes)           # b [groups, N, K], one for each group of rows of a

Tensors go to MAX by DLPack (shared memory, not copied). The call is asynchronous like any other CUDA call: it runs
after what is queued on PyTorch's current stream, and what is queued there afterwards runs after it. It is registered
as the operator ``blackwell_lab::gemm``, so that torch.compile traces through it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeAlias

import torch
from torch.library import custom_op

from emugpu.errors import UsageProblem
from emugpu.gpus import arch_of_gpu, kind_of
from harness import fp8
from harness.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS, FORMATS
from harness.compile.config import KernelConfig, make_config
from harness.epilogues import EPILOGUES, NONE
from harness.problem import C_TYPES, FP8, OUT_TYPES, Shape
from harness.run.model import compile_artifact, scalar
from harness.run.tuned import configuration_for

DEVICE = "cuda"
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
TORCH_TYPES = {name: getattr(torch, found.numpy.name) for name, found in OUT_TYPES.items()}
OUT_DTYPES = {dtype: name for name, dtype in TORCH_TYPES.items()}
BLOCK_SCALED = tuple(name for name in C_TYPES if name not in OUT_TYPES)
"""Block-scaled types of C, by name, because PyTorch has no types for them with their scale factors."""

Product: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""C; for e4m3 C and its scale factors, float32 [ceil(columns / 128), M], rows padded to 16 bytes; for a block-scaled
format C as bytes and its scale factors in atoms.
"""


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
    kernel: str = "kernel8",
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
    activation: relu, gelu (its tanh form), silu or swiglu. ``options``: of ``harness.compile.config.make_config`` those
    that the arguments do not say (cluster, stages, ...). Without any, the configuration is what ``harness tune`` has
    found for this GPU and problem, if it has; tuned=False: the default.

    Raises ValueError for tensors or options that do not fit, CannotRun if MAX cannot compile or load the kernel. The
    first call of a configuration compiles it, which takes some ten seconds; the result is cached on disk.
    """
    if a.dtype not in DTYPES:
        raise ValueError(f"a is {a.dtype}; it must be bfloat16 or float16")
    if residual is None and (alpha, beta) != (1.0, 1.0):
        raise ValueError(f"alpha {alpha} and beta {beta} are those of a residual; give one, or leave them out")
    _refuse(options)
    grouped = group_sizes is not None
    _check({"a": a, "b": b}, a, a.dtype, strided=not grouped)
    _check({"bias": bias, "residual": residual}, a, a.dtype)
    _check({"group_sizes": group_sizes}, a, torch.int32)
    epilogue = _epilogue(bias, activation, residual)
    m, n, k = _sizes(a, b, 3 if grouped else 2)
    groups = (b.shape[0],) if grouped else ()
    for name, given, shape in (
        ("group_sizes", group_sizes, groups),
        ("bias", bias, (*groups, n)),
        ("residual", residual, (m, n)),
    ):
        _check_shape(name, given, shape)
    columns = n // 2 if epilogue == "swiglu" else n
    c, factors = _output(a, (m, columns), out, out_dtype, a.dtype, c_scale, strided=not grouped)
    if grouped and m == 0:
        return c if factors is None else (c, factors)
    layout, ld = ("nt", ()) if grouped else _views(a, b, c)
    if factors is not None and (grouped or ld):
        raise ValueError(f"out is to be {c.dtype}, which has scale factors: that needs one contiguous a, b and out")
    asked = options | ({"epilogue": epilogue} if epilogue != NONE else {})
    asked |= {"layout": layout} if layout != "nt" else {}
    tuned = tuned and not grouped
    config = _configuration(
        kernel, a.device, DTYPES[a.dtype], (m, n, k, *groups), _asked(asked, c, out_dtype), tuned, ld
    )
    operands = [a, b, *([] if group_sizes is None else [group_sizes])]
    numbers: list[float] = []
    if epilogue != NONE or grouped or ld or factors is not None:  # the op has a place for each operand
        nothing = a[:1, :1]
        operands += [nothing if grouped else nothing[0]] if bias is None else [bias]
        operands += [nothing if residual is None else residual]
        numbers = [alpha, beta, *_if_quantised(factors, c_scale)]
    return _launch(c, factors, operands, numbers, config, [m, n, k, *ld] if ld else [])


def grouped_matmul(a: torch.Tensor, b: torch.Tensor, group_sizes: torch.Tensor, **others: Any) -> Product:
    """`matmul` of each group's rows of a by its own b, in one launch (docs/grouped.md).

    Shapes: a [M, K], b [groups, N, K], group_sizes int32 [groups], on the device: rows of a that each group has, one
    after the other; bias [groups, N]; all others as `matmul` has them, a, b and out contiguous. Nothing waits for the
    sizes: the host looks at their number alone. They must be at least 0 and add up to M; rows of out that they do not
    reach are not written.
    Masked: a [groups, rows, K], and residual and out likewise. Of each group's rows the first, as many as its size
    says, are multiplied and stored; the others of out are left as they are.

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


def _launch(c: torch.Tensor, factors: torch.Tensor | None, *rest: Any) -> Product:
    """Calls the op `_gemm` with these arguments."""
    torch.ops.blackwell_lab.gemm(c, factors, *rest)
    return c if factors is None else (c, factors)


def _views(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Returns the layout of A and B, and the leading dimensions, if not all are contiguous."""
    views = [_view(name, each) for name, each in {"a": a, "b": b, "out": out}.items()]
    layout = ("t" if views[0].transposed else "n") + ("n" if views[1].transposed else "t")
    plain = all(each.is_contiguous() for each in (a, b, out))
    return layout, () if plain else tuple(view.ld for view in views)


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


def _memory(x: torch.Tensor) -> torch.Tensor:
    """Returns the memory from the first element of a view to its last, which MAX takes instead of the view."""
    return x.as_strided((sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1,), (1,))


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
    is returned with its scale factors (`Product`), which the next product reads as a and a_scales. c_scale: as of
    `matmul`, by which the next alpha is divided.

    Raises as `matmul`.
    """
    if dtype != FP8 and dtype not in FORMATS:
        raise ValueError(f"dtype {dtype!r}: it must be one of {', '.join((FP8, *FORMATS))}")
    if (a_scales is None) != (b_scales is None) or (a_scales is None and dtype != FP8):
        raise ValueError(f"{dtype} needs both a_scales and b_scales{', or neither' if dtype == FP8 else ''}")
    _refuse(options)
    _check({"a": a, "b": b}, a, torch.float8_e4m3fn if dtype == FP8 else torch.uint8)
    _check({"a_scales": a_scales, "b_scales": b_scales}, a, torch.float32 if dtype == FP8 else torch.uint8)
    m, n, stored = _sizes(a, b)
    k = stored if dtype == FP8 else stored * 8 // FORMATS[dtype].bits
    for name, given, rows in (("a_scales", a_scales, m), ("b_scales", b_scales, n)):
        _check_shape(name, given, _scale_shape(dtype, name, rows, k))
    c, factors = _output(a, (m, n), out, out_dtype, torch.bfloat16, c_scale)
    asked = {"dtype": dtype, **options}
    if dtype == FP8:
        asked["scales"] = "tensor" if a_scales is None else "block"
    kernel = "kernel8" if dtype == FP8 else "kernel9"
    config = _configuration(kernel, a.device, dtype, (m, n, k), _asked(asked, c, out_dtype), False)
    none = torch.empty((1, 1), dtype=torch.float32, device=a.device) if a_scales is None else None
    operands = [a.view(torch.uint8), b.view(torch.uint8), *(none if x is None else x for x in (a_scales, b_scales))]
    return _launch(c, factors, operands, [alpha, *_if_quantised(factors, c_scale)], config, [])


def _refuse(options: dict[str, Any]) -> None:
    for name in ("arch", "dtype", "scales", "out_dtype", "epilogue", "layout"):
        if name in options:
            raise ValueError(f"{name} is no option here: the tensors and the other arguments say it; leave it out")


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
    asked: torch.dtype | str | None,
    usual: torch.dtype,
    c_scale: float,
    strided: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns C, and its scale factors if it has any."""
    if c_scale != 1 and asked != "nvfp4":
        raise ValueError(f"c_scale {c_scale} is that of nvfp4; leave it out")
    dtype = asked or (usual if out is None else out.dtype)
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
    if out is None:
        out = torch.empty(in_memory, dtype=stored, device=a.device)
    _check_shape("out", out, in_memory)
    _check({"out": out}, a, stored, strided=strided)
    if isinstance(dtype, str):
        return out, torch.empty(_scale_shape(dtype, "c", *shape), dtype=torch.uint8, device=a.device)
    if OUT_DTYPES[dtype] != FP8:
        return out, None
    return out, torch.empty(fp8.shape_in_memory("A", *shape), dtype=torch.float32, device=a.device)


def _if_quantised(factors: torch.Tensor | None, c_scale: float) -> list[float]:
    """Returns the number that only ops with quantised C take."""
    return [] if factors is None else [c_scale]


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


def _asked(options: dict[str, Any], out: torch.Tensor, named: torch.dtype | str | None) -> tuple[tuple[str, Any], ...]:
    """Returns all requested options of the configuration, as a key."""
    return tuple(sorted({**options, "out_dtype": named if isinstance(named, str) else OUT_DTYPES[out.dtype]}.items()))


@torch.compiler.assume_constant_result
def _configuration(
    kernel: str,
    device: torch.device,
    dtype: str,
    problem: tuple[int, ...],
    options: tuple[tuple[str, Any], ...],
    tuned: bool,
    ld: tuple[int, ...] = (),
) -> str:
    """Returns the configuration as text: a constant for torch.compile, which cannot trace how it is made.

    ``problem`` is M, N, K, and the number of groups if there are some, which are assumed to have equal sizes.
    """
    arch = arch_of_gpu(*torch.cuda.get_device_capability(device))
    asked = {"dtype": dtype, **dict(options)}
    try:
        m, n, k, *groups = problem
        sizes = tuple(m // count + (at < m % count) for count in groups for at in range(count))
        shape = Shape(m, n, k, sizes, ld)
        if tuned and asked.keys() <= {"dtype", "out_dtype"} and asked.get("out_dtype", dtype) == dtype:
            found = _tuned(kernel, arch, dtype, shape, kind_of(torch.cuda.get_device_name(device)))
            if found is not None:
                return found
        return make_config(kernel, arch=arch, shape=shape, **asked).to_json()
    except UsageProblem as error:
        raise ValueError(str(error)) from None


@functools.lru_cache(maxsize=4096)
def _tuned(kernel: str, arch: str, dtype: str, shape: Shape, gpu: str) -> str | None:
    """Returns the tuned configuration as text; it is looked up once per process."""
    found = configuration_for(gpu, kernel, arch, dtype, shape)
    return found.to_json() if found else None


@custom_op(
    "blackwell_lab::gemm", mutates_args=("out", "factors"), device_types="cuda", tags=(torch.Tag.needs_exact_strides,)
)
def _gemm(
    out: torch.Tensor,
    factors: torch.Tensor | None,
    operands: Sequence[torch.Tensor],
    numbers: Sequence[float],
    config: str,
    sizes: Sequence[int],
) -> None:
    """Computes the product. ``factors`` belong to a quantised C. ``sizes`` are M, N, K and the leading dimensions of
    views, or empty if all are contiguous.
    """
    from max.driver import Buffer

    _check_places(out, operands, fused=len(numbers) - (factors is not None) == 2)
    model, device = _model(config, out.device.index or 0, bool(sizes))
    queue = torch.cuda.ExternalStream(device.default_queue.native_stream_handle, device=out.device)
    current = torch.cuda.current_stream(out.device)
    queue.wait_stream(current)
    scalars = [Buffer.from_numpy(scalar(number)) for number in (*sizes, *numbers)]
    tensors = [tensor.detach() for tensor in (out, *operands)]
    if sizes:
        tensors[:3] = map(_memory, tensors[:3])
    if factors is not None:
        tensors[:1] = [tensors[0].view(torch.uint8), factors]
    model.execute(*map(Buffer.from_dlpack, tensors), *scalars)
    current.wait_stream(queue)


def _check_places(out: torch.Tensor, operands: Sequence[torch.Tensor], *, fused: bool) -> None:
    """Checks the addresses when the operator runs, because a trace of torch.compile has none. TMA starts at multiples
    of 16 bytes.
    """
    more = (("bias", 4), ("residual", 4)) if fused else (("a_scales", 16), ("b_scales", 16))
    groups = (("group_sizes", 4),) if len(operands) == 5 else ()
    places = (("out", 16), ("a", 16), ("b", 16), *groups, *more)
    for (name, multiple), tensor in zip(places, (out, *operands), strict=False):
        if tensor.data_ptr() % multiple:
            rule = f"it must be a multiple of {multiple} bytes: copy it"
            raise ValueError(f"{name} begins at the address {tensor.data_ptr():#x}; {rule}")


@_gemm.register_fake
def _(
    out: torch.Tensor,
    factors: torch.Tensor | None,
    operands: Sequence[torch.Tensor],
    numbers: Sequence[float],
    config: str,
    sizes: Sequence[int],
) -> None:
    return None


@functools.cache
def _model(config: str, index: int, views: bool) -> tuple[Any, Any]:
    artifact, _ = compile_artifact(KernelConfig.from_json(config), views=views)
    session, device = _session(index)
    return session.load(artifact), device


@functools.cache
def _session(index: int) -> tuple[Any, Any]:
    from max.driver import Accelerator
    from max.engine import InferenceSession

    device = Accelerator(index)
    return InferenceSession(devices=[device]), device
