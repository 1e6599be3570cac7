"""Probes of what only Blackwell has: the emulator's answers against rules that are written down here once more.

They are from the PTX ISA and, where a probe says that it assumes something, from that. No GPU has answered yet.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from blackwell_operands import E2M1, floats, numbers, rows

from harness.compiler.toolchain import ptxas_version
from harness.emulator import EmulatorError
from harness.probes import emulator
from harness.probes.blackwell import (
    layouts,
    modifiers,
    operands,
    rules,
    scales,
    sums,
    tensor_memory,
    tma,
)
from harness.probes.blackwell.copies import SHAPES, SOURCES
from harness.probes.catalogue import BLACKWELL, PROBES, for_target
from harness.probes.kinds import KINDS

BLANK = 0xEEEEEEEE
CHECKED: set[str] = set()
"""Probes whose answer has been compared here."""


@cache
def answer(name: str):
    CHECKED.add(name)
    return emulator.run(BLACKWELL[name])


def image(name: str, case: str) -> np.ndarray:
    """Tensor memory of every CTA after a case, and every commit has arrived."""
    outputs = answer(name)[case]
    assert (outputs["done"] == 1).all()
    return outputs["after"]


def given(name: str, case: str) -> dict[str, np.ndarray]:
    return next(c.buffers for c in BLACKWELL[name].cases if c.name == case)


# ---- the catalogue ----


@pytest.mark.skipif(ptxas_version() is None, reason="ptxas is not installed")
def test_ptxas_assembles_all_of_them_without_remarks(tmp_path):
    """Those that begin alike in one file: a process takes longer than a kernel."""
    entry = ".visible .entry probe("
    files: dict[str, list[str]] = {}
    for name, probe in BLACKWELL.items():
        head, _, body = probe.ptx.partition(entry)
        files.setdefault(head, []).append(entry.replace("probe", name) + body)
    assert len(files) < 4
    source, target = tmp_path / "probes.ptx", tmp_path / "probes.cubin"
    for head, bodies in files.items():
        source.write_text(head + "\n".join(bodies))
        done = subprocess.run(["ptxas", "-arch=sm_100a", source, "-o", target], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(ptxas_version() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_ptxas_takes_probes_that_are_made_for_other_gpus(target, tmp_path):
    """A few: all differ in one line or two only."""
    source, cubin = tmp_path / "probe.ptx", tmp_path / "probe.cubin"
    both = for_target(target)
    assert [name for name in PROBES if name not in both] == [n for n, p in PROBES.items() if "wgmma" in p.ptx]
    for name in ("tma_multicast_ranks", "mma_m16n8k32_f32_e4m3_e4m3_f32", "mma_layout_64", "cvt_from_narrow_types"):
        source.write_text(both[name].ptx)
        done = subprocess.run(["ptxas", f"-arch={target}", source, "-o", cubin], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), name


def test_names_are_unique_and_questions_are_questions():
    assert not set(BLACKWELL) & set(PROBES)
    assert set(for_target("sm_90a")) == set(PROBES)
    assert set(for_target("sm_100a")) > set(BLACKWELL)
    assert {name for name in for_target("sm_100a") if name not in for_target("sm_103a")} == {
        name for name, probe in BLACKWELL.items() if ".kind::i8" in probe.ptx
    }
    assert all(probe.question.endswith("?") for probe in BLACKWELL.values())


def test_every_probe_stands_beside_the_question_that_it_settles():
    page = (Path(__file__).parent.parent / "docs" / "open-questions.md").read_text()
    named = re.findall(r"`([a-z0-9_*]+)`(\\\*)?", page)
    for name, probe in BLACKWELL.items():
        stars = [star for pattern, star in named if fnmatch(name, pattern)]
        assert stars and bool(stars[-1]) == (not probe.modelled), name
    assert f"{len(BLACKWELL)} probes" in (Path(__file__).parent.parent / "docs" / "trust.md").read_text()


def backward_branches(ptx: str) -> set[str]:
    """Labels that a branch goes back to. Labels are known in their block and in those inside of it."""
    blocks: list[set[str]] = [set()]
    found = set()
    for line in (line.strip() for line in ptx.splitlines()):
        if line == "{":
            blocks.append(set())
        elif line == "}":
            blocks.pop()
        elif line.endswith(":"):
            blocks[-1].add(line.removesuffix(":"))
        elif "bra " in line:
            target = line.split()[-1].rstrip(";")
            if any(target in block for block in blocks):
                found.add(target)
    return found


def test_no_probe_waits_for_ever():
    """What may hang is outside: an alloc, a barrier. Loops are over words, steps and requests, or count their tries."""
    counted = {"NEXT", "AGAIN", "SLEEP", "STARTED"}
    assert {name for name, probe in BLACKWELL.items() if not backward_branches(probe.ptx) <= counted} == set()
    for name in ("mma_layout_128", "clc_refused", "clc_queue", "tmem_alloc_waits"):
        assert backward_branches(BLACKWELL[name].ptx)
    for probe in BLACKWELL.values():
        # Every wait for an mbarrier is followed by a branch out of the loop and by a count of tries.
        text = probe.ptx.splitlines()
        for number, line in enumerate(text):
            if "mbarrier.t" in line and "_wait" in line:
                assert any("setp.lt.u32 more, tries" in after for after in text[number : number + 6])


# ---- tensor memory ----


def place(shape: str, t: int, i: int, split: int) -> tuple[int, int]:
    """(lane, column) of thread t's register i (PTX ISA 9.7.16.2.3)."""
    return {
        "32x32b": (t, i),
        "16x64b": (t // 4 + 8 * (t % 2), 2 * i + t // 2 % 2),
        "16x128b": (t // 4 + 8 * (i % 2), t % 4 + 4 * (i // 2)),
        "16x256b": (t // 4 + 8 * (i // 2 % 2), 2 * (t % 4) + i % 2 + 8 * (i // 4)),
        "16x32bx2": (t % 16, i + (split if t >= 16 else 0)),
    }[shape]


@pytest.mark.parametrize("name", ["tmem_load_shapes", "tmem_odd_columns"])
def test_loads_of_every_shape(name):
    found = answer(name)["all"]["found"]
    accesses = {
        "tmem_load_shapes": [a for a in tensor_memory.LOADS if not a.packed],
        "tmem_odd_columns": tensor_memory.ODD,
    }
    row = 0
    for access in accesses[name]:
        for i in range(access.registers):
            for thread in range(128):
                lane, column = place(access.shape, thread % 32, i, access.split)
                lane += thread // 32 * 32 + access.lane
                assert found[row, thread] == lane << 16 | column + access.column, access
            row += 1
    assert row == len(found)


def test_packed_loads_take_the_low_halves_of_two_columns():
    found = answer("tmem_load_packed")["all"]["found"]
    row = 0
    for access in [a for a in tensor_memory.LOADS if a.packed]:
        for i in range(access.registers):
            for thread in range(0, 128, 3):
                lane, column = place(access.shape, thread % 32, i, 0)
                lane += thread // 32 * 32 + access.lane
                column = 2 * column + access.column + (access.split if thread % 32 >= 16 else 0)
                assert found[row, thread] == lane << 8 | column | (lane << 8 | column + 1) << 16, access
            row += 1
    assert row == len(found)


def test_stores_of_every_shape():
    found = answer("tmem_store_shapes")["all"]["after"]
    wanted = np.full_like(found, BLANK)
    for number, access in enumerate(tensor_memory.STORES):
        for i in range(access.registers):
            for thread in range(128):
                lane, column = place(access.shape, thread % 32, i, 0 if access.packed else access.split)
                lane += thread // 32 * 32 + access.lane
                own = i * 128 + thread
                if access.packed:
                    column = 2 * column + access.column + (access.split if thread % 32 >= 16 else 0)
                    wanted[lane, column : column + 2] = own, own | 0x8000
                else:
                    wanted[lane, column + access.column] = number << 16 | own
    assert (found == wanted).all()


def test_a_lane_field_counts_modulo_32():
    for case, outputs in answer("tmem_lane_field").items():
        field = int(case.split()[-1])
        for thread in range(128):
            base = thread // 32 * 32 + field % 32
            one = BLANK if field % 32 else thread << 16
            assert outputs["found"][0, thread] == one
            lane, column = place("16x64b", thread % 32, 0, 0)
            assert outputs["found"][1, thread] == base + lane << 16 | column


ALLOCATED = {
    "128, 64, 32, 32": [0, 128, 192, 224],
    "two of 32 where one of 64 was": [0, 64, 0, 32],
    "64 behind two holes": [0, 64, 128, 0, 64, 0],
    "all 512, twice": [0, 0],
}


def test_allocation_takes_the_first_hole():
    assert BLACKWELL["tmem_alloc_addresses"].read(answer("tmem_alloc_addresses")) == {
        case: [columns] for case, columns in ALLOCATED.items() if case != "64 behind two holes"
    } | {"64 behind two holes": [[0, 64, 128, 0, 64, 0]]}
    pair = BLACKWELL["tmem_alloc_pair"].read(answer("tmem_alloc_pair"))
    assert pair == {case: [columns, columns] for case, columns in ALLOCATED.items()}
    assert answer("tmem_alloc_waits")["512 and 512"]["found"].tolist() == [1, 0]


# ---- layouts of D ----


def where(m: int, n: int, group: int, ws: bool, lane: int) -> tuple[np.ndarray, ...]:
    """CTA, lane and column of D(r, c) (PTX ISA 9.7.16.10.5)."""
    r, c = np.mgrid[:m, :n]
    zero = np.zeros_like(r)
    if group == 2:
        half = c >= n // 2
        return (r // 128, r % 128, c) if m == 256 else (r // 64, r % 64 + 64 * half, c % (n // 2))
    if m == 128:
        return zero, r, c
    if ws:
        parts = 128 // m
        return zero, r + m * (c // (n // parts)), c % (n // parts)
    return zero, r % 16 + 32 * (r // 16) + lane, c


LAYOUTS = [probe.name for probe in layouts.PROBES]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_d(name):
    group = 2 if "pair" in name else 1
    for case in BLACKWELL[name].cases:
        words = case.name.replace(",", "").split()
        options = dict(zip(words[::2], (int(w) for w in words[1::2]), strict=True))
        m, n = options["M"], options["N"]
        found = image(name, case.name)
        wanted = np.full_like(found, BLANK)
        cta, lane, column = where(m, n, group, "ws" in name, options.get("lane", 0))
        r, c = np.mgrid[:m, :n]
        wanted[cta, lane, column + options.get("column", 0)] = (256 * r + c).astype(np.float32).view(np.uint32)
        assert (found == wanted).all(), case.name


@pytest.mark.parametrize("name", ["mma_tile", "mma_tile_pair"])
def test_a_whole_tile(name):
    """Four registers of a load 16x256b are 8 columns; 16 of them, and two halves of a warp's lanes, 32 columns."""
    buffers, outputs = given(name, "integers"), answer(name)["integers"]
    a, b = (buffers[operand].view(ml_dtypes.bfloat16).astype(np.float32) for operand in "ab")
    exact = a @ b.T
    assert (outputs["done"] == 1).all() and np.unique(exact).size > 100
    for cta, registers in enumerate(outputs["found"].view(np.float32).reshape(-1, 4, 2, 16, 128)):
        for chunk, half, i, thread in np.ndindex(registers.shape):
            lane, column = place("16x256b", thread % 32, i, 0)
            row = 128 * cta + thread // 32 * 32 + 16 * half + lane
            assert registers[chunk, half, i, thread] == exact[row, 32 * chunk + column]
    assert BLACKWELL[name].read(answer(name)) == {"exact": True}


# ---- operands ----


def address(layout: operands.Layout, row: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Byte of element (row, k) of two bytes (PTX ISA 9.7.16.3.3, 5.5.7), from the 1024-byte boundary."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[layout.swizzle]
    if layout.major == "K":
        across = k * 2 // 16 * layout.leading + k * 2 % 16 if span == 16 else k * 2
        offset = row % 8 * span + row // 8 * layout.stride + across
    elif span == 16:
        offset = row * 2 % 16 + row // 8 * layout.stride + k % 8 * 16 + k // 8 * layout.leading
    else:
        offset = row * 2 % span + row * 2 // span * layout.leading + k % 8 * span + k // 8 * layout.stride
    at = layout.start + offset - 128 * layout.base
    return (at ^ ((at >> 7) % (span // 16)) << 4) + 128 * layout.base


@pytest.mark.parametrize("name", ["mma_a_addresses", "mma_b_addresses", "mma_a_offsets"])
def test_which_bytes_a_descriptor_names(name):
    probe, found = BLACKWELL[name], image(name, "all")
    operand = name[4].upper()
    asked = operands.OFFSETS if name == "mma_a_offsets" else operands.STARTS
    if operand == "B":
        asked = [a for a in asked if a.base != 6 and a.start in (0, 32, 256)]
    assert len(found) == len(asked) == len(probe.read(answer(name)))
    row, k = np.mgrid[:64, :16]
    for layout, words in zip(asked, found, strict=True):
        values = floats(words)
        if operand == "A":
            lanes = row % 16 + 32 * (row // 16)
            numbers_read = values[lanes, k] + 2048 * values[lanes, 16 + k]
        else:
            numbers_read = values[k, row] + 2048 * values[k, 64 + row]
        assert (2 * numbers_read == address(layout, row, k)).all(), layout.name


@pytest.mark.parametrize("name", [p.name for p in operands.PROBES if "tmem" in p.name])
def test_a_in_tensor_memory(name):
    pair = name.endswith("pair")
    depth = {"f16": 16, "pair": 16, "tf32": 8, "lanes": 32, "bytes": 32}[name.split("_")[-1]]
    for case in BLACKWELL[name].cases:
        m, n = (int(word) for word in case.name.replace(",", "").split()[1::2])
        found = image(name, case.name)
        cta, lane, column = where(m, n, 1 + pair, False, 0)
        r, c = np.mgrid[:m, :n]
        source = r % 64 if pair and m == 128 else lane  # the same 64 lanes for both halves of the columns
        wanted = source * depth + c % depth
        wanted = {"lanes": source, "bytes": c % depth}.get(name.split("_")[-1], wanted)
        values = found[cta, lane, column]
        values = values.astype(np.int64) if "i8" in name else floats(values)
        assert (np.abs(values) == wanted).all() and (values[wanted > 0] < 0).sum() == (cta * (wanted > 0)).sum()


# ---- modifiers ----


def product(name: str, case: str, element: str, request: int, b_start: int = 128 * 32, n: int = 16) -> np.ndarray:
    """A . B of a request with M = 128."""
    data = given(name, case)["operands"][request]
    a, b = numbers(rows(data, 0, 128), element), numbers(rows(data, b_start, n), element)
    return a @ b.T


@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e4m3")])
def test_signs(kind, element):
    name, case = f"mma_negate_{kind}", "none, A, B, both; then with D added"
    found, old = floats(image(name, case)), floats(given(name, case)["before"])
    for request in range(8):
        sign = (1, -1, -1, 1)[request % 4]
        assert (found[request] == sign * product(name, case, element, request) + (request >= 4) * old[request]).all()


@pytest.mark.parametrize("name", ["mma_disabled_lanes", "mma_disabled_lanes_pair"])
def test_disabled_lanes(name):
    group = 2 if name.endswith("pair") else 1
    for case in BLACKWELL[name].cases:
        m = int(case.name.removeprefix("M "))
        found = image(name, case.name).reshape(-1, group, 128, 32)
        cta, lane, column = where(m, 32, group, False, 0)
        r, c = np.mgrid[:m, :32]
        for mask, images in zip(modifiers.MASKS, found, strict=False):
            wanted = np.full_like(images, BLANK)
            kept = np.array([[mask[4 * rank + at // 32] >> at % 32 & 1 for at in range(128)] for rank in range(group)])
            values = (256 * r + c).astype(np.float32).view(np.uint32)
            wanted[cta, lane, column] = np.where(kept[cta, lane], BLANK, values)
            assert (images == wanted).all()


@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("tf32", "tf32")])
def test_a_scaled_d(kind, element):
    name, case = f"mma_scaled_d_{kind}", "D divided by 2^0, 2^1, 2^4, 2^15 and added; then not added"
    found, old = floats(image(name, case)), floats(given(name, case)["before"])
    for number, shift in enumerate((0, 1, 4, 15)):
        columns = slice(16 * number, 16 * number + 16)
        exact = product(name, case, element, 0) + old[0, :, columns] / 2.0**shift
        assert (np.abs(found[0, :, columns] - exact) <= 2.0**-23 * np.abs(exact) + 2.0**-20).all()
        assert (found[1, :, columns] == product(name, case, element, 1)).all()


def test_collectors_and_issuers():
    case = "one behind the other"
    found = floats(image("mma_collectors", case))
    for n in range(4):
        exact = product("mma_collectors", case, "bf16", 0, 128 * 32 + 16 * 32 * n)
        assert (found[0, :, 16 * n : 16 * n + 16] == exact).all()
    case = "b0 fill, b0 use, b3 fill, b0 lastuse"
    exact = product("mma_ws_collectors", case, "bf16", 0, n=64)
    assert (floats(image("mma_ws_collectors", case)) == np.tile(exact, 4)).all()
    old = floats(given("mma_issue_per_thread", "a whole warp")["before"])
    exact = product("mma_issue_per_thread", "a whole warp", "bf16", 0)
    assert (floats(image("mma_issue_per_thread", "a whole warp")) == old + 32 * exact).all()


def test_a_d_of_16_bits_is_in_the_lower_halves():
    name, case = "mma_d_of_16_bits", "D of f16, not added and added"
    old = (given(name, case)["before"] & 0xFFFF).astype(np.uint16).view(np.float16)
    found = (image(name, case) & 0xFFFF).astype(np.uint16).view(np.float16)
    for request in range(2):
        assert (found[request] == product(name, case, "f16", request) + request * old[request]).all()


# ---- sums ----

RULES = {
    rules.ALIGNED: "25",
    rules.WITH_OLD: "25",
    rules.OLD_KEPT: "25",
    rules.UNNORMALISED: "25",
    rules.CUT: [1.0, -1.0],
    rules.ENDS: {
        "(1 + 0.75 units)": 0.0, "-(1 + 0.75 units)": 0.0, "(1 + 0.5 units)": 0.0, "-(1 + 0.5 units)": 0.0,
    },
    rules.TOGETHER: [],
}  # fmt: skip
"""What is assumed: 25 bits below the largest term, cut toward zero, all terms at once."""


@pytest.mark.parametrize("element", rules.TYPES)
def test_rules_of_sums(element):
    name = f"mma_rules_{element}"
    found = BLACKWELL[name].read(answer(name))
    special = found.pop(rules.SPECIAL)
    assert found == RULES
    assert special["old NaN"] == special["inf * 0"] == "0x7fffffff"
    assert special["inf * 1"] == ("0x7fffffff" if element == "e4m3" else "0x7f800000")
    assert special["old 2^-140 alone"] == "0x200" and special["largest f32 + itself"] == "0x7f7fffff"


def one_by_one(experiment: rules.Experiment) -> np.float32:
    """Another machine: products are added to D in f32, one after the other."""
    total = np.float32(experiment.old)
    for place in sorted(experiment.products):
        a, b = experiment.products[place]
        total = np.float32(total + np.float32(a * b))
    return total


def exactly(experiment: rules.Experiment) -> np.float32:
    """Another machine: the exact sum, rounded once."""
    return np.float32(experiment.old + sum(a * b for a, b in experiment.products.values()))


def test_rules_tell_other_machines_apart():
    kind = rules.TYPES["bf16"]
    asked = list(rules.experiments(kind))
    answers = [rules.read_rules(np.array([f(e) for e in asked]), asked, kind) for f in (one_by_one, exactly)]
    assert answers[0][rules.TOGETHER] and answers[0][rules.ENDS]["(1 + 0.75 units)"] == 0.0
    assert answers[0][rules.ALIGNED] == "36 or more" and answers[0][rules.OLD_KEPT] == "23"
    assert answers[1][rules.ENDS]["(1 + 0.75 units)"] == 1.0
    assert answers[1][rules.WITH_OLD] == "36 or more"
    assert all(a != RULES for a in answers)


SUMS = {p.name: p for p in sums.PROBES}
ANY_BITS = KINDS.index("bits")
"""Any bits: infinities and NaN among them."""


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_random_numbers_are_right(name):
    """Within what cutting to 25 bits allows; integers exactly."""
    d, a, b, *more = name.removeprefix("mma_sums_").split("_")
    group = 2 if more == ["pair"] else 1
    images, buffers = image(name, "all"), given(name, "all")
    found, before = (i.reshape(-1, 128 * group, 16 * group) for i in (images, buffers["before"]))
    for request, words in enumerate(found):
        halves = buffers["operands"][group * request : group * request + group]
        x = np.concatenate([numbers(rows(half, 0, 128), a) for half in halves])
        y = np.concatenate([numbers(rows(half, 128 * 32, 16), b) for half in halves])
        if d == "s32":
            exact = (x @ y.T).astype(np.int64) + before[request].view(np.int32)
            low, high = -(1 << 31), (1 << 31) - 1
            wrapped = np.clip(exact, low, high) if more == ["saturated"] else exact.astype(np.int32)
            assert (words.view(np.int32) == wrapped).all()
            continue
        if d == "f16":
            values, old = (
                (w & 0xFFFF).astype(np.uint16).view(np.float16).astype(float) for w in (words, before[request])
            )
        else:
            values, old = floats(words), floats(before[request])
        with np.errstate(all="ignore"):
            exact = x @ y.T + old
            terms = np.abs(x) @ np.abs(y).T + np.abs(old)
            allowed = 64 * 2.0**-25 * terms + (2.0**-11 * np.abs(exact) + 2.0**-25 if d == "f16" else 2.0**-23 * terms)
            largest = 65504 if d == "f16" else np.finfo(np.float32).max
            plain = np.isfinite(exact) & np.isfinite(values) & (terms < largest / 4)
            assert (np.abs(values - exact) <= allowed)[plain].all()
            assert plain.mean() > 0.9 or request == ANY_BITS or len(found) == 1
            assert np.isnan(values[np.isnan(exact)]).all()


# ---- scale factors ----

PLACES = {p.name: kind for p, kind in zip(scales.PROBES, [*scales.KINDS, scales.KINDS[0]], strict=False)}


@pytest.mark.parametrize("name", PLACES)
def test_where_scale_factors_lie(name):
    """Row r's: lane r % 32 of a quadrant, column r / 32, and byte id + block."""
    kind = PLACES[name]
    group = 2 if name.endswith("pair") else 1
    asked = scales._asked(kind, ("lane", "place"))
    codes = np.arange(256, dtype=np.uint8)
    values = 2.0 ** (codes.astype(float) - 127) if kind.ue8m0 else codes.view(ml_dtypes.float8_e4m3fn).astype(float)
    for case in BLACKWELL[name].cases:
        m, n = (int(word) for word in case.name.replace(",", "").split()[1::2])
        found = floats(image(name, case.name)).reshape(len(asked), group, 128, -1)
        cta, lane, column = where(m, n, group, False, 0)
        r, c = np.mgrid[:m, :n]
        for question, images in zip(asked, found, strict=True):
            number = r % (m // group) if question.operand == "A" else c
            number = number % 32 if question.by == "lane" else 4 * (number // 32) + question.identifier + question.block
            per = {"mxf8f6f4": 32, "mxf4_2x": 32, "mxf4nvf4_2x": 32, "mxf4nvf4_4x": 16}
            size = next(count for start, count in per.items() if kind.name.startswith(start))
            assert (images[cta, lane, column] == size * values[number + (110 if kind.ue8m0 else 8)]).all(), question


def test_codes_of_scale_factors():
    powers = floats(image("mma_scale_codes_ue8m0", "all codes"))[:, :, 0].reshape(-1) / 32
    assert (powers[:250] == 2.0 ** (np.arange(250.0) - 127)).all() and np.isnan(powers[255])
    small = floats(image("mma_scale_codes_ue4m3", "all codes"))[0, :, 0] / 16
    assert (small[:127] == np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float)).all()
    assert np.isnan(small[127])


def test_sums_of_scaled_blocks():
    assert BLACKWELL["mma_rules_mxf4"].read(answer("mma_rules_mxf4")) == {
        scales.WITH_OLD: "35",
        scales.OLD_KEPT: "35",
        scales.ENDS: 0.0,
    }


@pytest.mark.parametrize("kind", scales.KINDS, ids=lambda kind: kind.name)
def test_scaled_sums_of_random_numbers_are_right(kind):
    name = f"mma_sums_{kind.name}"
    found, buffers = floats(image(name, "random"))[:, :, :64], given(name, "random")
    for request in range(2):
        data, before = buffers["operands"][request], buffers["before"][request]
        x, y = (numbers(rows(data, at, n), kind.element, kind.packed) for at, n in ((0, 128), (128 * 32, 64)))
        factors = []
        for first, count in ((scales.A_SCALES, 128), (scales.B_SCALES, 64)):
            codes = before[:32, first : first + 8].copy().view(np.uint8).reshape(32, 8, 4)
            some = np.array([codes[r % 32, r // 32, : kind.vectors] for r in range(count)])
            dtype = ml_dtypes.float8_e8m0fnu if kind.ue8m0 else ml_dtypes.float8_e4m3fn
            factors.append(np.repeat(some.view(dtype).astype(float), x.shape[1] // kind.vectors, axis=1))
        with np.errstate(invalid="ignore"):
            exact = (x * factors[0]) @ (y * factors[1]).T + floats(before[:, :64])
            terms = np.abs(x * factors[0]) @ np.abs(y * factors[1]).T + np.abs(floats(before[:, :64]))
            good = np.isfinite(exact)
            assert (np.abs(found[request] - exact) <= 2.0**-19 * terms)[good].all() and good.mean() > 0.5
            assert np.isnan(found[request][~good]).all()


# ---- copies ----


def copied(source, row: int, byte: int) -> int:
    """Word of shared memory at 16 x 8 core matrices with a swizzle."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[source.swizzle]
    across = byte // 16 * source.leading + byte % 16 if span == 16 else byte
    at = source.start + row % 8 * span + row // 8 * source.stride + across
    return (at ^ ((at >> 7) % (span // 16)) << 4) // 4


QUADRANTS = {"64x128b.warpx2::02_13": [(0, 2), (1, 3)], "64x128b.warpx2::01_23": [(0, 1), (2, 3)],
             "32x128b.warpx4": [(0, 1, 2, 3)]}  # fmt: skip


@pytest.mark.parametrize("name", ["tmem_copy_shapes", "tmem_copy_pair"])
def test_copies_of_every_shape(name):
    found = image(name, "all")
    group = 2 if name.endswith("pair") else 1
    for number, source in enumerate(SOURCES):
        wanted, first = np.full((128, 32), BLANK, np.uint32), 0
        for shape, columns in SHAPES.items():
            for row in range(int(shape.partition("x")[0])):
                if shape.startswith("128"):
                    lanes = [row]
                elif shape == "4x256b":
                    lanes = [32 * row]
                else:
                    lanes = [32 * q + row % 32 for q in QUADRANTS[shape][row // 32]]
                for word in range(columns):
                    wanted[lanes, first + word] = copied(source, row, 4 * word)
            first += columns
        for rank in range(group):
            assert (found[group * number + rank] == np.where(wanted == BLANK, BLANK, wanted | rank << 24)).all()


# ---- commits, launch control, TMA ----


def arrivals(name: str) -> dict[str, list[int]]:
    return {case: outputs["found"].tolist() for case, outputs in answer(name).items()}


def test_commits_arrive_where_they_are_sent():
    assert arrivals("commit_own") == {"once": [1, 0, 0, 0], "twice": [0, 0, 0, 2]}
    assert arrivals("commit_per_thread") == {"a whole warp": [0, 32, 0, 0]}
    for name in ("commit_multicast", "commit_multicast_pair"):
        for case, found in arrivals(name).items():
            mask = int(case.split()[-1], 2)
            assert found == [mask >> rank & 1 for rank in range(4)]
    for name in ("commit_named", "commit_named_pair"):
        for case, found in arrivals(name).items():
            assert found == [int(rank == int(case.split()[-1])) for rank in range(4)]
    for case, found in arrivals("commit_peer_bit").items():
        even = int(case.split()[-1]) & ~1
        assert found == [int(rank == even) for rank in range(4)]


def test_work_is_given_once_and_refused_once():
    for name in ("clc_queue", "clc_queue_multicast"):
        [found] = BLACKWELL[name].read(answer(name)).values()
        ran = found.pop("CTAs that ran")
        assert 0 < ran < 24 * 20 * 4
        assert list(found.values()) == [True, True, 0, True, True]
        assert list(found)[-1] == "those that ran are the first"
    for found in answer("clc_refused").values():
        assert (found["found"][:, 0, 0] == 1).all() and (found["found"][:, 0, 1] == 0).all()


def test_words_of_an_answer_are_recognised():
    """Another layout would be told."""
    outputs = answer("clc_queue")
    [case] = outputs
    other = {case: {**outputs[case], "words": outputs[case]["words"][:, [1, 0, 2, 3]]}}
    [line] = BLACKWELL["clc_queue"].explain(outputs, other)
    assert "answers have the layout of the emulator: False; the emulator: True" in line


@pytest.mark.parametrize("name", ["tma_pair_barriers", "tma_group_1_barriers"])
def test_whose_barrier_a_load_signals(name):
    for case, found in BLACKWELL[name].read(answer(name)).items():
        words = case.replace(",", "").split()
        issuer, mask = int(words[1]), int(words[4], 2) if "mask" in case else 0
        named = issuer & ~1 if "cleared" in case else issuer | 1 if "set" in case else issuer
        targets = [rank for rank in range(4) if mask >> rank & 1] or [issuer]
        signalled = [0] * 4
        for rank in targets:
            signalled[named if not mask else rank if "group_1" in name else rank & ~1 | named & 1] += 1
        assert found == {"data in ranks": targets, "boxes signalled by rank": signalled}


def test_four_rows_are_gathered_and_scattered():
    tensor = np.arange(tma.ROWS * tma.COLUMNS).reshape(tma.ROWS, tma.COLUMNS) + 0x1000
    for case in BLACKWELL["tma_four_rows"].cases:
        column, *chosen = case.buffers["corner"][:5].tolist()
        width, fill = case.arguments[0].box[1], 0x7FF7 if "NaN" in case.name else 0
        found = answer("tma_four_rows")[case.name]
        assert found["flags"].tolist() == [1]
        memory = found["memory"].view(np.uint16)
        pitch = max(width, {"none": 0, "32B": 16, "64B": 32, "128B": 64}[case.arguments[0].swizzle])
        mask = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[case.arguments[0].swizzle]
        copy = np.full((tma.ROWS, tma.COLUMNS), tma.UNSTORED)
        for n, row in enumerate(chosen):
            for w in range(width):
                at = 2 * (n * pitch + w)
                at ^= (at >> 7 & mask) << 4
                inside = 0 <= row < tma.ROWS and 0 <= column + w < tma.COLUMNS
                assert memory[at // 2] == (tensor[row, column + w] if inside else fill), case.name
                if inside and min(chosen) >= 0 and column >= 0:
                    copy[row, column + w] = tensor[row, column + w]
        assert (found["copy"].reshape(copy.shape) == copy).all(), case.name


def test_packed_types_signal_the_bytes_of_global_memory():
    for case, found in answer("tma_packed_types").items():
        assert found["flags"].tolist() == [int("payload" in case)]
        size = 8 if case.startswith("b4") else 12
        memory = found["memory"].view(np.uint8)[: 8 * 128].reshape(8, 8, 16)
        swizzled = "128B" in case
        for row in range(8):
            for chunk in range(8):
                first = (8 * row + chunk) * size // 2
                wanted = np.arange(first, first + size // 2, dtype=np.uint16).view(np.uint8)
                assert (memory[row, chunk ^ row if swizzled else chunk, :size] == wanted).all()


# ---- narrow types ----


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Codes of the nearest numbers of a type, ties to the even code; what is too large, and NaN, to the largest."""
    positive = table[: len(table) // 2]
    magnitude = np.where(np.isnan(values), positive[-1], np.minimum(np.abs(values), positive[-1]))
    distance = np.abs(magnitude[:, None] - positive)
    best = distance.min(axis=1, keepdims=True)
    code = np.where(distance == best, np.arange(len(positive)) % 2, 2).argmin(axis=1)
    return code | np.where(np.signbit(values) & ~np.isnan(values), len(positive), 0)


def table_of(exponent_bits: int, fraction_bits: int, bias: int) -> np.ndarray:
    from blackwell_operands import small

    return small(np.arange(1 << 1 + exponent_bits + fraction_bits), exponent_bits, fraction_bits, bias)


NARROW = {"e2m1x2": E2M1, "e2m3x2": table_of(2, 3, 1), "e3m2x2": table_of(3, 2, 3)}


def test_conversions_to_narrow_types():
    for case, outputs in answer("cvt_to_narrow_types").items():
        x = floats(next(c for c in BLACKWELL["cvt_to_narrow_types"].cases if c.name == case).buffers["x"])
        for kind, table in NARROW.items():
            width = 4 if kind == "e2m1x2" else 8
            for relu in ("", ".relu"):
                upper = outputs[f"{relu}.{kind}"] >> width
                wanted = nearest(x, table)
                if relu:
                    wanted = np.where(np.signbit(x) & ~np.isnan(x), 0, wanted)
                keep = ~np.isnan(x)
                assert (upper[keep] == wanted[keep]).all(), (kind, relu)
                assert (outputs[f"{relu}.{kind}"] & (1 << width) - 1 == nearest(np.array([1.5]), table)[0]).all()
        normal = np.isfinite(x) & (np.abs(x) >= 2.0**-126)
        exponent = np.floor(np.log2(np.abs(x[normal]))).astype(int) + 127
        exact = np.abs(x[normal]) == 2.0 ** (exponent - 127)
        assert (outputs["rz.ue8m0x2"][normal] >> 8 == exponent).all()
        assert (outputs["rp.ue8m0x2"][normal] >> 8 == np.minimum(exponent + ~exact, 254)).all()


def test_conversions_from_narrow_types():
    found = answer("cvt_from_narrow_types")["codes"]
    x = BLACKWELL["cvt_from_narrow_types"].cases[0].buffers["x"]
    for kind, table in NARROW.items():
        pair = [x & 15, x >> 4 & 15] if kind == "e2m1x2" else [x & 63, x >> 8 & 63]
        wanted = np.stack([table[p] for p in pair], axis=-1).astype(np.float16)
        assert (found[f"f16x2.{kind}"].view(np.float16).reshape(-1, 2) == wanted).all()
    powers = found["bf16x2.ue8m0x2"].view(ml_dtypes.bfloat16).reshape(-1, 2).astype(float)
    codes = np.stack([x & 255, x >> 8], axis=-1)
    assert (powers[codes < 255] == 2.0 ** (codes[codes < 255].astype(float) - 127)).all()
    assert np.isnan(powers[codes == 255]).all()


def test_pairs_of_f32():
    """Rounding to nearest is NumPy's; other directions are tested with the instructions."""
    found = answer("pairs_of_f32")["random bits"]
    x, y = (BLACKWELL["pairs_of_f32"].cases[0].buffers[name].view(np.float32) for name in "xy")
    with np.errstate(all="ignore"):
        for name, wanted in (("add.rn", x + y), ("mul.rn", x * y)):
            values = found[name].view(np.float32)
            assert (np.isnan(values) == np.isnan(wanted)).all()
            assert (values[~np.isnan(wanted)] == wanted[~np.isnan(wanted)]).all()


def test_minima_and_maxima():
    found = answer("redux_f32")
    [outputs] = found.values()
    data = BLACKWELL["redux_f32"].cases[0].buffers["data"].view(np.float32)
    forms = ["min", "min.NaN", "min.abs", "min.abs.NaN", "max", "max.NaN", "max.abs", "max.abs.NaN"]
    for row, values in enumerate(data):
        for n, form in enumerate(forms):
            some = np.abs(values) if "abs" in form else values
            keep = some[~np.isnan(some)]
            none = ("NaN" in form and len(keep) < 32) or not len(keep)
            wanted = np.nan if none else keep.min() if form.startswith("min") else keep.max()
            got = outputs["found"][row, n].view(np.float32)
            assert np.isnan(got).all() if none else (got == wanted).all(), (row, form)


def test_matrices_of_bytes():
    """As CuTe DSL lays them out."""
    for case, outputs in answer("ldmatrix_of_bytes").items():
        data = next(c for c in BLACKWELL["ldmatrix_of_bytes"].cases if c.name == case).buffers["data"].view(np.uint8)
        row = 0
        for form, registers in (
            ("square8", 2),
            ("square8", 4),
            ("square6", 4),
            ("square4", 2),
            ("flat6", 1),
            ("flat4", 4),
        ):
            bits = int(form[-1])
            for register in range(registers):
                for t in range(32):
                    for e in range(4):
                        if form.startswith("square"):
                            line, at = 16 * (register // 2) + 4 * (t % 4) + e, t // 4 + 8 * (register % 2)
                        else:
                            line, at = 8 * register + t // 4, 4 * (t % 4) + e
                        chunk = int.from_bytes(data[16 * line : 16 * line + 16].tobytes(), "little")
                        byte = int(outputs["found"][row, t]) >> 8 * e & 255
                        assert byte == chunk >> bits * at & (1 << bits) - 1
                row += 1
    found = answer("stmatrix_of_bytes")["all"]["found"]
    for number, matrices in enumerate((1, 2, 4)):
        for m in range(matrices):
            for t in range(32):
                for byte in range(4):
                    line, at = 8 * m + 2 * (t % 4) + byte % 2, t // 4 + 8 * (byte // 2)
                    assert found[512 * number + 16 * line + at] == (4 * (t % 16) + byte + 64 * m) % 256


# ---- what is said of differences ----

SAID = {
    "mma_layout_pair_128": (
        "after",
        (1, 65, 3),
        "CTA rank 1, lane 65, column 3 holds D(0, 9); the emulator has D(65, 19) there",
    ),
    "tmem_load_shapes": ("found", (3, 33), "lane 0, column 0"),
    "tmem_copy_shapes": ("after", (0, 5, 0), "of shared memory"),
    "commit_own": ("found", (2,), "the mbarrier of rank 2 receives 7 arrivals; on the emulator 0"),
    "tmem_alloc_addresses": (
        "found",
        (0, 1),
        "tcgen05.alloc of 64 columns in CTA 0: column 7; the emulator: column 128",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_difference_is_told_in_terms_of_the_question(name):
    buffer, at, said = SAID[name]
    ours = answer(name)
    case = next(iter(ours))
    changed = ours[case][buffer].copy()
    changed[at] = {"mma_layout_pair_128": np.float32(9).view(np.uint32), "tmem_load_shapes": 0}.get(name, 7)
    [line] = BLACKWELL[name].explain(ours, {**ours, case: {**ours[case], buffer: changed}})
    assert line.startswith(f"{case}: ") and said in line and "(1 of " in line
    assert BLACKWELL[name].explain(ours, ours) == []


def test_sums_that_differ_are_counted_in_units():
    ours = answer("mma_sums_f32_bf16_bf16")
    changed = ours["all"]["after"].copy()
    changed[0, 2, 1] += 3
    [line] = BLACKWELL["mma_sums_f32_bf16_bf16"].explain(ours, {"all": {**ours["all"], "after": changed}})
    assert (
        line.startswith("numbers that are normal: 1 of 2048 sums have other bits, at most 3 units")
        and "D(2, 1)" in line
    )


def test_every_answer_of_the_emulator_is_checked_here():
    """Runs last: whoever adds a probe adds what it must answer."""
    for probe in BLACKWELL.values():
        assert probe.modelled or probe.name not in CHECKED
    missing = {probe.name for probe in BLACKWELL.values() if probe.modelled} - CHECKED
    if len(CHECKED) > 80:  # all of this file was run
        assert missing == set()


def test_what_the_emulator_refuses_is_recorded_only():
    """What it could answer would have to be compared, but for what the ISA leaves undefined, and for CTAs that share an
    SM's tensor memory: here each has its own.
    """
    undefined = {"mma_collector_of_another_a", "tmem_neighbours_128", "tmem_neighbours_512"}
    for name, probe in BLACKWELL.items():
        if not probe.modelled and name not in undefined:
            with pytest.raises((EmulatorError, ValueError)):
                emulator.run(replace(probe, cases=probe.cases[-1:]))
