"""Probes of types of 4, 6 and 8 bits outside of tcgen05, and of sm_100a's new arithmetic: cvt, ldmatrix, stmatrix,
redux.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.blackwell.ptx import BLANK, TARGET, kernel, pointer
from conformance.comparison import Difference, by_element
from conformance.elementwise import Form, elementwise
from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import copy_in

# ---- conversions, and pairs of f32 ----


def _near(exponents: range) -> np.ndarray:
    """Returns f32 of both signs at, between and beside numbers with 4 bits of fraction, and special ones."""
    exponent = np.array([e + 127 for e in exponents], np.uint32)
    fraction = np.array([(n << 18) + d & 0x7FFFFF for n in range(32) for d in (-1, 0, 1)], np.uint32)
    positive = (exponent[:, None] << 23 | fraction).ravel()
    special = np.array([0, 1, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF, 0x00800000], np.uint32)
    bits = np.concatenate([positive, special])
    bits = np.concatenate([bits, bits | 0x80000000])
    return np.concatenate([bits, np.zeros(-bits.size % 128, np.uint32)])


def _byte(instruction: str) -> str:
    return f"{{ .reg .b8 b; {instruction} b, x, 0f3FC00000; cvt.u16.u8 d, b; }}"


TO_NARROW = [
    *(Form(f"{x}.e2m1x2", _byte(f"cvt.rn.satfinite{x}.e2m1x2.f32"), 16) for x in ("", ".relu")),
    *(
        Form(f"{x}.{kind}", f"cvt.rn.satfinite{x}.{kind}.f32 d, x, 0f3FC00000;", 16)
        for kind in ("e2m3x2", "e3m2x2")
        for x in ("", ".relu")
    ),
    *(Form(f"{r}.ue8m0x2", f"cvt.{r}.satfinite.ue8m0x2.f32 d, x, 0f3FC00000;", 16) for r in ("rz", "rp")),
]
FROM_NARROW = [
    *(
        Form(f"f16x2.{kind}", f"{{ .reg .b16 q; and.b16 q, x, 0x3F3F; cvt.rn.f16x2.{kind} d, q; }}", 32)
        for kind in ("e2m3x2", "e3m2x2")
    ),
    Form("f16x2.e2m1x2", "{ .reg .b8 b; cvt.u8.u16 b, x; cvt.rn.f16x2.e2m1x2 d, b; }", 32),
    Form("bf16x2.ue8m0x2", "cvt.rn.bf16x2.ue8m0x2 d, x;", 32),
]
"""Two numbers in a byte or in two. The upper bits of e2m3 and e3m2 are zero."""


def _tell_conversion(d: Difference) -> str:
    return (
        f"cvt to or from {d.buffer.lstrip('.')}: input {d.place[0]} becomes {d.theirs:#x}; on the emulator {d.ours:#x}"
    )


def _first(outputs: Outputs) -> dict[str, Any]:
    return {form: [hex(int(v)) for v in array[:4]] for case in outputs.values() for form, array in case.items()}


PAIRS = [
    *(
        Form(f"{op}{r}{ftz}", f"{op}{r}{ftz}.f32x2 d, x, y;", 64)
        for op in ("add", "mul")
        for r in (".rn", ".rz", ".rm")
        for ftz in ("", ".ftz")
    ),
    *(Form(f"fma{r}{ftz}", f"fma{r}{ftz}.f32x2 d, x, y, z;", 64) for r in (".rn", ".rp") for ftz in ("", ".ftz")),
]


def _pairs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(90)
    some = {}
    for name in "xyz":
        bits = rng.integers(0, 1 << 32, (512, 2), np.uint32)
        bits[::3] = rng.standard_normal((len(bits[::3]), 2)).astype(np.float32).view(np.uint32)
        bits[1::8] &= 0x807FFFFF  # subnormal
        some[name] = bits.view(np.uint64).ravel()
    return some


# ---- matrices of bytes ----

SQUARES = (("m16n16.x1.trans.shared.b8", 2), ("m16n16.x2.trans.shared.b8", 4),
           ("m16n16.x2.trans.shared.b8x16.b6x16_p32", 4), ("m16n16.x1.trans.shared.b8x16.b4x16_p64", 2),
           ("m8n16.x1.shared.b8x16.b6x16_p32", 1), ("m8n16.x4.shared.b8x16.b4x16_p64", 4))  # fmt: skip
"""Forms of ldmatrix, with their registers."""
STORES = (1, 2, 4)
BYTES = 512


def _vector(registers: int) -> str:
    return "{" + ", ".join(f"%r{10 + n}" for n in range(registers)) + "}"


def _load_body() -> str:
    text, row = "", 0
    for form, registers in SQUARES:
        text += f"ldmatrix.sync.aligned.{form} {_vector(registers)}, [%r1];\n"
        text += "".join(f"st.global.b32 [%rd1+{128 * (row + n)}], %r{10 + n};\n" for n in range(registers))
        row += registers
    return (
        pointer("%rd0", "data")
        + pointer("%rd1", "found", "%thread", 4)
        + copy_in("%rd0", 0, BYTES, 32)
        + "bar.warp.sync -1;\nmad.lo.u32 %r1, %thread, 16, %base;\n"
        + text
    )


def _loaded(row: int) -> tuple[str, int]:
    for form, registers in SQUARES:
        if row < registers:
            return form, row
        row -= registers
    raise AssertionError(row)


def _tell_load(d: Difference) -> str:
    form, register = _loaded(d.place[0])
    where = f"register {register} of thread {d.place[1]}"
    return f"ldmatrix.{form}, {d.case}: {where} has {d.theirs:#010x}; on the emulator {d.ours:#010x}"


def _loads() -> Probe:
    """Returns a probe whose bytes identify their place: once by its remainder of 251, once by its upper eight bits."""
    number = np.arange(BYTES)
    contents = {"bytes are place % 251": number % 251, "bytes are place / 2": number // 2}
    count = sum(registers for _, registers in SQUARES)
    return Probe(
        name="ldmatrix_of_bytes",
        question="Which byte does each register have after ldmatrix of 8-bit elements, and of fewer that become 8?",
        ptx=kernel(["u64 data", "u64 found"], _load_body()),
        cases=tuple(
            ProbeCase(
                name=name,
                buffers={"data": values.astype(np.uint8).view(np.uint32), "found": np.zeros((count, 32), np.uint32)},
                arguments=(Pointer("data"), Pointer("found")),
                outputs=("found",),
                block=32,
                shared=1024,
            )
            for name, values in contents.items()
        ),
        read=lambda outputs: {case: [hex(v) for v in o["found"][:, 1].tolist()] for case, o in outputs.items()},
        explain=by_element(_tell_load),
        assumption="Which lane holds what is as CuTe DSL has it.",
    )


def _store_body() -> str:
    text = ""
    for number, matrices in enumerate(STORES):
        registers = "".join(f"add.u32 %r{10 + n}, %r3, {0x40404040 * n};\n" for n in range(matrices))
        text += (
            registers
            + f"""mad.lo.u32 %r1, %thread, 16, %base;
add.u32 %r1, %r1, {BYTES * number};
stmatrix.sync.aligned.m16n8.x{matrices}.trans.shared.b8 [%r1], {_vector(matrices)};
"""
        )
    # Byte b of a register of thread t is 4 t + b, modulo 64.
    return (
        pointer("%rd0", "found", "%thread", 4)
        + """and.b32 %r3, %thread, 15;
mul.lo.u32 %r3, %r3, 0x04040404;
add.u32 %r3, %r3, 0x03020100;
mad.lo.u32 %r4, %thread, 4, %base;
"""
        + "".join(f"st.shared.b32 [%r4+{at}], {BLANK};\n" for at in range(0, BYTES * len(STORES), 128))
        + "bar.warp.sync -1;\n"
        + text
        + "bar.warp.sync -1;\n"
        + "".join(
            f"ld.shared.b32 %r5, [%r4+{at}];\nst.global.b32 [%rd0+{at}], %r5;\n"
            for at in range(0, BYTES * len(STORES), 128)
        )
    )


def _tell_store(d: Difference) -> str:
    number, at = divmod(d.place[0], BYTES)
    values = [
        "nothing" if v == BLANK & 255 else f"byte {v & 3} of thread {v % 64 // 4} or 16 more"
        for v in (d.theirs, d.ours)
    ]
    where = f"row {at // 16}, column {at % 16}"
    return f"stmatrix.m16n8.x{STORES[number]}: {where} has {values[0]}; on the emulator {values[1]}"


STORE = Probe(
    name="stmatrix_of_bytes",
    question="Where does each byte of a register go in stmatrix of 8-bit elements?",
    ptx=kernel(["u64 found"], _store_body()),
    cases=(
        ProbeCase(
            name="all",
            buffers={"found": np.zeros(BYTES * len(STORES), np.uint8)},
            arguments=(Pointer("found"),),
            outputs=("found",),
            block=32,
            shared=BYTES * len(STORES),
        ),
    ),
    read=lambda outputs: {"first rows": outputs["all"]["found"].reshape(-1, 16)[:4].tolist()},
    explain=by_element(_tell_store),
    assumption="Which lane holds what is as CuTe DSL has it.",
)

# ---- redux ----

REDUCTIONS = [f"{op}{x}{nan}" for op in ("min", "max") for x in ("", ".abs") for nan in ("", ".NaN")]


def _redux_body() -> str:
    text = "".join(
        f"redux.sync.{form}.f32 %r2, %r1, -1;\nst.global.b32 [%rd1+{128 * n}], %r2;\n"
        for n, form in enumerate(REDUCTIONS)
    )
    return (
        "mov.u32 %r0, %ctaid.x;\n"
        + pointer("%rd0", "data", "%r0", 128)
        + pointer("%rd1", "found", "%r0", 128 * len(REDUCTIONS))
        + "mad.wide.u32 %rd0, %thread, 4, %rd0;\nmad.wide.u32 %rd1, %thread, 4, %rd1;\nld.global.b32 %r1, [%rd0];\n"
        + text
    )


def _redux() -> Probe:
    rng = np.random.default_rng(91)
    data = rng.standard_normal((6, 32)).astype(np.float32).view(np.uint32)
    data[1, 5], data[2, 7], data[2, 9] = 0x7FC12345, 0xFF800001, 0x7F800000
    data[3] = 0xFFC00000 | np.arange(32)
    data[4] = np.where(np.arange(32) % 2, 0x80000000, 0)
    data[5] = np.arange(32) | 0x80000000

    def describe(d: Difference) -> str:
        row, form, _ = d.place
        return f"redux.{REDUCTIONS[form]}.f32 of row {row} is {d.theirs:#010x}; on the emulator {d.ours:#010x}"

    return Probe(
        name="redux_f32",
        question="What are minimum and maximum of f32 over a warp with NaN, zeros of both signs, subnormal numbers?",
        ptx=kernel(["u64 data", "u64 found"], _redux_body()),
        cases=(
            ProbeCase(
                name="numbers, a NaN, more of them, only NaN, zeros, subnormal",
                buffers={"data": data, "found": np.zeros((len(data), len(REDUCTIONS), 32), np.uint32)},
                arguments=(Pointer("data"), Pointer("found")),
                outputs=("found",),
                block=32,
                grid=(len(data), 1),
            ),
        ),
        read=lambda outputs: {
            form: [hex(v) for v in next(iter(outputs.values()))["found"][:, n, 0].tolist()]
            for n, form in enumerate(REDUCTIONS)
        },
        explain=by_element(describe),
    )


def _tell_pairs(d: Difference) -> str:
    return f"{d.buffer}.f32x2 of input {d.place[0]} is {d.theirs:#018x}; on the emulator {d.ours:#018x}"


PROBES = (
    elementwise(
        "cvt_to_narrow_types",
        "How does cvt round f32 to types of 4 and 6 bits, and to ue8m0?",
        TO_NARROW,
        {"rounding": {"x": _near(range(-6, 6))}, "exponents": {"x": _near(range(-127, 128, 15))}},
        _first,
        target=TARGET,
        explain=by_element(_tell_conversion),
    ),
    elementwise(
        "cvt_from_narrow_types",
        "What number is each code of 4 and 6 bits, and of ue8m0?",
        FROM_NARROW,
        {"codes": {"x": np.array([n | (255 - n) << 8 for n in range(256)], np.uint16)}},
        _first,
        target=TARGET,
        explain=by_element(_tell_conversion),
    ),
    elementwise(
        "pairs_of_f32",
        "How do add, mul and fma of pairs of f32 round?",
        PAIRS,
        {"random bits": _pairs()},
        _first,
        target=TARGET,
        explain=by_element(_tell_pairs),
    ),
    _loads(),
    STORE,
    _redux(),
)
