"""Probes of tcgen05.mma's collectors, which keep A or B and change no value, and of issues with many active threads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.blackwell.modifiers import M, N, describe_numbers, integers, old_d, read_sums, request_of
from conformance.blackwell.multiply import (
    MmaLaunch,
    MmaRequest,
    b_at,
    core_matrices,
    instruction_descriptor,
    mma,
    operands,
    plain,
    program,
)
from conformance.blackwell.ptx import by_warp_0
from conformance.comparison import by_element
from conformance.probe import Outputs, Probe

USES = ("fill", "use", "lastuse", "discard")
STEP = f"add.u32 %d, %d, {N};\nadd.u64 %b, %b, {b_at(N) >> 4};\n"


def _collectors() -> Probe:
    """Returns a probe of consecutive instructions, each with its own B and D."""
    bf16 = ml_dtypes.bfloat16
    data = np.concatenate(
        [core_matrices(integers(M, bf16, 7)), *(core_matrices(integers(N, bf16, 8 + n)) for n in range(4))]
    )
    forms = [mma(f"f16.collector::a::{use}") for use in USES]
    launch = MmaLaunch([request_of(instruction_descriptor(M, N))], data[None], N * len(forms))
    return Probe(
        name="mma_collectors",
        question="Are products the same whether the collector of A is filled, used, used once more, or discarded?",
        ptx=program(STEP.join(forms), N * len(forms), data.size),
        cases=(launch.case("one behind the other"),),
        read=read_sums,
        explain=by_element(describe_numbers),
    )


def _another_a() -> Probe:
    """Returns a probe whose second instruction names another A, but says that the collector has it."""
    first, b, other = (integers(rows, ml_dtypes.bfloat16, seed) for rows, seed in ((M, 7), (N, 8), (M, 20)))
    data = np.concatenate([core_matrices(x) for x in (first, b, other)])
    step = f"add.u32 %d, %d, {N};\nadd.u64 %a, %a, {(b_at(M) + b_at(N)) >> 4};\n"
    launch = MmaLaunch([request_of(instruction_descriptor(M, N))], data[None], 2 * N)
    products = {
        name: a.astype(np.float32) @ b.astype(np.float32).T
        for name, a in (("A that the collector was filled with", first), ("A that the descriptor names", other))
    }

    def read(outputs: Outputs) -> dict[str, Any]:
        found = outputs["fill, then use"]["after"][0, :, N:].view(np.float32)
        of = [name for name, product in products.items() if (found == product).all()]
        return {"the second product is that of the": of or "neither"}

    return Probe(
        name="mma_collector_of_another_a",
        question="Does an MMA that uses the collector read another A that it names itself, which the ISA rules out?",
        ptx=program(step.join(mma(f"f16.collector::a::{use}") for use in ("fill", "use")), 2 * N, data.size),
        cases=(launch.case("fill, then use"),),
        read=read,
        modelled=False,
    )


def _ws(collector: str) -> str:
    return f"tcgen05.mma.ws.cta_group::1.kind::f16.collector::{collector} [%d], %a, %b, %idesc, %adds;\n"


def _weights() -> Probe:
    """Returns a probe of collectors of B. ``.ws`` needs N of at least 64."""
    n = 64
    a, b = integers(M, ml_dtypes.bfloat16, 9), integers(n, ml_dtypes.bfloat16, 10)
    forms = [_ws(f"b{number}::{use}") for number, use in ((0, "fill"), (0, "use"), (3, "fill"), (0, "lastuse"))]
    columns = n * len(forms)
    request = MmaRequest(instruction_descriptor(M, n), a=plain(M), b=plain(n), b_start=b_at(M))
    data = operands(a, b)
    return Probe(
        name="mma_ws_collectors",
        question="Are products of weight-stationary MMAs the same whichever collector keeps B?",
        ptx=program(f"add.u32 %d, %d, {n};\n".join(forms), columns, data.size),
        cases=(MmaLaunch([request], data[None], columns).case("b0 fill, b0 use, b3 fill, b0 lastuse"),),
        read=read_sums,
        explain=by_element(describe_numbers),
    )


def _issuers() -> Probe:
    a, b = integers(M, ml_dtypes.bfloat16, 11), integers(N, ml_dtypes.bfloat16, 12)
    data = operands(a, b)
    before = old_d(13).view(np.uint32)[None]
    request = request_of(instruction_descriptor(M, N), adds=True)
    return Probe(
        name="mma_issue_per_thread",
        question="Do 32 active threads issue 32 MMAs, and 32 commits?",
        ptx=program(mma("f16"), N, data.size, by=by_warp_0, arrivals=32),
        cases=(MmaLaunch([request], data[None], N, before=before).case("a whole warp"),),
        read=read_sums,
        explain=by_element(describe_numbers),
    )


PROBES = (_collectors(), _another_a(), _weights(), _issuers())
