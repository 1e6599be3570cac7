"""What the parser makes of PTX text: literals, addresses, scopes, variables, parameters (PTX ISA 4, 5 and 11)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_forms import FORMS
from ptx_programs import STORE_R1, launch, run, source

from emugpu.emulator import Module, PtxSyntaxError
from emugpu.emulator.ptx.ast import Immediate, MemoryOperand, Negated, Register, Sink, Symbol, Vector
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.ptx.qualifiers import in_order


def kernel(body: str, scope: str = "", directives: str = "", **options):
    return parse_module(source(body, scope, directives, **options)).kernels["kernel"]


def operands(instruction: str, scope: str = ""):
    return kernel(instruction, scope).instructions[2].operands


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("10", 10), ("010", 8), ("0x1F", 31), ("0XfU", 15), ("0b101", 5), ("-7", -7), ("-0x10", -16),
        ("+5", 5), ("4294967295U", 0xFFFFFFFF),
    ],
)  # fmt: skip
def test_integers_are_decimal_octal_hexadecimal_or_binary(text, value):
    assert operands(f"mov.b32 %r1, {text};")[1] == Immediate(value)
    assert (run(f"mov.b32 %r1, {text};" + STORE_R1 + "ret;") == value % (1 << 32)).all()


def test_floats_are_their_bits():
    assert operands("mov.f32 %r1, 0f3F800000;")[1] == Immediate(0x3F800000, 32)
    assert operands("mov.f64 %rd1, 0d3FF8000000000000;")[1] == Immediate(0x3FF8000000000000, 64)
    out = launch("mov.f64 %rd1, 0d3FF8000000000000; st.global.f64 [%rd0], %rd1; ret;", words=2)
    assert out.device.download(out.out, np.float64, 1)[0] == 1.5


@pytest.mark.parametrize(
    ("text", "offset"), [("", 0), ("+8", 8), (" + 8", 8), ("+-8", -8), ("-8", -8), ("+0x10", 16), ("- 4", -4)]
)
def test_addresses_have_offsets_of_either_sign(text, offset):
    _, address = operands(f"ld.global.b32 %r1, [%rd5{text}];")
    assert isinstance(address, MemoryOperand) and address.base.name == "%rd5" and address.offset == offset
    assert address.coordinates is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5*2", 10), ("(1<<3)|2", 10), ("1 ? 10 : 3", 10), ("(3<4)+9", 10), ("- 10", -10), ("--10", 10), ("~9", -10),
        ("-7/2", -3), ("-7 % 4", 1), ("-1>>28", -1), ("-1U>>60", 15), ("(.u64)-1>>60", 15),
        ("0xffffffffffffffff>>60", 15), ("!0 && (2 == 2)", 1), ("WARP_SZ/2", 16),
    ],
)  # fmt: skip
def test_constant_expressions_have_the_values_of_ptxas(text, value):
    """Read from the machine code that ptxas 13.0 makes of them."""
    assert operands(f"mov.u32 %r1, {text};")[1] == Immediate(value)


def test_a_double_literal_takes_the_type_of_its_instruction():
    assert (run("mov.f32 %r1, 0d3FF8000000000000;" + STORE_R1 + "ret;") == 0x3FC00000).all()
    assert (run("mov.f32 %r1, (.5 + 1.0);" + STORE_R1 + "ret;") == 0x3FC00000).all()


def test_an_index_counts_elements():
    scope = ".shared .align 8 .v2 .b32 pairs[8]; .global .b16 halves[8];"
    assert operands("mov.u32 %r1, pairs[3];", scope)[1] == Symbol("pairs", 12)
    assert operands("mov.u64 %rd1, halves[1+2];", scope)[1] == Symbol("halves", 6)
    assert operands("ld.shared.b32 %r1, pairs[5];", scope)[1] == MemoryOperand(Symbol("pairs"), 20)
    assert operands("ld.param.u32 %r1, out[1];")[1] == MemoryOperand(Symbol("out"), 8)


@pytest.mark.parametrize(
    ("spelt", "plain"),
    [
        ("vote.ballot.sync.b32 %r1, %p1, -1;", "vote.sync.ballot.b32 %r1, %p1, -1;"),
        ("shfl.b32.idx.sync %r1, %r2, 1, 31, -1;", "shfl.sync.idx.b32 %r1, %r2, 1, 31, -1;"),
        ("st.global .relaxed.gpu\n.b32 [%rd1], %r1;", "st.relaxed.gpu.global.b32 [%rd1], %r1;"),
        ("add /* both */ .s32 %r1, %r2, %r3;", "add.s32 %r1, %r2, %r3;"),
        ("@ ! %p1 setp.s32.and.lt %p2, %r1, %r2, ! %p1;", "@!%p1 setp.lt.and.s32 %p2, %r1, %r2, !%p1;"),
        (
            "cp.async.bulk.global.shared::cta.bulk_group .L2::cache_hint [%rd1], [%r1], 16, %rd2;",
            "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [%r1], 16, %rd2;",
        ),
        ("cvt.u32.sat.u64 %r1, %rd1;", "cvt.sat.u32.u64 %r1, %rd1;"),
    ],
)
def test_qualifiers_stand_in_any_order_with_blanks_between_them(spelt, plain):
    found, meant = (kernel(text).instructions[2] for text in (spelt, plain))
    assert (found.opcode, found.modifiers, found.operands) == (meant.opcode, meant.modifiers, meant.operands)
    assert (found.guard, found.guard_negated) == (meant.guard, meant.guard_negated)


def test_types_and_spaces_keep_their_order():
    assert kernel("vabsdiff4.u32.u32.u32.add %r1, %r2, %r3, %r4;").instructions[2].modifiers[-1] == "add"
    assert kernel("cvt.rn.f16.bf16 %rs1, %rs2;").instructions[2].modifiers == ("rn", "f16", "bf16")
    assert kernel("dp4a.s32.u32 %r1, %r2, %r3, %r4;").instructions[2].modifiers == ("s32", "u32")


def test_a_form_of_the_isa_is_in_order():
    """But for the two places of .relu and .cta_group, of which the ISA has both."""
    words = {line.split()[0].rstrip(";") for _, lines in FORMS.values() for line in lines if line[0] not in "{@."}
    moved = {word for word in words if ".".join(in_order(word)) != word}
    assert all("satfinite.relu" in word or "2d.cta_group" in word for word in moved), moved
    assert len(words) > 900


def test_operands_of_every_kind():
    target, value = operands("mov.b64 {%r1, _}, %rd2;")
    assert isinstance(target, Vector) and isinstance(target.elements[1], Sink) and isinstance(value, Register)
    assert isinstance(operands("selp.b32 %r1, 1, 2, !%p1;")[3], Negated)
    address, source_ = operands("cp.async.bulk.tensor.2d.x [%rd1, {%r2, 5}], [%r3];")
    assert [type(c) for c in address.coordinates] == [Register, Immediate] and source_.coordinates is None
    assert operands("mov.b32 %r1, words+12;", ".shared .b8 words[16];")[1] == Symbol("words", 12)
    assert operands("mov.b32 %r1, words + -4;", ".shared .b8 words[16];")[1] == Symbol("words", -4)


def test_guards_may_be_negated():
    plain, negated = kernel("@%p1 mov.b32 %r1, 1; @!%p2 mov.b32 %r1, 2;").instructions[2:]
    assert (plain.guard.name, plain.guard_negated, negated.guard.name, negated.guard_negated) == (
        "%p1", False, "%p2", True
    )  # fmt: skip


def test_comments_keep_the_numbers_of_lines():
    text = "/* one\n two */ mov.b32 %r1, 1; // mov.b32 %q, 2;\nmov.b32 %r2, 3;\n"
    first, second = kernel(text).instructions[2:4]
    assert second.line == first.line + 1 and second.text == "mov.b32 %r2, 3"
    assert first.line == source(text).splitlines().index(" two */ mov.b32 %r1, 1; // mov.b32 %q, 2;") + 1


def test_inner_scopes_have_registers_and_labels_of_their_own():
    body = """
    mov.b32 %r1, 1;
    {
    .reg .b32 %r1, %x;
    mov.b32 %r1, 100;
    mov.b32 %x, 5;
    bra.uni L;
    mov.b32 %x, 6;
    L: add.u32 %r2, %x, %r1;
    }
    { bra.uni L; mov.b32 %r2, 0; L: }
    add.u32 %r1, %r1, %r2;
    """
    assert (run(body + STORE_R1 + "ret;") == 106).all()


@pytest.mark.parametrize("text", ["ld.shared.b32 %r1, [nothing];", "mov.u32 %r1, nothing;"])
def test_a_symbol_that_is_not_declared_is_named_with_its_line(text):
    program = source(f"mov.b32 %r1, 1;\n{text}\nret;")
    line = program[: program.index(text)].count("\n") + 1
    with pytest.raises(PtxSyntaxError) as caught:
        Module.from_text(program).code(None)
    assert str(caught.value) == f"PTX line {line}: {text.rstrip(';')}: unknown symbol 'nothing'"


def test_a_range_of_registers_ends_before_its_number():
    assert kernel("mov.b32 %r63, 1;").instructions[2].operands[0].name == "%r63"
    with pytest.raises(PtxSyntaxError, match="unknown register '%r64'"):
        kernel("mov.b32 %r64, 1;")


def test_the_same_name_is_the_same_register():
    one, two = kernel("add.u32 %r1, %r2, %r1; mov.b32 %r2, %r1;").instructions[2:]
    slots = [r.slot for r in one.operands] + [r.slot for r in two.operands]
    assert slots[0] == slots[2] == slots[4] and slots[1] == slots[3] != slots[0]


@pytest.mark.parametrize(
    ("declaration", "align", "size"),
    [
        (".shared .b8 v", 1, 1),
        (".shared .u64 v", 8, 8),
        (".shared .align 16 .b8 v[40]", 16, 40),
        (".shared .v2 .f32 v", 8, 8),
        (".shared .v4 .u16 v[3]", 8, 24),
        (".extern .shared .align 128 .b8 v[]", 128, 0),
        (".global .attribute(.managed) .u32 v", 4, 4),
    ],
)
def test_variables_have_a_size_and_an_alignment(declaration, align, size):
    variable = parse_module(source("ret;", declaration + ";")).variables["v"]
    assert (variable.align, variable.size, variable.external) == (align, size, ".extern" in declaration)


def test_initial_values_are_little_endian_and_end_in_zeros():
    module = parse_module(source("ret;", ".global .u16 v[4] = {1, -2, 0x304}; .const .b8 w[2] = {255, 7};"))
    assert module.variables["v"].initializer == bytes([1, 0, 0xFE, 0xFF, 4, 3, 0, 0])
    assert module.variables["w"].initializer == bytes([255, 7]) and module.variables["w"].space == "const"


def test_variables_in_shared_memory_lie_behind_one_another_at_their_alignments():
    """a at 0, c at 4, d at 16, and dynamic shared memory at 64; a variable that the kernel does not name takes none."""
    scope = ".shared .b8 a[3]; .shared .b8 never[4000]; .shared .u32 c; .shared .align 16 .b8 d[20];"
    scope += ".extern .shared .align 64 .b8 dynamic[];"
    body = """
    mov.b32 %r1, a; mov.b32 %r2, c; mov.b32 %r3, d+4; mov.b32 %r4, dynamic;
    st.global.v4.b32 [%rd0], {%r1, %r2, %r3, %r4};
    mov.u32 %r5, %total_smem_size;
    st.global.b32 [%rd0+16], %r5;
    st.shared.b32 [c], 77;
    ld.shared.b32 %r6, [%r2];
    st.global.b32 [%rd0+20], %r6;
    ret;
    """
    words = launch(body, words=6, module_scope=scope, dynamic_smem=32).words(6)
    assert words.tolist() == [1024, 1028, 1044, 1088, 1024 + 64 + 32, 77]


def test_parameters_are_aligned_to_their_own_size_unless_they_say_more():
    text = source("ret;").replace("(.param .u64 out", "(.param .u8 a, .param .u64 .ptr .global .align 16 b,"
                                  " .param .align 16 .b8 c[5], .param .f32 d, .param .u64 out")  # fmt: skip
    found = parse_module(text).kernels["kernel"].parameters
    assert [(p.name, p.offset, p.size, p.align, p.is_array) for p in found] == [
        ("a", 0, 1, 1, False),
        ("b", 8, 8, 8, False),
        ("c", 16, 5, 16, True),
        ("d", 24, 4, 4, False),
        ("out", 32, 8, 8, False),
    ]


def test_directives_of_a_kernel_and_what_is_skipped():
    scope = """
    .func (.param .b32 r) helper(.param .b32 x) { .reg .b32 %q; { ret; } }
    .extern .func other(.param .b32 x);
    .section .debug_info { .b8 1, 2 { 3 } }
    .file 1 "a.mojo"
    .loc 1 2 3
    """
    body = '.pragma "nounroll"; ret;'
    found = kernel(body, scope, ".maxntid 64, 2, 1 .minnctapersm 3\n.noreturn")
    assert found.directives == {"maxntid": (64, 2, 1), "minnctapersm": (3,), "noreturn": ()}
    assert [i.opcode for i in found.instructions] == ["ld", "mov", "ret"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (source("ret;").rstrip().removesuffix("}"), "has no closing brace"),
        (source("mov.b32 %r1, 1"), "cannot|unknown|missing"),
        (source("@%q mov.b32 %r1, 1;"), "unknown predicate '%q'"),
        (source("selp.b32 %r1, 1, 2, !%q;"), "unknown predicate '!%q'"),
        (source("ld.global.b32 %r1, [%tid.x];"), "cannot read the address"),
        (source("ld.global.b32 %r1, [%rd1+%rd2];"), "cannot read the address"),
        (source("brx.idx %r1, T;"), "without a .branchtargets table"),
        (source(".reg .v4 .b32 %z;"), "declare a register for each element"),
        (source("ret;", ".global .texref t;"), "there are no textures"),
        (source(".reg .b33 %z;"), "registers of type '.b33'"),
        (source(".align 4;"), "unknown directive '.align'"),
        (source("ret;", ".shared .b33 v;"), "cannot read the variable"),
        (source("ret;", ".section .x { "), "missing '}'"),
        (source("ret;").replace("64\n", "32\n", 1), "only 64-bit addresses"),
        (source("ret;", directives="maxntid 3"), "expected a kernel directive"),
        (source("ret;").replace(".param .u64 out", ".param .u63 out"), "cannot read the parameter"),
    ],
)
def test_text_that_cannot_be_understood(text, message):
    with pytest.raises(PtxSyntaxError, match=message):
        Module.from_text(text)


def test_threads_of_a_warp_that_is_not_full_have_their_own_indexes():
    for block, expected in [((20, 1, 1), [0] * 20), ((4, 5, 1), [n // 4 for n in range(20)])]:
        body = "mov.u32 %r2, %tid.y; mad.lo.u32 %r3, %r2, 4, %r0; mov.b32 %r1, %r2;"
        body += "mov.u32 %r4, %tid.z; add.u32 %r1, %r1, %r4; mov.u32 %r5, %laneid; mov.b32 %r0, %r5;"
        assert launch(body + STORE_R1 + "ret;", threads=block, words=32).words(20).tolist() == expected
