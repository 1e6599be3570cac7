"""The same problem by the vendor's library: by PyTorch, which asks cuBLAS, and by the best of cuBLASLt's algorithms.

Both include a fused epilogue if cuBLASLt has it; otherwise they compute the product alone, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emugpu.errors import CannotRun
from harness import fp8
from harness.block_scaling import FORMATS
from harness.compile.config import KernelConfig
from harness.epilogues import NONE
from harness.problem import ELEMENT_TYPES, FP8
from harness.run import cublaslt
from harness.run.gpu_timing import Launch
from harness.run.operands import Operands

MOST_DIFFERENCE = 0.02
"""Of two results of the same product, as a part of their norm."""


def why_none(config: KernelConfig) -> str:
    """Returns why the vendor's library cannot be timed on such a problem, or nothing."""
    if config.grouped:
        return "it multiplies one A and one B"
    if config.dtype in FORMATS:
        return f"{config.dtype} is not timed through PyTorch"
    if config.dtype in ELEMENT_TYPES and config.out_dtype != config.dtype:
        return f"its C is {config.dtype}, not {config.out_dtype}"
    return ""


def launches_of(
    name: str, sets: Sequence[Operands], note: Callable[[str], None], alive: Callable[[], None]
) -> list[Launch]:
    """Returns a launch for each set, or none with a note if the library refuses the problem. Calls ``alive`` now and
    then, because a search among algorithms takes a while.

    It writes C of its own, because the kernel's C must hold its result after the timing.
    """
    import torch

    config, shape = sets[0].config, sets[0].shape
    try:
        sets = [one.with_c(one.c.new_empty((shape.m, shape.n))) for one in sets]
        launches = [by_pytorch(one) for one in sets]
        launches[0]()
        torch.cuda.synchronize()
        if name != "cublas":
            by_cublas = sets[0].c.clone()
            launches, tried = cublaslt.best_launches([_as_product(one) for one in sets], alive)
            sets[0].c.fill_(float("nan"))
            launches[0]()
            _compare(sets[0].c, by_cublas)
            note(f"{name}: the fastest of {tried} algorithms")
    except (CannotRun, RuntimeError, ValueError) as error:  # the latter two are PyTorch's
        note(f"{name} not timed: {' '.join(str(error).split())[:300]}")
        return []
    if config.epilogue not in cublaslt.EPILOGUES:
        note(f"{name} is the product alone, without {config.epilogue}")
    return launches


def _compare(c: Any, expected: Any) -> None:
    """Raises CannotRun if a result differs from cuBLAS's by more than another order of sums and rounding explain: then
    the wrong problem was timed.
    """
    import torch

    off, size = (torch.linalg.vector_norm(x, dtype=torch.float32) for x in (c - expected, expected))
    if not off <= MOST_DIFFERENCE * size:
        raise CannotRun(f"its C differs from cuBLAS's by {float(off / size):.2g} of it")


def by_pytorch(given: Operands) -> Launch:
    """Returns PyTorch's launch of a problem. Everything that can be prepared is done before."""
    import torch

    config, tensors, numbers, c = given.config, given.tensors, given.numbers, given.c
    if config.dtype == FP8:
        return _scaled_mm(given)
    a, b = given.a, given.b.t()
    if config.epilogue == "bias":
        return lambda: torch.addmm(tensors["bias"], a, b, out=c)
    if config.epilogue in ("bias-gelu", "bias-relu"):
        use_gelu = config.epilogue == "bias-gelu"
        return lambda: torch._addmm_activation(tensors["bias"], a, b, use_gelu=use_gelu, out=c)
    if config.epilogue == "residual":
        return lambda: torch.addmm(tensors["residual"], a, b, alpha=numbers["alpha"], beta=numbers["beta"], out=c)
    return lambda: torch.matmul(a, b, out=c)


def _scaled_mm(given: Operands) -> Launch:
    """Returns e4m3 by cuBLASLt, either with a factor for each matrix and the fast accumulation that the kernel uses,
    too, or with the same block factors, and then without alpha.
    """
    import torch

    fast, c = given.config.scales == "tensor", given.c
    if fast:
        of_a, of_b = _factors(given)
    else:
        blocks = -(-given.shape.k // fp8.BLOCK)
        of_a, of_b = given.tensors["A scales"].t()[: given.shape.m], given.tensors["B scales"][:, :blocks].t()
    a, b = (each.view(torch.float8_e4m3fn) for each in (given.a, given.b.t()))
    return lambda: torch._scaled_mm(a, b, of_a, of_b, out_dtype=c.dtype, use_fast_accum=fast, out=c)


def _factors(given: Operands) -> tuple[Any, Any]:
    import torch

    alpha, one = (torch.full((), value, device=given.c.device) for value in (given.numbers["alpha"], 1.0))
    return alpha, one


def _as_product(given: Operands) -> cublaslt.Product:
    import torch

    config, tensors, numbers = given.config, given.tensors, given.numbers
    if config.dtype == FP8:
        if config.scales == "block":
            raise CannotRun("its layouts of scale factors of blocks are not searched")
        a, b = (each.view(torch.float8_e4m3fn) for each in (given.a, given.b.t()))
        return cublaslt.Product(a, b, given.c, scales=_factors(given))
    a, b, epilogue = given.a, given.b.t(), config.epilogue if config.epilogue in cublaslt.EPILOGUES else NONE
    if epilogue == "residual":
        residual, alpha, beta = tensors["residual"], numbers["alpha"], numbers["beta"]
        return cublaslt.Product(a, b, given.c, residual, None, epilogue, alpha, beta)
    return cublaslt.Product(a, b, given.c, bias=tensors.get("bias") if "bias" in epilogue else None, epilogue=epilogue)
