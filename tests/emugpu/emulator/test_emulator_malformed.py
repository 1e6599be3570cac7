"""PTX that is damaged at random, or that ptxas refuses: errors with a line, and never a traceback."""

from __future__ import annotations

import operator
import random
import re
from pathlib import Path

import pytest
from ptx_programs import STORE_R1, launch, run, source

from emugpu.emulator import Device, EmulatorError, Fault, Module, PtxSyntaxError
from emugpu.emulator.instructions.operations import FUNCTIONS

FILES = sorted(p for p in (Path(__file__).parents[2] / "data").rglob("*.ptx") if p.stat().st_size < 12_000)
TOKEN = re.compile(r"[%.\w$]+|[^\s\w]")
MODIFIERS = ("", "to", "b8", "u64", "f16x2", "wide", "b128", "pred", "x", "cc", "v4", "shared", "global", "param")
OPERANDS = (
    "99999999999999999999", "-1", "0", "1.5", "0f3F80", "0x", "_", "%r99999", "%tid.x", "{%r1,%r2}", "[%r1]", "a+4",
)  # fmt: skip


def damaged(text: str, rng: random.Random) -> str:
    """The text with one token or line changed, now and then with more."""
    lines = text.split("\n")
    written = [n for n, line in enumerate(lines) if TOKEN.search(line)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        n, other = rng.choice(written), rng.choice(written)
        line = lines[n]
        tokens = list(TOKEN.finditer(line)) or [re.match("", line)]
        start, end = rng.choice(tokens).span()
        words = line[start:end].split(".")
        words[rng.randrange(len(words))] = rng.choice(MODIFIERS)
        cut = rng.randrange(len(line) + 1)
        lines[n] = rng.choice(
            (
                line[:start] + line[end:],
                line[:start] + rng.choice(TOKEN.findall(lines[other]) or [""]) + line[end:],
                line[:start] + ".".join(words) + line[end:],
                line[:start] + rng.choice(OPERANDS) + line[end:],
                line[:cut] + rng.choice('{}[]();,.%@!|<>+-_0x"') + line[cut:],
                line[:cut],
                lines[other],
                "",
            )
        )
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_are_refused_or_translated(seed):
    rng = random.Random(seed)
    refused = 0
    for _ in range(25):
        text = damaged(rng.choice(FILES).read_text(), rng)
        try:
            module = Module.from_text(text)
            for entry in module.entries:
                module.code(entry)
        except EmulatorError as error:
            refused += 1
            assert str(error)
    assert refused > 5


@pytest.mark.parametrize("form", ["cvta.to.u64 %rd1, %rd2;", "cvta.u64 %rd1, %rd2;", "cvta.to.x.u64 %rd1, %rd2;"])
def test_a_broken_cvta_is_a_fault_with_its_line(form):
    with pytest.raises(Fault, match=r"(?s)PTX line \d+: cvta.*not implemented"):
        launch(f"mov.b64 %rd2, 0; {form} ret;")


def test_a_parameter_without_an_alignment_is_refused():
    text = source("ret;").replace(".param .u64 out", ".param .align 0 .u64 out")
    assert ".align 0" in text
    with pytest.raises(PtxSyntaxError, match=r"PTX line \d+: \.align 0: must be a power of two"):
        Module.from_text(text)


def test_what_an_instruction_cannot_compute_is_a_fault_with_its_line(monkeypatch):
    monkeypatch.setitem(FUNCTIONS, "popcount", operator.getitem)
    said = r"(?s)PTX line \d+: popc.*operands are not implemented \(TypeError: 'int' object is not subscriptable\)"
    body, device = f"mov.b32 %r2, 3; popc.b32 %r1, %r2; {STORE_R1} ret;", Device()
    with pytest.raises(Fault, match=said):
        device.launch(Module.from_text(source(body)), grid=1, block=32, arguments=[device.alloc(128)])
    monkeypatch.undo()
    assert (run(body) == 2).all(), "no later launch of this text has the fault"
    monkeypatch.undo()
    assert (run(body + STORE_R1 + "ret;") == 2).all()
    launch(f"{body} ret;")
