"""What ptxas takes, the parser takes: other spellings of an instruction or a declaration parse to the same thing.

ptxas says which of the spellings are PTX; the plain spelling says what each one means.
"""

# ruff: noqa: E501

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from newest_ptxas import isa_of_ptxas, newest_ptxas
from ptx_forms import FORMS, module

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.ptx.ast import Instruction, ParsedModule
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.ptx.scanner import split
from emugpu.launch.coverage import MODULE, targets_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(newest_ptxas() is None, reason="there is no ptxas"),
]
FIRST = MODULE.partition("{body}")[0].count("\n") + 1
"""The line of a module's first statement."""
ORDERED = re.compile(r"[bsuf]\d+(x\d)?|bf16(x2)?|e\dm\d(x\d)?|L2::evict.*|global|shared.*")
"""Qualifiers whose order among themselves has a meaning: types, state spaces, priorities."""
TOKEN = re.compile(r"\.[\w:]+|[%\w$]+(?:\.[xyz]\b)?|\S")
BLANKS = (" ", "\t", "  ", "/* blank */", " /**/ ")


def rejected(path: Path, text: str, target: str) -> tuple[set[int], str]:
    """Returns the lines that ptxas reports, and its output. -1 stands for a failure that names no line."""
    path.write_text(text, encoding="utf-8")
    command = [str(newest_ptxas()), f"-arch={target}", "-O0", str(path), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    lines = {int(line) for line in re.findall(r"line (\d+); (?:error|fatal)", said)}
    return lines or ({-1} if done.returncode else set()), said


def accepted(path: Path, statements: Iterable[str], target: str) -> list[str]:
    """Returns the statements that ptxas takes. Each has a line of its own."""
    left = list(dict.fromkeys(statements))
    while left:
        lines, said = rejected(path, module(left, target, isa_of_ptxas()), target)
        wrong = {line - FIRST for line in lines}
        if not wrong:
            return left
        if lines == {-1}:  # ptxas itself has failed, in one of them
            return [s for s in left if not rejected(path, module([s], target, isa_of_ptxas()), target)[0]]
        assert wrong <= set(range(len(left))), said
        left = [statement for n, statement in enumerate(left) if n not in wrong]
    return left


def meaning(text: str) -> object:
    """Returns what a module says, without how it is written."""
    parsed: ParsedModule = parse_module(text)
    return [
        (kernel.name, kernel.parameters, kernel.directives, kernel.variables, [_plain(i) for i in kernel.instructions])
        for kernel in parsed.kernels.values()
    ], parsed.variables


def _plain(i: Instruction) -> Instruction:
    return replace(i, line=0, text="", source="")


@cache
def _meaning_of(statement: str, target: str) -> object:
    return meaning(module([statement], target))


def different(spellings: Iterable[tuple[str, str]], target: str) -> Iterator[str]:
    """Returns the spellings that the parser refuses or takes for something else than the plain one."""
    for spelling, plain in spellings:
        try:
            if meaning(module([spelling], target)) != _meaning_of(plain, target):
                yield f"{spelling}    is not    {plain}"
        except PtxSyntaxError as error:
            yield f"{spelling}    {error}"


def statements(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not line.startswith("{") and line.count(";") == 1]


# ---- qualifiers and blanks of every form ----


def orders(statement: str, rng: random.Random) -> Iterator[str]:
    """Returns the statement with its qualifiers in other orders."""
    word, _, rest = statement.partition(" ")
    opcode, *qualifiers = word.split(".")
    for name in range(3):  # the words of a longer name, such as cp.async or mbarrier.try_wait, have their place
        kept, moved = qualifiers[:name], qualifiers[name:]
        tried = permutations(moved) if len(moved) < 5 else (rng.sample(moved, len(moved)) for _ in range(6))
        for order in tried:
            if [q for q in order if ORDERED.fullmatch(q)] == [q for q in moved if ORDERED.fullmatch(q)]:
                yield ".".join((opcode, *kept, *order)) + " " + rest


def blanks(statement: str, rng: random.Random) -> Iterator[str]:
    """Returns the statement with blanks and comments between its words."""
    words = TOKEN.findall(statement)
    opcode = next(n for n, word in enumerate(words) if n and not word.startswith("."))
    for _ in range(4):
        spaced = [word + (rng.choice(BLANKS) if rng.random() < 0.4 else "") for word in words]
        spaced[opcode - 1] += " "
        yield "".join(spaced)


@pytest.mark.parametrize("vary", [orders, blanks])
@pytest.mark.parametrize("family", [name for name, (targets, _) in FORMS.items() if targets])
def test_every_form_may_be_spelt_otherwise(family, vary, tmp_path):
    targets, lines = FORMS[family]
    rng = random.Random(family)
    spelt = {other: plain for plain in statements(lines) for other in vary(plain, rng)}
    taken = accepted(tmp_path / "spelt.ptx", spelt, targets[0])
    if not taken and "PTX ISA" in family:
        pytest.skip("ptxas does not know these forms")
    assert taken
    assert list(different(((other, spelt[other]) for other in taken), targets[0])) == []


# ---- constants ----

CONSTANTS = {"r": "5", "h": "5", "d": "5", "f": "1.0", "e": "1.0", "p": "1"}
"""What may stand for a register, by the letter in its name."""


def constants(statement: str) -> Iterator[str]:
    """Returns the statement with a constant in the place of each register in turn."""
    opcode, _, rest = statement.rstrip(";").partition(" ")
    parts = split(rest)
    for n, part in enumerate(parts):
        if register := re.fullmatch(r"%([rhdfep])\d+", part):
            yield f"{opcode} {', '.join((*parts[:n], CONSTANTS[register[1]], *parts[n + 1 :]))};"


@pytest.mark.parametrize("family", [name for name, (targets, _) in FORMS.items() if targets])
def test_a_constant_may_stand_where_ptxas_takes_one(family, tmp_path):
    [target, *_], lines = FORMS[family]
    plain = [line for line in statements(lines) if line[0] != "@" and target in targets_of(line)]
    # An integer for a factor of 16 bits is no number that means anything.
    tried = [other for line in plain for other in constants(line) if not re.match(r"\w+\.r[nz]\S*f32\.b?f16 ", other)]
    taken = accepted(tmp_path / "constants.ptx", tried, target) if tried else []
    assert [statement for statement in taken if target not in targets_of(statement)] == []


# ---- operands ----

OPERANDS = {
    "ld.global.u32 %r0, [%d1];": (
        "ld.global.u32 %r0, [%d1+0];", "ld.global.u32 %r0, [%d1-0];", "ld.global.u32 %r0, [ %d1 + 0x0 ];",
        "ld.global.u32 %r0, [%d1+0U];", "ld.global.u32 %r0, [%d1+(4-4)];", "ld.global.u32 %r0, %d1;",
        "ld.u32.global %r0, [%d1];", "ld.global.u32 %r0, [(%d1)];",
        "ld.global.u32 %r0, [%d1+00];", "ld.global.u32 %r0, [%d1][0];", "ld.global.u32 %r0, %d1[0];",
    ),
    "ld.global.u32 %r0, [%d1+12];": (
        "ld.global.u32 %r0, [%d1+0xc];", "ld.global.u32 %r0, [%d1+0XC];", "ld.global.u32 %r0, [%d1+014];",
        "ld.global.u32 %r0, [%d1+0b1100];", "ld.global.u32 %r0, [%d1+12U];", "ld.global.u32 %r0, [%d1 + 12];",
        "ld.global.u32 %r0, [%d1+(3*4)];", "ld.global.u32 %r0, [%d1+3*4];", "ld.global.u32 %r0, [12+%d1];",
        "ld.global.u32 %r0, [%d1+8+4];", "ld.global.u32 %r0, [%d1+0xcU];", "ld.global.u32 %r0, [%d1- -12];",
        "ld.global.u32 %r0, [%d1+ +12];", "ld.global.u32 %r0, [%d1--12];", "ld.global.u32 %r0, [%d1+16-4];",
    ),
    "ld.global.u32 %r0, [%d1-12];": (
        "ld.global.u32 %r0, [%d1+-12];", "ld.global.u32 %r0, [%d1 + -12];", "ld.global.u32 %r0, [%d1 +- 12];",
        "ld.global.u32 %r0, [%d1-0xc];", "ld.global.u32 %r0, [%d1+-0xc];", "ld.global.u32 %r0, [%d1 - 12];",
        "ld.global.u32 %r0, [%d1+(-12)];", "ld.global.u32 %r0, [%d1+(4-16)];", "ld.global.u32 %r0, [-12+%d1];",
    ),
    "ld.global.u32 %r0, [device_words+8];": (
        "ld.global.u32 %r0, [device_words + 8];", "ld.global.u32 %r0, [device_words+0x8];",
        "ld.global.u32 %r0, [device_words+010];", "ld.global.u32 %r0, [device_words+(2*4)];",
        "ld.global.u32 %r0, device_words[8];", "ld.global.u32 %r0, [device_words[8]];",
        "ld.global.u32 %r0, [8+device_words];", "ld.global.u32 %r0, [device_words+4+4];",
        "ld.global.u32 %r0, [device_words+8U];", "ld.global.u32 %r0, [device_words- -8];",
        "ld.global.u32 %r0, device_words+8;", "ld.global.u32 %r0, [device_words--8];",
    ),
    "ld.global.u32 %r0, [device_words];": (
        "ld.global.u32 %r0, [device_words+0];", "ld.global.u32 %r0, device_words;", "ld.global.u32 %r0, device_words[0];",
        "ld.global.u32 %r0, [device_words[0]];",
    ),
    "ld.shared.u32 %r0, [1024];": (
        "ld.shared.u32 %r0, [0x400];", "ld.shared.u32 %r0, [1024+0];", "ld.shared.u32 %r0, [1020+4];",
        "ld.shared.u32 %r0, [02000];", "ld.shared.u32 %r0, [(1024)];", "ld.shared.u32 %r0, [1024U];",
    ),
    "mov.u64 %d0, device_words;": (
        "mov.u64 %d0, device_words[0];", "mov.u64 %d0, device_words+0;", "mov.u64 %d0, device_words + 0;",
        "mov.u64 %d0, [device_words];", "mov.u64 %d0, &device_words;", "mov.u64 %d0, device_words [ 0 ];",
        "mov.u64 %d0, (device_words);", "mov.u64 %d0, device_words[0x0];",
    ),
    "mov.u64 %d0, device_words+8;": (
        "mov.u64 %d0, device_words[8];", "mov.u64 %d0, device_words + 8;", "mov.u64 %d0, device_words+0x8;",
        "mov.u64 %d0, device_words+010;", "mov.u64 %d0, device_words+(2*4);", "mov.u64 %d0, device_words+4+4;",
        "mov.u64 %d0, 8+device_words;", "mov.u64 %d0, device_words+8U;", "mov.u64 %d0, device_words- -8;",
        "mov.u64 %d0, device_words[010];", "mov.u64 %d0, device_words[(2*4)];", "mov.u64 %d0, device_words[4+4];",
        "mov.u64 %d0, device_words[4]+4;", "mov.u64 %d0, device_words+12-4;",
    ),
    "mov.u64 %d0, device_words+-8;": (
        "mov.u64 %d0, device_words-8;", "mov.u64 %d0, device_words - 8;", "mov.u64 %d0, device_words+(-8);",
        "mov.u64 %d0, device_words[-8];", "mov.u64 %d0, device_words + -8;", "mov.u64 %d0, device_words-0x8;",
    ),
    "mov.u32 %r0, buf+16;": ("mov.u32 %r0, buf[16];", "mov.u32 %r0, buf + 0x10;"),
    "cvta.global.u64 %d0, device_words+8;": (
        "cvta.global.u64 %d0, device_words[8];", "cvta.global.u64 %d0, device_words + 8;",
        "cvta.u64.global %d0, device_words+8;",
    ),
    "{ .shared .b32 x[8]; mov.u32 %r0, x+12; }": (
        "{ .shared .b32 x[8]; mov.u32 %r0, x[3]; }", "{ .shared .b32 x[8]; mov.u32 %r0, x[2+1]; }",
        "{ .shared .b32 x[8]; mov.u32 %r0, x [ 3 ]; }", "{ .shared.b32 x[(2*4)]; mov.u32 %r0, x[3]; }",
    ),
    "{ .local .v2 .b16 x[8]; st.local.b16 [x+6], %h0; ld.local.b16 %h1, [x+6]; }": (
        "{ .local .v2 .b16 x[8]; st.local.b16 x[3], %h0; ld.local.b16 %h1, x[3]; }",
        "{ .local.v2.b16 x[8]; st.b16.local x[1+2], %h0; ld.local.b16 %h1, [x+6]; }",
        "{ .local .v2 .b16 x[010]; st.local.b16 x[0x3], %h0; ld.local.b16 %h1, [x+6]; }",
    ),
    "{ .shared .align 8 .b8 x[12]; .shared .f32 y, z[2][3]; mov.u32 %r0, z; }": (
        "{ .shared .align 8 .b8 x[12]; .shared .f32 y,z[2][3]; mov.u32 %r0, z; }",
        "{ .shared.align 8.b8 x[12]; .shared.f32 y , z [ 2 ] [ 3 ]; mov.u32 %r0, z; }",
        "{ .shared .b8 .align 8 x[12]; .shared .f32 y, z[2][3]; mov.u32 %r0, z; }",
        "{ .shared .align 8 .b8 x[0xc]; .shared .f32 y, z[02][3]; mov.u32 %r0, z; }",
        "{ .shared .align (4*2) .b8 x[3*4]; .shared .f32 y, z[(1+1)][3]; mov.u32 %r0, z; }",
    ),
    "ld.param.u64 %d0, [map+8];": ("ld.param.u64 %d0, map[8];", "ld.u64.param %d0, [map + 010];"),
    "mov.u32 %r0, 10;": (
        "mov.u32 %r0, 0xa;", "mov.u32 %r0, 0XA;", "mov.u32 %r0, 012;", "mov.u32 %r0, 0b1010;", "mov.u32 %r0, 10U;",
        "mov.u32 %r0, 0xAU;", "mov.u32 %r0, +10;", "mov.u32 %r0, (10);", "mov.u32 %r0, (5*2);", "mov.u32 %r0, 5*2;",
        "mov.u32 %r0, (1<<3)|2;", "mov.u32 %r0, ((1<<3)|2);", "mov.u32 %r0, (1 ? 10 : 3);", "mov.u32 %r0, 1?10:3;",
        "mov.u32 %r0, (3<4)*10;", "mov.u32 %r0, (.u32)10;", "mov.u32 %r0, (!0)*10;", "mov.u32 %r0, 7+3;",
        "mov.u32 %r0, 20/2;", "mov.u32 %r0, 13-3;", "mov.u32 %r0, 26%16;", "mov.u32 %r0, ~-11;", "mov.u32 %r0, ~(-11);",
        "mov.u32 %r0, (1&&1)*10;", "mov.u32 %r0, 012U;", "mov.u32 %r0, 0B1010;", "mov.u32 %r0, (0||0)+10;",
        "mov.u32 %r0, (4==4)*10;", "mov.u32 %r0, (.s64)10;", "mov.u32 %r0, 40>>2;", "mov.u32 %r0, 5<<1;",
        "mov.u32 %r0, 0xf&0xa;", "mov.u32 %r0, 8^2;", "mov.u32 %r0, 10u;", "mov.u32 %r0, --10;", "mov.u32 %r0, - -10;", "mov.u32 %r0, (-7%4)*10;", "mov.u32 {%r0}, 10;", "mov.u32 %r0, {10};",
    ),
    "mov.u32 %r0, -10;": (
        "mov.u32 %r0, - 10;", "mov.u32 %r0, -0xa;", "mov.u32 %r0, -(10);", "mov.u32 %r0, -10U;", "mov.u32 %r0, -012;",
        "mov.u32 %r0, 0-10;", "mov.u32 %r0, (-10);", "mov.u32 %r0, ~9;",
    ),
    "mov.f32 %f0, 0f3F800000;": (
        "mov.f32 %f0, 0F3f800000;", "mov.f32 %f0, 0x3f800000;", "mov.f32 %f0, (0f3F800000);",
    ),
    "mov.f32 %f0, 1.0;": (
        "mov.f32 %f0, 1.;", "mov.f32 %f0, 1e0;", "mov.f32 %f0, 1.0e0;", "mov.f32 %f0, 10.0e-1;", "mov.f32 %f0, 0.1E+1;",
        "mov.f32 %f0, +1.0;", "mov.f32 %f0, (1.0);", "mov.f32 %f0, .5+.5;", "mov.f32 %f0, (0.5*2.0);", "mov.f32 %f0, 1;",
        "mov.f32 %f0, 1.0f;", "mov.f32 %f0, 2.0/2.0;", "mov.f32 %f0, 0d3FF0000000000000;", "mov.f32 %f0, 1E0;",
    ),
    "mov.f32 %f0, -1.5;": ("mov.f32 %f0, - 1.5;", "mov.f32 %f0, -1.5e0;", "mov.f32 %f0, -(1.5);", "mov.f32 %f0, -15e-1;"),
    "add.f32 %f0, %f1, -0f3F800000;": ("add.f32 %f0, %f1, - 0f3F800000;", "add.f32 %f0, %f1, -0F3F800000;"),
    "mov.f64 %e0, 0d3FF0000000000000;": ("mov.f64 %e0, 0D3ff0000000000000;",),
    "@%p0 add.u32 %r0, %r1, %r2;": (
        "@ %p0 add.u32 %r0, %r1, %r2;", "@%p0\tadd.u32 %r0, %r1, %r2;", "@ %p0 add .u32 %r0,%r1,%r2 ;",
        "@%p0 add.u32 %r0 , %r1 , %r2;", "@/**/%p0/**/add.u32 %r0, %r1, %r2;", "@(%p0) add.u32 %r0, %r1, %r2;",
    ),
    "@!%p0 add.u32 %r0, %r1, %r2;": (
        "@ !%p0 add.u32 %r0, %r1, %r2;", "@! %p0 add.u32 %r0, %r1, %r2;", "@ ! %p0 add.u32 %r0, %r1, %r2;",
        "@!/**/%p0 add.u32 %r0, %r1, %r2;",
    ),
    "selp.u32 %r0, %r1, %r2, %p0;": ("selp.u32 %r0,%r1,%r2,%p0;", "selp.u32 %r0, %r1, %r2, %p0 ;"),
    "setp.eq.and.s32 %p0|%p1, %r0, %r1, !%p2;": (
        "setp.eq.and.s32 %p0 | %p1, %r0, %r1, !%p2;", "setp.eq.and.s32 %p0|%p1, %r0, %r1, ! %p2;",
        "setp.and.eq.s32 %p0|%p1, %r0, %r1, !%p2;", "setp.s32.eq.and %p0 |%p1, %r0, %r1, !%p2;",
    ),
    "mov.b64 %d0, {%r0, %r1};": ("mov.b64 %d0, { %r0 , %r1 };", "mov.b64 %d0,{%r0,%r1};", "mov.u64 %d0, {%r0, %r1};"),
    "mov.b64 {%r0, _}, %d0;": ("mov.b64 { %r0 , _ }, %d0;", "mov.b64 {%r0,_},%d0;"),
    "ld.global.v2.u32 {%r0, %r1}, [%d1];": (
        "ld.v2.global.u32 {%r0, %r1}, [%d1];", "ld.global.u32.v2 {%r0, %r1}, [%d1];", "ld.global.v2.u32 { %r0,%r1 }, [ %d1 ];",
    ),
    "bra END;": ("bra  END;", "bra\tEND ;", "bra END/**/;"),
    "bra.uni END;": ("bra .uni END;", "bra.uni  END;"),
    "bar.sync 0;": ("bar .sync 0;", "bar.sync 0x0;", "bar.sync (0);"),
    "ret;": ("ret ;", "ret/**/;"),
    "L1: add.u32 %r0, %r1, %r2;": (
        "L1 : add.u32 %r0, %r1, %r2;", "L1:add.u32 %r0, %r1, %r2;", "L1:L2: add.u32 %r0, %r1, %r2;", "$L1: add.u32 %r0, %r1, %r2;",
        "_L1: add.u32 %r0, %r1, %r2;", "%L1: add.u32 %r0, %r1, %r2;", "L1/**/:/**/add.u32 %r0, %r1, %r2;",
    ),
    "{ .reg .u32 a; mov.u32 a, 1; }": (
        "{ .reg.u32 a; mov.u32 a, 1; }", "{.reg .u32 a;mov.u32 a,1;}", "{ .reg .u32 a ; mov.u32 a, 1 ; }", "{ { .reg .u32 a; mov.u32 a, 1; } }",
        "{ .reg .u32 a; ; mov.u32 a, 1; }", "{ .reg/**/.u32/**/a; mov.u32 a, 1; }",
    ),
    "{ .reg .u32 a0, b; mov.u32 a0, 1; mov.u32 b, 2; }": (
        "{ .reg .u32 a0,b; mov.u32 a0, 1; mov.u32 b, 2; }", "{ .reg .u32 a0 , b ; mov.u32 a0, 1; mov.u32 b, 2; }",
    ),
    "{ .reg .u32 a<2>; mov.u32 a1, 1; }": (
        "{ .reg .u32 a< 2 >; mov.u32 a1, 1; }", "{ .reg .u32 a <2>; mov.u32 a1, 1; }", "{ .reg.u32 a<2>; mov.u32 a1, 1; }",
        "{ .reg .u32 a<0x2>; mov.u32 a1, 1; }", "{ .reg .u32 a<02>; mov.u32 a1, 1; }", "{ .reg .u32 a<(1+1)>; mov.u32 a1, 1; }",
    ),
}  # fmt: skip
"""Plain spellings, and others of the same. Those that ptxas refuses are not looked at."""


HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
KERNEL = HEAD + ".visible .entry k(.param .u64 a, .param .align 8 .b8 s[16])\n.maxntid 32, 1, 1\n{ ret; }"
MODULES = {
    KERNEL: (
        KERNEL.replace(".param .u64 a", ".param.u64 a"),
        KERNEL.replace(".param .u64 a", ".param .u64 .ptr .global .align 16 a"), KERNEL.replace("32, 1, 1", "0x20, 1, 1"),
        KERNEL.replace(".param .u64 a", ".param .u64 .ptr .align 1 a"), KERNEL.replace("s[16]", "s [ 16 ]"),
        KERNEL.replace("s[16]", "s[0x10]"), KERNEL.replace("s[16]", "s[(8*2)]"), KERNEL.replace("s[16]", "s[4*4]"),
        KERNEL.replace("s[16]", "s[020]"), KERNEL.replace(".align 8 .b8", ".b8 .align 8"), KERNEL.replace("{ ret; }", "{ret;}"),
        KERNEL.replace("{ ret; }", "{\n// nothing\nret /* now */ ;\n}"), KERNEL.replace(".visible .entry", ".entry"),
        KERNEL.replace(".visible .entry", ".visible.entry"), KERNEL.replace(".visible .entry", ".weak .entry"),
        KERNEL.replace("9.0", "9.0 // nine"),
        KERNEL.replace("\n.address_size 64", ""), KERNEL.replace("sm_90a", "sm_90a,texmode_independent"),
        KERNEL.replace("\n.target", " .target"), KERNEL.replace("64\n", "64 "), KERNEL.replace("\n", "\r\n"),
        KERNEL.replace("{ ret; }", "{ }"), KERNEL.replace("{ ret; }", "{ ret; }\n.section .debug_x { .b8 1,2\n.b32 3 }"),
    ),
    HEAD + ".global .align 4 .u32 g[4] = {1, 2, 3, 0};\n.entry k() { ret; }": (
        HEAD + ".global .align 4 .u32 g[4] = {1, 2, 3};\n.entry k() { ret; }",
        HEAD + ".global .u32 g[] = {1,2,3,0};\n.entry k() { ret; }", HEAD + ".global .u32 g[4] = { 0x1, 02, (1+2) };\n.entry k() { ret; }",
        HEAD + ".visible .global .u32 g[4] = {1, 2, 3};\n.entry k() { ret; }", HEAD + ".global.u32 g[4]={1,2,3};\n.entry k(){ret;}",
        HEAD + ".global .u32 g [ 4 ] = { 1 , 1+1 , 3U };\n.entry k() { ret; }", HEAD + ".weak .global .u32 g[4] = {1, 2, 3};\n.entry k() { ret; }",
        HEAD + ".global .u32 .align 4 g[4] = {1, 2, 3};\n.entry k() { ret; }", HEAD + ".global .u32 g[4] = {1, 2, 3, };\n.entry k() { ret; }",
        HEAD + ".global .u32 g[(2*2)] = {1, 2, 3};\n.entry k() { ret; }", HEAD + ".global .u32 g[4] = {1, 2, 3, 0};\n.entry k { ret; }",
    ),
    HEAD + ".global .f32 f[2] = {0f3F800000, 0fBF800000};\n.entry k() { ret; }": (
        HEAD + ".global .f32 f[2] = {1.0, -1.0};\n.entry k() { ret; }", HEAD + ".global .f32 f[2] = {0d3FF0000000000000, -1e0};\n.entry k() { ret; }",
        HEAD + ".global .f32 f[] = {.5+.5, - 1.0};\n.entry k() { ret; }", HEAD + ".global .f32 f[2] = {(1.0), -(1.0)};\n.entry k() { ret; }",
    ),
    HEAD + ".global .u32 a[4];\n.global .u64 p[2] = {a, generic(a)+8};\n.entry k() { ret; }": (
        HEAD + ".global .u32 a[4];\n.global .u64 p[2] = {a+0, generic(a) + 8};\n.entry k() { ret; }",
        HEAD + ".global .u32 a[4];\n.global .u64 p[2] = {a, generic(a)+0x8};\n.entry k() { ret; }",
        HEAD + ".global .u32 a[4];\n.global .u64 p[2] = {a, generic ( a ) + (4*2)};\n.entry k() { ret; }",
        HEAD + ".global .u32 a[4];\n.global .u64 p[2] = {a[0], generic(a[2])};\n.entry k() { ret; }",
    ),
}  # fmt: skip
"""Whole modules, and others that say the same."""


def test_every_declaration_may_be_spelt_otherwise(tmp_path):
    wrong, looked_at = [], 0
    for plain, others in MODULES.items():
        for other in others:
            if rejected(tmp_path / "module.ptx", other, "sm_90a")[0]:
                continue
            looked_at += 1
            try:
                if meaning(other) != meaning(plain):
                    wrong.append(other)
            except PtxSyntaxError as error:
                wrong.append(f"{other}\n{error}")
    assert looked_at > 25
    assert wrong == []


def test_every_operand_may_be_spelt_otherwise(tmp_path):
    spelt = {other: plain for plain, others in OPERANDS.items() for other in others}
    taken = [other for other in spelt if not rejected(tmp_path / "spelt.ptx", module([other], "sm_90a"), "sm_90a")[0]]
    assert len(taken) > len(spelt) / 2
    assert list(different(((other, spelt[other]) for other in taken), "sm_90a")) == []
