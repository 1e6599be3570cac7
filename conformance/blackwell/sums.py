"""Probes of tcgen05.mma of every kind on random numbers: are the emulator's sums equal to the GPU's, or how far off?"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.blackwell.multiply import (
    SLICE,
    MmaLaunch,
    MmaRequest,
    b_at,
    core_matrices,
    instruction_descriptor,
    mma,
    plain,
    program,
)
from conformance.blackwell.ptx import LANES
from conformance.kinds import KINDS, draw
from conformance.probe import Explain, Outputs, Probe

N = 16
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}
D_CODES = {"f16": 0, "f32": 1, "s32": 2}
NARROW = ("e2m3", "e3m2", "e2m1")
SATURATE = 1 << 3
MODEL = (
    "Aligned to the largest term, cut to 25 bits below it, added exactly, cut to f32 or rounded to f16: published for "
    "B200, sf-tensor/tcgen05, MODEL.md. The ISA leaves order and rounding open."
)
FP8 = MODEL + " On Hopper fp8 is cut to 13 bits; here it is as f16."


def _rows(rng: np.random.Generator, element: str, rows: int, kind: str) -> np.ndarray:
    """Returns [rows, 32 bytes]. Types narrower than a byte get random bits: 16 elements and padding in 16 bytes."""
    if element in NARROW:
        return rng.integers(0, 256, (rows, SLICE), np.uint8)
    values = draw(rng, element, (rows, SLICE // np.dtype(draw(rng, element, (1,), "integers").dtype).itemsize), kind)
    return np.ascontiguousarray(values).view(np.uint8)


def units(ours: np.ndarray, theirs: np.ndarray, d_type: str) -> np.ndarray:
    """Returns the distance of numbers in units in the last place: 0 if both are NaN, and very many if one is."""
    if d_type == "s32":
        return np.abs(ours.view(np.int32).astype(np.int64) - theirs.view(np.int32))
    width, dtype = (32, np.float32) if d_type == "f32" else (16, np.float16)
    x, y = (np.ascontiguousarray(w.astype(f"u{width // 8}")) for w in (ours, theirs))
    ordered = [np.where(w >> (width - 1), -(w.astype(np.int64) & (1 << (width - 1)) - 1), w) for w in (x, y)]
    nan = [np.isnan(w.view(dtype)) for w in (x, y)]
    distance = np.abs(ordered[0].astype(np.int64) - ordered[1])
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], 1 << width, distance))


def _explain(d_type: str, names: tuple[str, ...]) -> Explain:
    def explain(expected: Outputs, found: Outputs) -> list[str]:
        lines = []
        cut = 0xFFFF if d_type == "f16" else 0xFFFFFFFF
        for case in expected:
            # The rows of both CTAs of a pair belong to one product.
            images = [o[case]["after"] & cut for o in (expected, found)]
            pairs = zip(names, *(i.reshape(len(names), -1, i.shape[-1]) for i in images), strict=True)
            for name, ours, theirs in pairs:
                if (ours != theirs).any():
                    row, column = np.argwhere(ours != theirs)[0].tolist()
                    most = int(units(ours, theirs, d_type).max())
                    lines.append(
                        f"numbers that are {name}: {int((ours != theirs).sum())} of {ours.size} sums have other bits, "
                        f"at most {most} units in the last place off; D({row}, {column}) is "
                        f"{int(theirs[row, column]):#x}, on the emulator {int(ours[row, column]):#x}"
                    )
        return lines

    return explain


def _sums(kind: str, a: str, b: str, d: str, saturates: bool = False, group: int = 1) -> Probe:
    """Returns a probe. Each CTA of a pair has half of A's rows and half of B's columns, and D of its rows."""
    names = ("bits",) if a in NARROW or b in NARROW else KINDS
    m, n = LANES * group, N * group
    rng = np.random.default_rng(70)
    data, before = [], []
    for name in names:
        parts = [np.split(_rows(rng, element, count, name), group) for element, count in ((a, m), (b, n))]
        data += [np.concatenate([core_matrices(x), core_matrices(y)]) for x, y in zip(*parts, strict=True)]
        old = draw(rng, d, (m, n), "normal" if names == ("bits",) else name)
        before.append(np.ascontiguousarray(old).view(f"u{old.itemsize}").astype(np.uint32))
    request = MmaRequest(
        instruction_descriptor(m, n, CODES[a], CODES[b], D_CODES[d], SATURATE if saturates else 0),
        a=plain(LANES),
        b=plain(N),
        b_start=b_at(LANES),
        adds=True,
    )
    launch = MmaLaunch([request] * len(names), np.stack(data), n, group, np.stack(before))

    def read(outputs: Outputs) -> dict[str, Any]:
        images = outputs["all"]["after"]
        return {name: [hex(v) for v in images[i * group, 0, :4].tolist()] for i, name in enumerate(names)}

    ending = "_saturated" if saturates else "_pair" if group == 2 else ""
    return Probe(
        name=f"mma_sums_{d}_{a}_{b}{ending}",
        question=f"What does tcgen05.mma.kind::{kind} give for products of {a} and {b} in {d}"
        f"{', saturated' if saturates else ', of a pair' if group == 2 else ''}?",
        ptx=program(mma(kind, group), n, data[0].size, group),
        cases=(launch.case("all"),),
        read=read,
        explain=_explain(d, names),
        accumulation="tensor_core",
        assumption="" if d == "s32" else FP8 if kind == "f8f6f4" else MODEL,
    )


PROBES = (
    _sums("f16", "f16", "f16", "f32"),
    _sums("f16", "bf16", "bf16", "f32"),
    _sums("f16", "f16", "f16", "f16"),
    _sums("f16", "bf16", "bf16", "f32", group=2),
    _sums("f8f6f4", "e4m3", "e4m3", "f32", group=2),
    _sums("tf32", "tf32", "tf32", "f32"),
    _sums("f8f6f4", "e4m3", "e4m3", "f32"),
    _sums("f8f6f4", "e5m2", "e4m3", "f32"),
    _sums("f8f6f4", "e5m2", "e5m2", "f16"),
    _sums("f8f6f4", "e2m3", "e3m2", "f32"),
    _sums("f8f6f4", "e2m1", "e4m3", "f32"),
    _sums("i8", "s8", "s8", "s32"),
    _sums("i8", "u8", "s8", "s32"),
    _sums("i8", "s8", "u8", "s32", saturates=True),
)
