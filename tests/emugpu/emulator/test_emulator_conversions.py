"""cvt between all number formats: over all values of the small ones, against ml_dtypes and exact fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from exact_floats import FORMS, flushed, one_nan, rounded, value
from ptx_values import evaluate
from test_emulator_floats import LETTER, samples

DTYPES = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2), "e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
    "e3m2": np.dtype(ml_dtypes.float6_e3m2fn), "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
}  # fmt: skip
EVERY_HALF = np.arange(1 << 16, dtype=np.uint32)


def every_value(name: str) -> np.ndarray:
    """All values of a format, as f32 bits; NaNs among them."""
    form = FORMS[name]
    bits = np.arange(2 * form.sign, dtype=np.uint16 if form.exponent + form.fraction == 15 else np.uint8)
    return bits.view(DTYPES[name]).astype(np.float32)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal bits; NaNs of results are the canonical ones."""
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sixteen_bits_widen_exactly(name):
    found = evaluate(f"cvt.f32.{name} %f0, %h1;", [("h1", EVERY_HALF)], "f0").view(np.float32)
    np.testing.assert_array_equal(found, EVERY_HALF.astype(np.uint16).view(DTYPES[name]).astype(np.float32))
    wide = evaluate(f"cvt.f64.{name} %e0, %h1;", [("h1", EVERY_HALF[::7][:9216])], "e0").view(np.float64)
    with np.errstate(invalid="ignore"):
        expected = found[::7][:9216].astype(np.float64)
    np.testing.assert_array_equal(wide, expected)


@pytest.mark.parametrize(
    ("instruction", "source"),
    [("cvt.rn.bf16.f16", "f16"), ("cvt.rn.f16.bf16", "bf16"), ("cvt.bf16.f16", "f16"), ("cvt.f16.bf16", "bf16")],
)
def test_between_the_two_formats_of_sixteen_bits(instruction, source):
    found = evaluate(f"{instruction} %h0, %h1;", [("h1", EVERY_HALF)], "h0")
    target = "bf16" if source == "f16" else "f16"
    with np.errstate(all="ignore"):
        numbers = EVERY_HALF.astype(np.uint16).view(DTYPES[source]).astype(np.float32)
        wanted = numbers.astype(DTYPES[target])
    same(found, np.where(np.isnan(numbers), 0x7FFF, wanted.view(np.uint16)))


def edges(name: str) -> np.ndarray:
    """f32 bits: every value of a format, what lies half-way between neighbours, and next to these; both signs."""
    numbers = np.unique(every_value(name)[np.isfinite(every_value(name))])
    halves = np.array([(float(a) + float(b)) / 2 for a, b in pairwise(numbers)], np.float32)
    around = np.concatenate([numbers, halves])
    extra = np.array([np.inf, -np.inf, np.nan, 1e-30, -1e-30, 3e38, -3e38, -0.0, 500.0, 1e5], np.float32)
    everything = np.concatenate(
        [around, np.nextafter(around, np.float32(9e9)), np.nextafter(around, np.float32(-9e9)), extra]
    )
    return np.resize(everything, -(-len(everything) // 1024) * 1024).view(np.uint32)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_f32_to_small_formats(name, relu):
    """Every value, every tie and their neighbours: nearest, ties to even, saturated; NaN stays or is the largest."""
    high = edges(name)
    low = np.roll(high, 1)
    if name == "e2m1":
        body = f"{{ .reg .b8 b; cvt.rn.satfinite{relu}.e2m1x2.f32 b, %f1, %f2; cvt.u16.u8 %h0, b; }}"
        width = 4
    else:
        body, width = f"cvt.rn.satfinite{relu}.{name}x2.f32 %h0, %f1, %f2;", 8
    found = evaluate(body, [("f1", high), ("f2", low)], "h0")
    exact = [value(int(b), "f32") for b in high]
    if relu:
        exact = [Fraction(0) if x in ("-0", "-inf") or (not isinstance(x, str) and x < 0) else x for x in exact]
    wanted = np.array([rounded(x, name, saturate=True) for x in exact])
    same(found >> width, wanted)
    same(found & ((1 << width) - 1), np.roll(wanted, 1))
    finite = np.isfinite(high.view(np.float32)) & (
        np.abs(high.view(np.float32)) <= np.nanmax(every_value(name)[np.isfinite(every_value(name))])
    )
    if not relu:
        with np.errstate(all="ignore"):
            by_library = high.view(np.float32).astype(DTYPES[name]).view(np.uint8)
        same((found >> width)[finite], by_library[finite])


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_small_formats_to_halves(name):
    form = FORMS[name]
    every = np.arange(256, dtype=np.uint32) % (2 * form.sign)
    width = 4 if name == "e2m1" else 8
    packed = every | np.roll(every, 3) << width
    if name == "e2m1":
        body = "{ .reg .b8 b; cvt.u8.u16 b, %h1; cvt.rn.f16x2.e2m1x2 %r0, b; }"
    else:
        body = f"cvt.rn.f16x2.{name}x2 %r0, %h1;"
    found = evaluate(body, [("h1", packed)], "r0")
    numbers = every.astype(np.uint8).view(DTYPES[name]).astype(np.float16)
    wanted = np.where(np.isnan(numbers), 0x7FFF, numbers.view(np.uint16)).astype(np.uint32)
    same(found, wanted | np.roll(wanted, 3) << 16)
    if name in ("e4m3", "e5m2"):
        positive = np.where(np.signbit(numbers) & ~np.isnan(numbers), 0, wanted)
        same(evaluate(body.replace("cvt.rn", "cvt.rn.relu"), [("h1", packed)], "r0") & 0xFFFF, positive)
    # bf16 has all of them, too.
    wide = np.where(np.isnan(numbers), 0x7FFF, numbers.astype(DTYPES["bf16"]).view(np.uint16)).astype(np.uint32)
    found = evaluate(body.replace("f16x2.", "bf16x2."), [("h1", packed)], "r0")
    same(found, wide | np.roll(wide, 3) << 16)


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_halves_to_small_formats(half):
    body = f"{{ .reg .b32 p; mov.b32 p, {{%h1, %h1}}; cvt.rn.satfinite.e4m3x2.{half}x2 %h0, p; }}"
    found = evaluate(body, [("h1", EVERY_HALF)], "h0")
    same(found >> 8, found & 0xFF)
    numbers = EVERY_HALF.astype(np.uint16).view(DTYPES[half]).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.clip(numbers, -448, 448).astype(DTYPES["e4m3"]).view(np.uint8)
    same(found & 0xFF, np.where(np.isnan(numbers), 0x7F, wanted))


def test_scale_factors_are_powers_of_two():
    """ue8m0: the exponent alone; the sign does not count; all ones is NaN."""
    x = np.array(
        [
            1.0, 1.5, 2.0, -3.0, 0.0, 2.0**-127, 2.0**-126, 1.5 * 2.0**-127, 2.0**127, 3e38, np.inf, np.nan,
            1.5 * 2.0**-128,
        ],
        np.float32,
    )  # fmt: skip
    bits = np.resize(x, 32).view(np.uint32)
    down = evaluate("cvt.rz.satfinite.ue8m0x2.f32 %h0, %f1, %f2;", [("f1", bits), ("f2", np.roll(bits, 1))], "h0")
    up = evaluate("cvt.rp.satfinite.ue8m0x2.f32 %h0, %f1, %f2;", [("f1", bits), ("f2", np.roll(bits, 1))], "h0")
    assert (down >> 8)[:13].tolist() == [127, 127, 128, 128, 0, 0, 1, 0, 254, 254, 254, 255, 0]
    assert (up >> 8)[:13].tolist() == [127, 128, 128, 129, 0, 0, 1, 1, 254, 254, 254, 255, 0]
    same(down & 0xFF, np.roll(down >> 8, 1))
    every = np.arange(256, dtype=np.uint32)
    found = evaluate("cvt.rn.bf16x2.ue8m0x2 %r0, %h1;", [("h1", every | 127 << 8)], "r0")
    wanted = (
        (every.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
        .astype(DTYPES["bf16"])
        .view(np.uint16)
    )
    same(found, np.where(every == 255, 0x7FFF, wanted).astype(np.uint32) | 0x3F80 << 16)


def converted(instruction: str, bits: list[int], given: str, result: str) -> np.ndarray:
    """The results of all threads. All threads get each of the first four numbers too: registers then hold scalars."""
    body, operands = f"{instruction} %{result}0, %{given}1;", [(f"{given}1", np.array(bits, np.uint64))]
    found = evaluate(body, operands, f"{result}0")
    for thread in range(4):
        same(evaluate(body, operands, f"{result}0", reads=thread), np.full(len(bits), found[thread]))
    return found


def narrowed(before: int, words: list[str], to: str, source: str) -> int:
    """The bits of a number of another format: flushed or clamped as the words say, and rounded once."""
    exact = value(flushed(before, source) if "ftz" in words and source == "f32" else before, source)
    negative = exact in ("-inf", "-0") or (not isinstance(exact, str) and exact < 0)
    if ("relu" in words and negative) or ("sat" in words and (negative or exact == "nan")):
        exact = Fraction(0)
    if "sat" in words and exact != "nan" and (exact == "inf" or (not isinstance(exact, str) and exact > 1)):
        exact = Fraction(1)
    mode = next((m for m in words if m in ("rz", "rm", "rp")), "rn")
    found = rounded(exact, to, mode, saturate="satfinite" in words)
    return flushed(found, to) if "ftz" in words and to == "f32" else found


@pytest.mark.parametrize(
    "instruction",
    [
        *(f"cvt.{m}.f16.f32" for m in ("rn", "rz", "rn.relu", "rn.satfinite", "rz.relu", "rn.ftz")),
        *(f"cvt.{m}.bf16.f32" for m in ("rn", "rz", "rz.relu")),
        *(f"cvt.{m}.f32.f64" for m in ("rn", "rz", "rm", "rp")),
        *(f"cvt.{m}.f16.f64" for m in ("rn", "rm")), "cvt.rn.ftz.f32.f64", "cvt.ftz.f64.f32", "cvt.sat.f32.f32",
        "cvt.rn.bf16.f64",
    ],
)  # fmt: skip
def test_floats_narrow_in_every_direction(instruction):
    _, *words, to, source = instruction.split(".")
    bits = samples(source, instruction, 128)
    form = FORMS[to]
    if source == "f64":
        # Numbers in the range of the narrow type, and ties of it.
        rng = np.random.default_rng(7)
        numbers = rng.normal(size=64) * 2.0 ** rng.integers(-form.bias - 8, form.bias, 64)
        bits[:64] = numbers.astype(np.float64).view(np.uint64).tolist()
    found = converted(instruction, bits, LETTER[source], LETTER[to])
    for before, after in zip(bits, found.tolist(), strict=True):
        wanted = narrowed(before, words, to, source)
        if value(before, source) == "nan" and "f64" in (to, source) and "sat" not in words:
            # It keeps what there is room for of its fraction.
            assert value(after, to) == "nan"
        else:
            assert hex(after) == hex(wanted), hex(before)


@pytest.mark.parametrize("form", ["rn.f16", "rn.bf16", "rz.relu.bf16", "rn.satfinite.f16"])
def test_a_pair_of_halves_is_two_conversions_the_first_above(form):
    *words, to = form.split(".")
    bits = samples("f32", form, 128)
    high, low = bits, [*bits[1:], bits[0]]
    pairs = evaluate(f"cvt.{form}x2.f32 %r0, %f1, %f2;", [("f1", np.array(high)), ("f2", np.array(low))], "r0")
    wanted = [
        narrowed(h, words, to, "f32") << 16 | narrowed(w, words, to, "f32") for h, w in zip(high, low, strict=True)
    ]
    same(pairs, np.array(wanted))


@pytest.mark.parametrize("form", ["rna", "rn", "rz", "rn.relu"])
def test_tf32_has_ten_fraction_bits(form):
    bits = samples("f32", form, 96)
    bits[:4] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0xBF801000]
    found = evaluate(f"cvt.{form}.tf32.f32 %r0, %f1;", [("f1", np.array(bits))], "r0")
    for before, after in zip(bits, found.tolist(), strict=True):
        exact = value(before, "f32")
        if "relu" in form and (exact in ("-inf", "-0") or (not isinstance(exact, str) and exact < 0)):
            exact = Fraction(0)
        wanted = 0x7FFFE000 if exact == "nan" else rounded(exact, "tf32", form.partition(".")[0]) << 13
        if exact == "nan" and form == "rna":
            wanted = before & 0xFFFFE000
        assert hex(after) == hex(wanted), hex(before)


def integral(exact, mode: str) -> int:
    """A rational number as an integer."""
    below = exact.numerator // exact.denominator
    up = {"rzi": exact < 0, "rmi": False, "rpi": True}.get(mode)
    if below == exact:
        return below
    if up is None:
        middle = Fraction(2 * below + 1, 2)
        up = exact > middle or (exact == middle and below % 2 == 1)
    return below + up


@pytest.mark.parametrize(
    "instruction",
    [
        *(f"cvt.{m}.s32.f32" for m in ("rni", "rzi", "rmi", "rpi", "rni.ftz")),
        "cvt.rzi.u32.f32", "cvt.rzi.s32.f64", "cvt.rni.s64.f64", "cvt.rzi.s64.f32", "cvt.rzi.u64.f64",
        "cvt.rni.s8.f32", "cvt.rzi.u16.f32", "cvt.rpi.s32.f16", "cvt.rni.u32.bf16", "cvt.rmi.s16.f16",
    ],
)  # fmt: skip
def test_floats_to_integers_saturate(instruction):
    _, mode, *words, to, source = instruction.split(".")
    bits = samples(source, instruction, 128)
    rng = np.random.default_rng(9)
    whole = (rng.integers(-(1 << 40), 1 << 40, 64) >> rng.integers(0, 40, 64)) / 2.0
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[source]
    whole[:3] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        bits[:64] = whole.astype(dtype).view(f"u{np.dtype(dtype).itemsize}").tolist()
    width, signed = int(to[1:]), to[0] == "s"
    register = "d" if width == 64 else "h" if width < 32 else "r"
    found = converted(instruction, bits, LETTER[source], register)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    mask = (1 << max(width, 16)) - 1
    for before, after in zip(bits, found.tolist(), strict=True):
        exact = value(flushed(before, source) if "ftz" in words else before, source)
        of_nan = 1 << (width - 1) if source == "f64" or width == 64 else 0  # PTX ISA 9.7.9.21
        special = {"nan": of_nan, "inf": high, "-inf": low, "-0": 0}
        wanted = special[exact] if isinstance(exact, str) else max(low, min(high, integral(exact, mode)))
        assert after == wanted & mask, hex(before)


@pytest.mark.parametrize(
    "instruction",
    [
        *(f"cvt.{m}.f32.{t}" for m in ("rn", "rz", "rm", "rp") for t in ("s32", "u64")),
        "cvt.rn.f64.s64", "cvt.rp.f64.u64", "cvt.rz.f64.s64",
        "cvt.rn.f16.s32", "cvt.rp.f16.u32", "cvt.rn.bf16.s64", "cvt.rn.bf16.u16", "cvt.rn.f16.s8", "cvt.rn.f32.u32",
        "cvt.rn.f64.s32", "cvt.rn.f64.u32", "cvt.rn.f32.u8", "cvt.rn.f64.s16",
    ],
)  # fmt: skip
def test_integers_to_floats_round_once(instruction):
    _, mode, to, source = instruction.split(".")
    width, signed = int(source[1:]), source[0] == "s"
    rng = np.random.default_rng(11)
    numbers = [
        int(n) >> int(k)
        for n, k in zip(rng.integers(-(1 << 62), 1 << 62, 64) * 2 + 1, rng.integers(0, 63, 64), strict=True)
    ]
    numbers += [
        0, 1, -1, (1 << 24) + 1, (1 << 25) + 3, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63), 0xFFFFFFFF, 65520, 65519,
        257, 259,
    ]  # fmt: skip
    numbers = [*numbers, *([5] * (96 - len(numbers)))]
    bits = [n & ((1 << width) - 1) for n in numbers]
    register = "d" if width == 64 else "h" if width < 32 else "r"
    found = converted(instruction, bits, register, LETTER[to])
    for before, after in zip(bits, found.tolist(), strict=True):
        exact = before - (1 << width) if signed and before >> (width - 1) else before
        assert hex(after) == hex(rounded(Fraction(exact), to, mode)), exact


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("name", ["f32", "f64", "f16"])
def test_rounding_to_an_integer_keeps_the_type_and_the_sign(mode, name):
    bits = samples(name, f"{mode} {name}", 96)
    letter = LETTER[name]
    found = evaluate(
        f"cvt.{mode}.{name}.{name} %{letter}0, %{letter}1;", [(f"{letter}1", np.array(bits, np.uint64))], f"{letter}0"
    )
    for before, after in zip(bits, found.tolist(), strict=True):
        exact = value(before, name)
        if isinstance(exact, str):
            wanted = rounded(exact, name)
        else:
            whole = Fraction(integral(exact, mode))
            wanted = rounded(whole, name) | (before & FORMS[name].sign if not whole else 0)
        assert hex(one_nan(after, name)) == hex(wanted), hex(before)


def test_integers_saturate_and_pack():
    x = np.array(
        [
            0, 1, 127, 128, 255, 256, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF80, 0xFFFFFF7F,
            0xFFFF8000, 5, 6,
        ]
        * 2
    )  # fmt: skip
    signed = [int(v) - (1 << 32) if v >> 31 else int(v) for v in x]

    def clamp(v: int, kind: str) -> int:
        bits = int(kind[1:])
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
        return max(low, min(high, v))

    for kind in ("u8", "s8", "u16", "s16", "u32"):
        found = evaluate(f"cvt.sat.{kind}.s32 %r0, %r1;", [("r1", x)], "r0")
        assert found.tolist() == [clamp(v, kind) & 0xFFFFFFFF for v in signed], kind
    y, z = np.roll(x, 3), np.arange(32) * 77
    packed = evaluate("cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;", [("r1", x), ("r2", y), ("r3", z)], "r0")
    wanted = [clamp(a, "u8") << 8 | clamp(b, "u8") for a, b in zip(signed, np.roll(signed, 3), strict=True)]
    assert packed.tolist() == [v | int(k) << 16 & 0xFFFFFFFF for v, k in zip(wanted, z, strict=True)]
    halves = evaluate("cvt.pack.sat.s16.s32 %r0, %r1, %r2;", [("r1", x), ("r2", y)], "r0")
    wanted = [
        (clamp(a, "s16") & 0xFFFF) << 16 | clamp(b, "s16") & 0xFFFF
        for a, b in zip(signed, np.roll(signed, 3), strict=True)
    ]
    assert halves.tolist() == wanted


NARROW = {
    "e4m3x2": ml_dtypes.float8_e4m3fn,
    "e5m2x2": ml_dtypes.float8_e5m2,
    "e2m3x2": ml_dtypes.float6_e2m3fn,
    "e3m2x2": ml_dtypes.float6_e3m2fn,
}


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("words", ["", ".relu", ".satfinite", ".relu.satfinite"])
def test_narrow_numbers_to_bf16_by_scale_factors(kind, words):
    """Each number, times the power of two of its own factor, is rounded once to bf16 (PTX ISA 9.7.10.24)."""
    rng = np.random.default_rng(7)
    size = 6 if NARROW[kind](0).dtype.name.startswith("float6") else 8
    codes, factors = rng.integers(0, 1 << size, (512, 2)), rng.integers(0, 255, (512, 2))
    factors[:256] = rng.integers(120, 135, (256, 2))
    packed, scale = (v[:, 0] << 8 | v[:, 1] for v in (codes, factors))
    text = f"cvt.rn{words}.scaled::n2::ue8m0.bf16x2.{kind} %r0, %h1, %h2;"
    found = evaluate(text, [("h1", packed), ("h2", scale)], "r0")
    numbers = codes.astype(np.uint8).view(NARROW[kind]).astype(np.float64) * 2.0 ** (factors.astype(np.float64) - 127)
    if "relu" in words:
        numbers = np.where(np.signbit(numbers) & ~np.isnan(numbers), 0.0, numbers)  # -0, too
    if "satfinite" in words:
        largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
        numbers = np.where(np.isnan(numbers), np.nan, np.clip(numbers, -largest, largest))
    with np.errstate(over="ignore"):
        wanted = numbers.astype(np.float32).astype(ml_dtypes.bfloat16)
    got = np.stack([found >> 16, found & 0xFFFF], 1).astype(np.uint16).view(ml_dtypes.bfloat16)
    nan = np.isnan(numbers)
    assert (np.isnan(got.astype(np.float32)) == nan).all()
    assert (got.view(np.uint16)[~nan] == wanted.view(np.uint16)[~nan]).all()


def test_a_scale_factor_that_is_no_number():
    text = "cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2 %r0, %h1, %h2;"
    found = evaluate(text, [("h1", np.full(32, 0x3838)), ("h2", np.full(32, 0xFF80))], "r0")
    assert np.isnan((found & 0xFFFF0000).view(np.float32)).all() and (found & 0xFFFF == 0x4000).all()
