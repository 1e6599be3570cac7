"""Compares sums of ``tcgen05.mma`` that others observed on a chip with those of the emulated tensor core, word by word.

A file is a JSON list of cases, each an object with the raw codes of one sum. ``b200/sums.json`` is published for B200:
sf-tensor/tcgen05, MODEL.md. Fields:

- ``name``; ``kind`` as in ``.kind::``; ``a_type``, ``b_type``, ``d_type``.
- ``a``, ``b``: codes along K. Those of bf16 and tf32 are f32 words whose lower bits do not count.
- ``c``: the old D in tensor memory, and ``d``: the observed word.
- ``saturate``, of i8. ``scale_type``, ``scale_vec`` (factors of a row), ``scale_a``, ``scale_b`` (their codes).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.memory.descriptors import D_TYPES_OF_KIND, DEPTH, TYPES, InstructionDescriptor, Major
from emugpu.emulator.units.formats import FORMATS, decode
from emugpu.emulator.units.tensor_kinds import compute
from emugpu.errors import UsageProblem

Case = dict[str, Any]

_FORM = "a JSON list of sums, each an object with kind, a_type, b_type, d_type, a, b, c and d"
_REQUIRED = {"kind": str, "a_type": str, "b_type": str, "d_type": str, "a": list, "b": list, "c": int, "d": int}
_OPTIONAL = {"name": str, "saturate": bool, "scale_type": str, "scale_vec": int, "scale_a": list, "scale_b": list}
_FACTORS = {
    "mxf8f6f4": {("ue8m0", 1)},
    "mxf4": {("ue8m0", 2)},
    "mxf4nvf4": {("ue8m0", 2), ("ue8m0", 4), ("ue4m3", 4)},
}
"""Types of the factors, and their number per row."""


@dataclass(frozen=True)
class SumsAnswer:
    """The comparison of the sums of a file. ``different`` are those with another word. ``refused`` are those that
    cannot be computed; they count as cases but not as different ones. Both hold names, with the observed and the
    computed word, or the reason.
    """

    file: str
    cases: int
    different: int
    refused: int
    names_different: tuple[str, ...]
    names_refused: tuple[str, ...]


def confront_sums(path: Path) -> SumsAnswer:
    """Computes every sum of a file as the emulated Blackwell GPU does. Raises `UsageProblem` for another kind
    of file.
    """
    cases = _read(path)
    different, refused = [], []
    together: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        reason = _refusal(case)
        if reason:
            refused.append(f"{_name(i, case)}: {reason}")
        else:
            together[_alike(case)].append(i)
    for members in together.values():
        words = _words([cases[i] for i in members])
        for i, word in zip(members, words.tolist(), strict=True):
            if word != cases[i]["d"]:
                different.append((i, f"{_name(i, cases[i])}: {cases[i]['d']:#010x} was seen, {word:#010x} comes out"))
    names = tuple(line for _, line in sorted(different))
    return SumsAnswer(str(path), len(cases), len(different), len(refused), names, tuple(refused))


def _read(path: Path) -> list[Case]:
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read: {error.strerror}; name {_FORM}") from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{path} is no JSON ({error}); it must be {_FORM}") from error
    if not isinstance(cases, list):
        raise UsageProblem(f"{path} holds a JSON {type(cases).__name__}; it must be {_FORM}")
    for i, case in enumerate(cases):
        if not isinstance(case, dict):
            raise UsageProblem(f"{path}: entry {i} is a JSON {type(case).__name__}; the file must be {_FORM}")
        for field, kind in {**_REQUIRED, **_OPTIONAL}.items():
            if field not in case and field in _OPTIONAL:
                continue
            value = case.get(field)
            numbers = value if isinstance(value, list) else [value] if kind is int else []
            if type(value) is not kind or any(type(n) is not int or not 0 <= n < 1 << 32 for n in numbers):
                shown = "is missing" if field not in case else f"is {json.dumps(value)[:60]}"
                what = {str: "a text", int: "a 32-bit word", bool: "true or false", list: "a list of 32-bit words"}[
                    kind
                ]
                raise UsageProblem(f"{path}: {field} of {_name(i, case)} {shown}; it must be {what}")
    return cases


def _name(i: int, case: Case) -> str:
    return str(case.get("name", f"entry {i}"))


def _refusal(case: Case) -> str:
    """Returns why a case cannot be computed, or nothing."""
    unknown = sorted(set(case) - set(_REQUIRED) - set(_OPTIONAL))
    if unknown:
        return f"what {unknown[0]} means is not known"
    kind, types, d_type = case["kind"], (case["a_type"], case["b_type"]), case["d_type"]
    if kind not in DEPTH:
        return f"no kind is called {kind}"
    fits = set(types) <= set(TYPES[kind].values()) and d_type in D_TYPES_OF_KIND.get(kind, {0: "f32"}).values()
    if not fits or (d_type == "f16" and "bf16" in types) or (case.get("saturate") and kind != "i8"):
        return (
            f"kind::{kind} has no {types[0]} times {types[1]} in {d_type}{', saturated' * case.get('saturate', False)}"
        )
    lengths = {len(case["a"]), len(case["b"])}
    if lengths != {DEPTH[kind]}:
        return (
            f"A and B have {max(lengths)} elements; kind::{kind} takes {DEPTH[kind]}, and sparse sums are not computed"
        )
    of_rows = {len(case.get(field, ())) for field in ("scale_a", "scale_b")}
    factors = (case.get("scale_type"), case.get("scale_vec"))
    if factors not in _FACTORS.get(kind, {(None, None)}) or of_rows != {factors[1] or 0}:
        return f"kind::{kind} has no {max(of_rows)} factors of type {factors[0]} in a row, with scale_vec {factors[1]}"
    return ""


def _alike(case: Case) -> tuple[object, ...]:
    """Returns the properties that cases must share to be computed together."""
    fields = ("kind", "a_type", "b_type", "d_type", "scale_type", "scale_vec", "saturate")
    return tuple(case.get(field) for field in fields)


def _words(cases: list[Case]) -> NDArray[np.uint32]:
    """Returns D of cases that are computed together: each is a row of A with its own B."""
    first, count = cases[0], len(cases)

    def codes(field: str) -> NDArray[np.uint32]:
        return np.array([case[field] for case in cases], np.uint32)

    scales = None
    if "scale_type" in first:
        form = FORMATS[first["scale_type"]]
        scales = decode(codes("scale_a"), form), decode(codes("scale_b"), form)[:, None]
    shape = InstructionDescriptor(
        kind=first["kind"],
        m=count,
        n=1,
        a_type=first["a_type"],
        b_type=first["b_type"],
        d_type=first["d_type"],
        a_major=Major.K,
        b_major=Major.K,
        negate=False,
        saturate=first.get("saturate", False),
        scale=first.get("scale_type", ""),
    )
    a, b = _numbers(codes("a"), shape.a_type), _numbers(codes("b"), shape.b_type)
    return compute(shape, a, b[:, None], codes("c")[:, None], scales, "tensor_core")[:, 0]


def _numbers(codes: NDArray[np.uint32], element: str) -> NDArray[Any]:
    if element in ("s8", "u8"):
        return codes.astype(np.uint8).view(np.int8 if element == "s8" else np.uint8).astype(np.int64)
    return decode(codes >> 16 if element == "bf16" else codes, FORMATS[element])
