"""Types of operands are checked when the PTX is read, as ptxas does it (PTX ISA 9.2, 9.4)."""

from __future__ import annotations

import pytest
from newest_ptxas import newest_ptxas
from ptx_types import FIRST_LINE, conversions, forms, module, refused_by_ptxas

from emugpu.emulator import Module, PtxSyntaxError
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.ptx.types import type_problem

needs_ptxas = pytest.mark.skipif(newest_ptxas() is None, reason="there is no ptxas")

REFUSED = {
    "mov.u32 %u32_0, %b64_1;": "register %b64_1 is a .b64, where a .u32 is wanted",
    "mov.u32 %f32_0, %u32_1;": "register %f32_0 is a .f32, where a .u32 is wanted",
    "mov.u64 %u64_0, %tid.x;": "%tid.x cannot stand where a .u64 is wanted",
    "mov.b64 %b64_0, {%b16_0, %b16_1};": "register %b16_0 is a .b16, of which 2 are no .b64",
    "shl.u32 %u32_0, %u32_1, 1;": "shl does not have the type .u32; it has .b16, .b32, .b64",
    "and.u32 %b32_0, %b32_1, %b32_2;": "and does not have the type .u32; it has .pred, .b16, .b32, .b64",
    "max.u32.s32 %u32_0, %u32_1, %u32_2;": "max does not have the type .u32.s32",
    "mul.wide.b8 %u64_0, %u32_1, %u32_2;": "mul does not have the type .b8; it has .u16, .s16, .u32, .s32",
    "cvt.u32.u64 %u32_0, %b32_1;": "register %b32_1 is a .b32, where a .u64 is wanted",
    "cvt.u32.pred %u32_0, %pred_1;": "cvt does not have the type .pred",
    "cvt.b32.u64 %b32_0, %u64_1;": "cvt does not have the type .b32",
    "selp.b32 %b32_0, %b32_1, %b32_2, %b32_3;": "register %b32_3 is a .b32, where a .pred is wanted",
    "add.s32 %s32_0, %s32_1, 1.5;": "a floating-point number stands where a .s32 is wanted",
    "add.f32 %f32_0, %f32_1, 1;": "an integer stands where a .f32 is wanted",
    "add.u64 %b32_0, %b32_1, %b32_2;": "register %b32_0 is a .b32, where a .u64 is wanted",
    "ld.global.f32 %u32_1, [%u64_0];": "register %u32_1 is a .u32, where a .f32 is wanted",
    "ld.global.v2.u32 {%u32_1, %b16_2}, [%u64_0];": "register %b16_2 is a .b16, where a .u32 is wanted",
    "st.global.u64 [%u64_0], %u32_1;": "register %u32_1 is a .u32, where a .u64 is wanted",
    "setp.lt.u32 %b32_0, %u32_1, %u32_2;": "register %b32_0 is a .b32, where a .pred is wanted",
}
TAKEN = [
    "mov.b32 %f16x2_0, %u32_1;",
    "mov.b32 %b32_0, 0f3F800000;",
    "mov.b64 %b64_0, {%f32_0, %f32_1};",
    "mov.u32 %b32_0, %tid.x;",
    "add.f32 %b32_0, %f32_1, %b32_2;",
    "add.u32 %s32_0, %b32_1, %u32_2;",
    "fma.rn.f32.f16 %f32_0, %f16_1, %b16_2, %f32_3;",
    "ld.global.u8 %b64_0, [%u64_1];",
    "ld.global.f32 %b64_0, [%u64_1];",
    "st.global.b8 [%u64_1], %f32_0;",
    "cvt.u64.u8 %u64_0, %b32_1;",
    "cvt.rn.f16x2.f32 %b32_0, %f32_1, %f32_2;",
    "mov.u64 %u64_0, %gridid;",
    "mov.u16 %u16_0, %tid.x;",
    "mov.b64 %b64_0, %globaltimer;",
    "prmt.b32.f4e %b32_0, %b32_1, %b32_2, %b32_3;",
    "mad.wide.u32 %b64_0, %u32_1, 4, %u64_2;",
    "setp.lt.and.s32 %pred_0|%pred_1, %s32_0, -1, !%pred_2;",
]


@pytest.mark.parametrize("form", REFUSED)
def test_what_ptxas_refuses_is_refused_with_its_line(form):
    with pytest.raises(PtxSyntaxError) as error:
        Module.from_text(module(["mov.b32 %b32_0, 1;", form]))
    assert str(error.value).startswith(f"PTX line {FIRST_LINE + 1}: {form[:-1]}\n") and REFUSED[form] in str(
        error.value
    )


def test_what_ptxas_takes_is_taken():
    Module.from_text(module(TAKEN))


@needs_ptxas
def test_ptxas_is_of_the_same_opinion(tmp_path):
    assert set(refused_by_ptxas([*REFUSED, *TAKEN], tmp_path)) == set(REFUSED)


@pytest.mark.thorough
@needs_ptxas
@pytest.mark.parametrize("made", [forms, conversions])
def test_of_every_type_of_every_operand_what_ptxas_refuses_and_nothing_else_is_refused(made, tmp_path):
    lines = list(dict.fromkeys(made()))
    assert len(lines) > 10_000
    refused = refused_by_ptxas(lines, tmp_path)
    read = parse_module(module(lines)).kernels["kernel"].instructions
    wrong = []
    for line, i in zip(lines, read, strict=False):
        why, problem = refused.get(line, ""), type_problem(i)
        if "mismatch" in why or "Unexpected instruction types" in why or not why:
            wrong += [(line, why, problem)] if bool(why) != bool(problem) else []
    assert wrong == []
