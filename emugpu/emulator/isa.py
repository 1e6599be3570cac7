"""The instructions of the PTX ISA as data: where each is described, when it came, who has it, and whether it runs.

``emugpu ptx coverage``, the page on what is implemented, and the refusals of a module are made of this table. Sections
are those of PTX ISA 9.4; versions and targets are from its "PTX ISA Notes", "Target ISA Notes" and table 72. ptxas 13.5
refuses the same forms. What only PTX ISA 9.5 has is from lists of its changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, Vector

NEWEST = "9.5"
"""The newest version of the ISA whose changes are in the table. A file of any version is read."""
SPECIFIC = "sm_100f sm_110f sm_120f"
"""Blackwell with the features of one architecture or of one family."""
TENSOR = "sm_100f sm_110f"
RUBIN = "sm_107f"
GPUS = "several GPUs, and an address that stands for the memory of all of them"
TEXTURES = "textures and surfaces"
STRONG = "the checker knows no strong copies"
ONLY_SYNTAX = "we know its syntax, and not what it does"


class Condition(NamedTuple):
    """What a row asks for besides names and words, and how it is said."""

    text: str
    holds: Callable[[Instruction], bool]


def _having(*words: str) -> Condition:
    return Condition(f"and {' '.join(f'.{word}' for word in words)}", lambda i: any(i.has(word) for word in words))


def _is_sparse(i: Instruction) -> bool:
    return i.modifiers[0].startswith("sp")


def _is_wide(i: Instruction) -> bool:
    return any(isinstance(o, Vector) and len(o.elements) * TYPE_BYTES.get(i.modifiers[-1], 0) == 32 for o in i.operands)


ALWAYS = Condition("", lambda i: True)
SPARSE = Condition("with a sparse A", _is_sparse)
SPARSE_F16 = Condition("with a sparse A and .f16", lambda i: _is_sparse(i) and i.has("f16"))
WIDE = Condition("of 256 bits", _is_wide)
THREE_INPUTS = Condition("with three inputs", lambda i: len(i.operands) == 4)
TO_TF32 = Condition("and .tf32, without .rna", lambda i: i.has("tf32") and not i.has("rna"))
FROM_HALVES = Condition("from .f16x2 and .bf16x2", lambda i: i.modifiers[-1] in ("f16x2", "bf16x2"))
FROM_BF16 = Condition("from .bf16x2", lambda i: i.modifiers[-1] == "bf16x2")
TO_BF16 = Condition("to .bf16x2", lambda i: i.modifiers[-2] == "bf16x2")
K96 = Condition("with K = 96, which the instruction descriptor says", lambda i: False)
TO_THE_CLUSTER = Condition("to .shared::cluster", lambda i: not i.has("shared::cta"))


class Form(NamedTuple):
    """One row: an instruction, a family of them, or some forms of them.

    Attributes:
        names: opcodes, with as many modifiers as tell them apart, separated by blanks.
        section: where the ISA describes it.
        version: the version of the ISA with which it came.
        targets: those that have it: ``sm_90a`` is one architecture, ``sm_100f`` its family (``sm_100a``, ``sm_103a``
            and so on), ``sm_100`` this one and all later ones. Empty: all that are emulated.
        words: the row is about the forms that have one of these modifiers. Empty: about all.
        lacking: why it does not run. Empty: it runs.
        also: a further condition.
    """

    names: str
    section: str
    version: str
    targets: str = ""
    words: str = ""
    lacking: str = ""
    also: Condition = ALWAYS

    @property
    def title(self) -> str:
        words = " ".join(f".{word}" for word in self.words.split())
        shown = f" with {words}" if words and self.also is not WIDE else ""
        return f"{', '.join(self.names.split())}{shown} {self.also.text}".strip()

    @property
    def refused(self) -> str:
        """Returns why it does not run, or an empty string."""
        of_rubin = self.targets in (RUBIN, "sm_107a")
        return "only Rubin has it" if of_rubin else self.lacking

    def name_in(self, words: tuple[str, ...]) -> str:
        """Returns the first of its names with which an instruction of these words begins, or an empty string."""
        written = ".".join((*words, ""))
        return next((name for name in self.names.split() if written.startswith(f"{name}.")), "")

    def word_in(self, modifiers: tuple[str, ...]) -> str:
        """Returns the first of its words that is among an instruction's modifiers, or an empty string."""
        return next((word for word in self.words.split() if word in modifiers), "")

    def is_on(self, target: str) -> bool:
        """Returns whether a target has it (PTX ISA 11.1.2)."""
        return not self.targets or any(_runs(listed, target) for listed in self.targets.split())


def _runs(listed: str, target: str) -> bool:
    """Returns whether what needs one target exists on another one. sm_110 was called sm_101 before PTX ISA 9.0."""
    number = int("".join(filter(str.isdigit, target.replace("101", "110"))))
    least = int("".join(filter(str.isdigit, listed)))
    if listed.endswith("a"):
        return number == least and target.endswith("a")
    if listed.endswith("f"):
        return number >= least and number // 10 == least // 10 and target[-1] in "af"
    return number >= least


FORMS = (  # those of whole instructions first, and of several about one form the narrowest last
    # 9.7.1 integer arithmetic, 9.7.2 with carry
    Form("abs add div mad mad24 max min mul mul24 neg rem sad sub", "9.7.1", "1.0"),
    Form("bfe bfi bfind brev clz popc", "9.7.1", "2.0"),
    Form("dp2a dp4a", "9.7.1", "5.0"),
    Form("fns", "9.7.1", "6.0"),
    Form("bmsk szext", "9.7.1", "7.6"),
    Form("add min max", "9.7.1", "8.0", words="u16x2 s16x2"),
    Form("add", "9.7.1.1", "9.2", "sm_120f", "u32 u16x2 s16x2", also=_having("sat")),
    Form("add sub neg min max", "9.7.1", "9.2", "sm_120f", "u8x4 s8x4"),
    Form("clmad", "9.7.1.5", "9.3"),
    Form("addc madc subc", "9.7.2", "1.2"),
    # 9.7.3 to 9.7.6 floats
    Form("cos ex2 fma lg2 rcp rsqrt sin sqrt", "9.7.3", "1.4"),
    Form("copysign testp", "9.7.3", "2.0"),
    Form("tanh", "9.7.3", "7.0"),
    Form("add sub mul fma", "9.7.3", "8.6", "sm_100", "f32x2"),
    Form("min max", "9.7.3", "8.8", "sm_100", "f32", also=THREE_INPUTS),
    Form("sin cos", "9.7.3", "9.5", words="2pi"),
    Form("abs add ex2 fma max min mul neg sub tanh", "9.7.4", "4.2", words="f16 f16x2 bf16 bf16x2"),
    Form("add sub fma", "9.7.5", "8.6", "sm_100", "f16 bf16", also=_having("f32")),
    Form("add sub mul fma", "9.7.5", "9.4", RUBIN, "f16x2 bf16x2", also=_having("f32x2")),
    Form("add sub mul fma", "9.7.6", "9.4", "sm_100a sm_103a", "e4m3x4 e5m2x4", lacking=ONLY_SYNTAX),
    # 9.7.7 and 9.7.8 comparisons, 9.7.9 logic
    Form("selp set setp slct", "9.7.7", "1.0"),
    Form("set", "9.7.7.1", "9.4", RUBIN, "u8x4 s8x4 u16x2 s16x2"),
    Form("set setp", "9.7.8", "4.2", words="f16 f16x2 bf16 bf16x2"),
    Form("and cnot not or shl shr xor", "9.7.9", "1.0"),
    Form("shf", "9.7.9", "3.1"),
    Form("lop3", "9.7.9", "4.3"),
    # 9.7.10 data movement and conversion
    Form("cvt ld mov st", "9.7.10", "1.0"),
    Form("cvta isspacep ldu prefetch prefetchu prmt", "9.7.10", "2.0"),
    Form("prefetch", "9.7.10.17", "9.4", words="valid_addr", lacking=ONLY_SYNTAX),
    Form("shfl", "9.7.10.6", "6.0"),
    Form("ld st", "9.7.10", "8.8", "sm_100", " ".join(TYPE_BYTES), also=WIDE),
    Form("st.async", "9.7.10.12", "8.1"),
    Form("st.async", "9.7.10.12", "9.2", words="b128"),
    Form("st.async", "9.7.10.12", "8.7", "sm_100", "release", lacking="the asynchronous store to global memory"),
    Form("st.bulk", "9.7.10.14", "8.6", "sm_100"),
    Form("multimem.ld_reduce multimem.st multimem.red", "9.7.10.15", "8.1", lacking=GPUS),
    Form("multimem.st.async multimem.red.async", "9.7.10.13", "9.3", "sm_100", lacking=GPUS),
    Form("multimem.cp", "9.7.10.28.4.4", "9.1", lacking=GPUS),
    Form("applypriority createpolicy discard", "9.7.10", "7.4"),
    Form("applypriority", "9.7.10.18", "9.4", RUBIN, "async"),
    Form("cvt", "9.7.10.24", "7.8", words="e4m3x2 e5m2x2"),
    Form("cvt", "9.7.10.24", "8.6", "sm_100", "satfinite", also=TO_TF32),
    Form("cvt", "9.7.10.24", "8.6", SPECIFIC, "e2m1x2 e2m3x2 e3m2x2 ue8m0x2"),
    Form("cvt", "9.7.10.24", "8.7", "sm_100a sm_103a", "rs", lacking="rounding by random bits"),
    Form("cvt", "9.7.10.24", "9.1", SPECIFIC, "e2m1x2 e2m3x2 e3m2x2", also=FROM_HALVES),
    Form("cvt", "9.7.10.24", "9.1", SPECIFIC, "e4m3x2 e5m2x2", also=FROM_BF16),
    Form("cvt", "9.7.10.24", "9.2", SPECIFIC, "e4m3x2 e5m2x2 e2m1x2 e2m3x2 e3m2x2", also=TO_BF16),
    Form("cvt", "9.7.10.24", "9.1", "sm_100a sm_103a sm_110a sm_120a sm_121a", "s2f6x2", lacking="the type s2f6"),
    Form("cvt", "9.7.10.24", "9.2", SPECIFIC, "scaled::n2::ue8m0"),
    Form("cvt", "9.7.10.24", "9.4", RUBIN, "ue5m3x2 scaled::n1::ue8m0 pzo"),
    Form("cvt.pack", "9.7.10.25", "6.5"),
    Form("getctarank mapa", "9.7.10", "7.8"),
    Form("cp.async", "9.7.10.28.3", "7.0"),
    Form("cp.async.bulk cp.reduce.async.bulk", "9.7.10.28", "8.0"),
    Form("cp.async.bulk", "9.7.10.28.4.1", "8.6", "sm_100", "cp_mask"),
    Form("cp.async.bulk", "9.7.10.28.4.1", "9.2", words="ignore_oob"),
    Form("cp.async.bulk", "9.7.10.28.4", "9.3", words="weak"),
    Form("cp.async.bulk cp.reduce.async.bulk", "9.7.10.28.4", "9.3", words="relaxed", lacking=STRONG),
    Form("cp.async.bulk", "9.7.10.28.4.1", "9.3", f"sm_90a {TENSOR}", "relaxed",
         STRONG, _having("multicast::cluster")),
    Form("cp", "9.7.10.28.5", "8.6", TENSOR, "cta_group::1 cta_group::2 tile::scatter4"),
    Form("cp", "9.7.10.28.5", "8.6", TENSOR, "tile::gather4", also=TO_THE_CLUSTER),
    Form("cp", "9.7.10.28.5", "8.6", "sm_100", "tile::gather4"),
    Form("cp", "9.7.10.28.5", "8.6", TENSOR, "im2col::w im2col::w::128", lacking="these rows of images"),
    Form("cp mbarrier tcgen05", "9.7.10.28", "9.4", RUBIN, "multicast::cluster::32b"),
    Form("cp", "9.7.10.28.5", "9.4", RUBIN, "override::global_address im2col_no_offs::w"),
    Form("cp.async.bulk.wait_group", "9.7.10.28.6", "9.5", words="sync_restrict::proxy::async", lacking=ONLY_SYNTAX),
    Form("tensormap.replace", "9.7.10.29", "8.3", f"sm_90a {SPECIFIC}"),
    Form("tensormap.replace", "9.7.10.29", "8.6", SPECIFIC, "swizzle_atomicity"),
    Form("tensormap.replace tensormap.query", "9.7.10.29", "9.5", f"sm_90a {SPECIFIC}", "alloc_class alloc_class_large",
         lacking=ONLY_SYNTAX),
    Form("spcompress spdecompress", "9.7.10.30", "9.4", "sm_107a"),
    # 9.7.11 fabric, 9.7.12 textures, 9.7.13 surfaces, 9.7.14 control flow
    Form("fabric", "9.7.11", "9.3", "sm_100", lacking="several GPUs"),
    Form("tex txq istypep tld4", "9.7.12", "1.5", lacking=TEXTURES),
    Form("suld sust sured suq", "9.7.13", "1.5", lacking=TEXTURES),
    Form("bra call exit ret", "9.7.14", "1.0"),
    Form("brx", "9.7.14.4", "6.0"),
    # 9.7.15 synchronisation and communication
    Form("bar", "9.7.15.1", "1.0"),
    Form("barrier", "9.7.15.1", "6.0"),
    Form("bar.warp", "9.7.15.2", "6.0"),
    Form("barrier.cluster", "9.7.15.3", "7.8"),
    Form("membar", "9.7.15.4", "1.4"),
    Form("fence", "9.7.15.4", "6.0"),
    Form("fence", "9.7.15.4", "9.3", "sm_100", "generic::fabric fabric::generic fabric::fabric",
         lacking="several GPUs"),
    Form("fence", "9.7.15.4", "9.4", words="sync_restrict::shared::cluster::read", lacking="a fence of reads alone"),
    Form("fence", "9.7.15.4", "9.4", words="alias", also=_having("acquire", "release")),
    Form("fence.alias", "9.7.15.4", "9.5", lacking=ONLY_SYNTAX),
    Form("atom red", "9.7.15", "1.1"),
    Form("red.async", "9.7.15.7", "8.1"),
    Form("vote match", "9.7.15", "6.0"),
    Form("activemask", "9.7.15.12", "6.2"),
    Form("redux", "9.7.15.13", "7.0"),
    Form("redux", "9.7.15.13", "8.6", "sm_100f", "f32"),
    Form("griddepcontrol", "9.7.15.14", "7.8"),
    Form("elect", "9.7.15.15", "8.0"),
    Form("mbarrier", "9.7.15.16", "7.0"),
    Form("mbarrier", "9.7.15.16", "9.3", words="phase_type::primary phase_type::conditional layout::v0 layout::v1"),
    Form("tensormap.cp_fenceproxy", "9.7.15.17", "8.3"),
    Form("clusterlaunchcontrol", "9.7.15.18", "8.6", "sm_100"),
    Form("clusterlaunchcontrol", "9.7.15.18", "8.6", SPECIFIC, "multicast::cluster::all"),
    # 9.7.16 matrices of a warp
    Form("wmma", "9.7.16.4", "6.0"),
    Form("mma", "9.7.16.5", "6.4"),
    Form("ldmatrix", "9.7.16.5.15", "6.5"),
    Form("stmatrix movmatrix", "9.7.16.5", "7.8"),
    Form("ldmatrix", "9.7.16.5.15", "8.6", SPECIFIC, "m16n16 m8n16"),
    Form("stmatrix", "9.7.16.5.16", "8.6", SPECIFIC, "m16n8"),
    Form("mma", "9.7.16.5.14", "8.7", SPECIFIC, "kind::f8f6f4"),
    Form("mma", "9.7.16.5.14", "8.7", "sm_120f", "kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"),
    Form("mma", "9.7.16.5.14", "8.7", "sm_120f", "kind::f8f6f4", also=_having("e3m2", "e2m3", "e2m1")),
    Form("mma", "9.7.16.5.14", "8.7", "sm_120a sm_121a", "kind::mxf4 kind::mxf4nvf4", also=SPARSE),
    Form("mma", "9.7.16.6.3", "8.7", "sm_120f", "e4m3 e5m2", also=SPARSE_F16),
    # 9.7.17 matrices of a warpgroup, 9.7.18 tensor memory
    Form("wgmma", "9.7.17", "8.0", "sm_90a"),
    Form("tcgen05", "9.7.18", "8.6", TENSOR),
    Form("tcgen05.ld.red", "9.7.18.8.3", "8.8", "sm_103f sm_110f"),
    Form("tcgen05.shift", "9.7.18.9", "8.6", "sm_100a sm_103a sm_110a", lacking="rows that move down"),
    Form("tcgen05", "9.7.18.10", "8.6", "sm_100a sm_110a", "kind::i8"),
    Form("tcgen05", "9.7.18.10", "8.6", "sm_100a sm_103a sm_110a", "scale_vec::1X scale_vec::2X scale_vec::4X"),
    Form("tcgen05", "9.7.18.10", "9.4", RUBIN, "kind::ti16 decompress::lut::b spcompress"),
    Form("tcgen05", "9.7.18.7", "9.4", TENSOR, "exclusive", lacking=ONLY_SYNTAX),
    Form("tcgen05.mma", "9.7.18.10.7", "8.8", "sm_103a", also=K96),
    # 9.7.19 the stack, 9.7.20 video, 9.7.21 others
    Form("alloca stackrestore stacksave", "9.7.19", "7.3"),
    Form("vadd vsub vabsdiff vmin vmax vshl vshr vmad vset", "9.7.20.1", "2.0", lacking="scalar video instructions"),
    Form("vadd2 vadd4 vsub2 vsub4 vavrg2 vavrg4 vabsdiff2 vabsdiff4 vmin2 vmin4 vmax2 vmax4 vset2 vset4", "9.7.20.2",
         "3.0"),
    Form("brkpt pmevent trap", "9.7.21", "1.0"),
    Form("nanosleep", "9.7.21.2", "6.3"),
    Form("setmaxnreg", "9.7.21.5", "8.0", f"sm_90a {SPECIFIC}"),
)  # fmt: skip


def forms_of(i: Instruction) -> list[Form]:
    """Returns the rows that are about an instruction."""
    return [form for form in _forms_of(i.opcode, i.modifiers) if form.also.holds(i)]


@cache
def _forms_of(opcode: str, modifiers: tuple[str, ...]) -> tuple[Form, ...]:
    named = (form for form in FORMS if form.name_in((opcode, *modifiers)))
    return tuple(form for form in named if not form.words or form.word_in(modifiers))


def target_problem(i: Instruction, target: str) -> str:
    """Returns why a target lacks an instruction, by the last row that says so; otherwise an empty string."""
    missing = [form for form in forms_of(i) if not form.is_on(target)]
    if not missing:
        return ""
    form = missing[-1]
    what = f"{i.opcode} with .{form.word_in(i.modifiers)}" if form.words else i.opcode
    told = {"a": "{0}a", "f": "{0}a, {0}f"}
    needed = ", ".join(told[t[-1]].format(t[:-1]) if t[-1] in told else f"{t} or later" for t in form.targets.split())
    return f"{what} does not exist on the module's target {target}; it needs {needed}"


def lacking(i: Instruction) -> Form | None:
    """Returns the last row that says why the emulator does not run an instruction, or None."""
    return next((form for form in reversed(forms_of(i)) if form.lacking), None)


def why_not(i: Instruction) -> str:
    """Returns why an instruction that the emulator refuses is not implemented."""
    form = lacking(i)
    if form is None:
        return "this instruction, or one of its modifiers or operands, is not implemented"
    name = form.name_in((i.opcode, *i.modifiers))
    what = f"{name} with .{form.word_in(i.modifiers)}" if form.words else name
    return f"{what} is not implemented: {form.lacking} (PTX ISA {form.section})"
