"""The page on what is and is not implemented, made by asking the emulator itself: it cannot be out of date.

Forms of instructions are parsed and looked up as they would be in a kernel. The table of instructions and the rules of
the machine are printed as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from emugpu.emulator import RULES, PtxSyntaxError
from emugpu.emulator.isa import FORMS, NEWEST
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.translate.refusals import problem_of, unimplemented
from emugpu.markdown import table

REFUSALS = (
    (
        "PTX line N: ...",
        "The parser does not know this text: a directive, an operand, a name. The kernel cannot be launched; others of "
        "the file can, by `emugpu run`.",
        "3",
    ),
    (
        "... does not exist on the module's target",
        "The target lacks the instruction; ptxas refuses it, too. Compile for one of the targets that are named.",
        "3",
    ),
    ("... takes N operands", "The number of operands is wrong; ptxas refuses it, too.", "3"),
    (
        "... where a .T is wanted",
        "A register or a number is not of the instruction's type; ptxas refuses it, too.",
        "3",
    ),
    ("... does not have the type .T", "The instruction does not exist with this type; ptxas refuses it, too.", "3"),
    ("PTX for T: the emulated GPUs are ...", "No emulated GPU could run the target's instructions.", "2"),
    (
        "... is not implemented: ...",
        "The emulator lacks it, for this reason. It stops the kernel only when it is executed; `emugpu ptx list` shows "
        "all of them, with lines, before. There is never a silent no-op.",
        "3",
    ),
    ("Fault: ...", "The kernel broke a rule of the machine; the rules are below.", "3"),
    (
        "Deadlock",
        "No warp can run and nothing is in flight: who waits for which barrier, arrivals and bytes is listed.",
        "3",
    ),
    ("Livelock", "Warps only poll what nobody will change any more.", "3"),
    ("LimitExceeded", "`--emulate max-steps=N` or `--timeout` was reached; where the warps are is listed.", "3"),
    (
        "cannot run with several workers",
        "Clusters may depend on one another, or schedules draw from one sequence; leave out `--jobs`.",
        "2",
    ),
    ("LAUNCH.toml: key = value: ...", "The launch file asks for something that cannot be; the rule is named.", "2"),
    ("WRONG RESULT", "Everything ran, and a buffer does not hold what was expected.", "4"),
)
"""What a message begins with or holds, what it means, and the exit code."""


MODULE = """.version {version}
.target {target}
.address_size 64
.global .align 16 .b8 device_words[64];
.const .align 16 .b8 constants[64];
.shared .align 1024 .b8 buf[4096];
.func callee() {{ ret; }}
.visible .entry kernel(.param .u64 out, .param .align 64 .b8 map[128])
{{
.reg .pred %p<8>; .reg .b16 %h<32>; .reg .b32 %r<140>; .reg .b64 %d<32>; .reg .f32 %f<140>; .reg .f64 %e<16>;
.reg .b128 %q<4>; .local .align 16 .b8 frame[64];
{body}
END: ret;
}}
"""
"""A module with one kernel. Its registers are named by what they hold: %p predicates, %h 16 bits, %r 32 bits, %d 64
bits, %f f32, %e f64, %q 128 bits.
"""
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
ISA_COLUMNS = ("instruction", "section", "PTX ISA", "targets", "status")


def targets_of(statement: str) -> tuple[str, ...]:
    """Returns the targets for which the emulator implements a statement in `MODULE`."""
    return tuple(target for target in TARGETS if is_implemented(statement, target))


def is_implemented(statement: str, target: str) -> bool:
    """Returns whether the emulator implements a statement in `MODULE` for a target, which must have it."""
    try:
        module = parse_module(MODULE.format(version=NEWEST, target=target, body=statement))
        kernel = module.kernels["kernel"]
        missing = unimplemented(kernel, module)
    except PtxSyntaxError:
        return False
    return not missing and not any(problem_of(i, target) for i in kernel.instructions)


def coverage_page(forms: Mapping[str, Iterable[str]]) -> str:
    """Returns the page, in Markdown. forms: statements by family."""
    tried = {family: [(form, targets_of(form)) for form in several] for family, several in forms.items()}
    return "\n".join([*_head(tried), *_forms(tried), *_instructions(), *_refusals(), *_rules()]) + "\n"


Tried = Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]
"""By family: forms, each with the targets for which it is implemented."""


def _head(tried: Tried) -> Iterator[str]:
    every = [targets for forms in tried.values() for _, targets in forms]
    yield "# PTX on the emulated GPU: what is and is not implemented"
    yield ""
    yield "Made from the emulator's own table of instructions, by trying each form."
    yield f"{sum(map(bool, every)):,} of {len(every):,} forms that compilers and kernel writers use are implemented."
    yield ""
    counts = [(family, *(str(sum(target in t for _, t in forms)) for target in TARGETS), str(len(forms)))
              for family, forms in tried.items()]  # fmt: skip
    yield from table(("family", *TARGETS, "of"), counts, right={*TARGETS, "of"})


def _forms(tried: Tried) -> Iterator[str]:
    yield ""
    yield "## Forms"
    yield ""
    yield "Registers are named by what they hold: `%h` 16 bits, `%r` 32, `%d` 64, `%q` 128, `%f` f32, `%e` f64."
    for family, forms in tried.items():
        for targets in dict.fromkeys(targets for _, targets in forms):
            yield ""
            yield f"### {family}: {', '.join(targets) or 'not implemented'}"
            yield ""
            yield "```"
            yield from (_shortened(form) for form, known in forms if known == targets)
            yield "```"


def _shortened(statement: str) -> str:
    """Long lists of registers by their ends."""
    return re.sub(r"\{(%\w+), [^{}]{40,}, (%\w+)\}", r"{\1, ..., \2}", statement)


def _instructions() -> Iterator[str]:
    yield ""
    yield "## The instructions of the PTX ISA"
    yield ""
    yield "`emugpu ptx coverage` prints this table. Sections are those of PTX ISA 9.4. A target with an `f` stands for"
    yield "its family: `sm_100f` for `sm_100a`, `sm_103f` and `sm_103a`, too; one without a letter for all later ones."
    yield "Modifiers and operands that are not implemented are refused. A form may be newer than the `.version` of its"
    yield "file; only ptxas refuses that."
    yield ""
    yield from table(ISA_COLUMNS, [(f"`{title}`", *rest) for title, *rest in isa_rows()])


def isa_rows() -> list[tuple[str, ...]]:
    """Returns the table of the ISA as text, with `ISA_COLUMNS`."""
    status = {form: f"refused: {form.refused}" if form.refused else "runs" for form in FORMS}
    return [(form.title, form.section, form.version, form.targets or "all", status[form]) for form in FORMS]


def _refusals() -> Iterator[str]:
    yield ""
    yield "## What a refusal means"
    yield ""
    yield from table(("message", "meaning", "exit code"), REFUSALS, right={"exit code"})


def _rules() -> Iterator[str]:
    yield ""
    yield "## The rules of the machine"
    yield ""
    yield "A breach of an error stops the run. A warning is something that hardware is known to tolerate and compilers"
    yield "to emit; `--emulate strict=true` makes it an error, `--emulate allow=ID` lets it pass."
    yield ""
    breaches = {"error": "an error", "warning": "a warning"}
    rows = [(f"`{rule.id}`", breaches[rule.severity], rule.summary) for rule in RULES.values()]
    yield from table(("id", "a breach is", "rule"), rows)
