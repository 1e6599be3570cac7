"""The forms that are said to be implemented: ptxas accepts each one, and each one is translated."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from newest_ptxas import isa_of_ptxas, newest_ptxas
from ptx_forms import FORMS, LACKING, RUBIN, module

from emugpu.emulator.device import Module
from emugpu.emulator.instructions.table import TABLE
from emugpu.emulator.isa import FORMS as ISA
from emugpu.emulator.isa import K96, NEWEST, Form, forms_of, target_problem, why_not
from emugpu.emulator.ptx.ast import Instruction
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.translate.refusals import problem_of
from emugpu.launch.coverage import is_implemented
from emugpu.paths import ROOT

FAMILIES = [(name, target) for name, (targets, _) in FORMS.items() for target in targets]


@pytest.mark.parametrize(("family", "target"), FAMILIES)
def test_every_form_is_translated(family, target):
    lines = FORMS[family][1]
    code = Module.from_text(module(lines, target)).code("kernel")
    refused = [code.sites[n].text for n in sorted({int(i) for i in _unsupported(code)})]
    assert refused == []


def _unsupported(code) -> list[int]:
    return [
        code.instruction_at[number]
        for number, line in enumerate(code.source.splitlines())
        if line.strip().startswith("unsupported(")
    ]


def parsed(statement: str, target: str = "sm_100a") -> Instruction:
    return parse_module(module([statement], target)).kernels["kernel"].instructions[0]


def rows_of(statement: str) -> list[Form]:
    """The rows about each instruction of a statement."""
    instructions = parse_module(module([statement], "sm_100a")).kernels["kernel"].instructions[:-1]
    return [row for i in instructions for row in forms_of(i)]


def test_each_row_of_the_isa_says_what_its_forms_do():
    """A row that runs has an implemented form, and each implemented form a family; a refused row has a refused form."""
    running, refused = set(), set()
    for _, forms in FORMS.values():
        for form in forms:
            rows = rows_of(form)
            assert any(not row.words for row in rows) or form.startswith((".pragma", "ret", "exit")), form
            running.update(rows)
    for form in (*LACKING, *RUBIN):
        assert not is_implemented(form, "sm_103a"), form
        refused.update(row for row in rows_of(form) if row.refused)
    assert [row.title for row in ISA if not row.refused and row.also is not K96 and row not in running] == []
    assert [row.title for row in ISA if row.refused and row not in refused] == []
    assert [row.title for row in running if row.refused] == []


def test_every_instruction_of_the_emulator_is_in_a_family():
    families = [name for row in ISA if not row.words for name in row.names.split()]
    assert [name for name in TABLE if not any(f"{name}.".startswith(f"{family}.") for family in families)] == []


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "multimem.red.global.add.f32 [%d1], %f0;",
            "multimem.red is not implemented: several GPUs, and an address that stands for the memory of all of them "
            "(PTX ISA 9.7.10.15)",
        ),
        (
            "multimem.red.async.release.sys.global.add.u32 [%d1], %r0;",
            "multimem.red.async is not implemented: several GPUs, and an address that stands for the memory of all of "
            "them (PTX ISA 9.7.10.13)",
        ),
        (
            "cp.async.bulk.relaxed.gpu.global.shared::cta.bulk_group.b128 [%d1], [%r1], 64;",
            "cp.async.bulk with .relaxed is not implemented: the checker knows no strong copies (PTX ISA 9.7.10.28.4)",
        ),
        ("fabric.wait.sync_restrict::reads;", "fabric is not implemented: several GPUs (PTX ISA 9.7.11)"),
        (
            "fence.alias.sync_restrict::read.release.sys;",
            "fence.alias is not implemented: we know its syntax, and not what it does (PTX ISA 9.7.15.4)",
        ),
        ("frobnicate %r1;", "this instruction, or one of its modifiers or operands, is not implemented"),
    ],
)
def test_a_refusal_says_why(statement, why):
    assert why_not(parsed(statement)) == why


def test_what_the_emulator_lacks_is_no_fault_of_the_program():
    """ptxas takes these forms, so their operands and types are not wrong: only a launch that executes one ends."""
    for statement in LACKING:
        i = parsed(statement, "sm_103a")
        assert problem_of(i, "sm_103a") == "" and " is not implemented: " in why_not(i), statement
        assert Module.from_text(module([statement], "sm_103a", NEWEST)).code("kernel")


def test_what_only_rubin_has_is_refused_for_all_targets_that_are_emulated():
    for statement in RUBIN:
        for target in ("sm_90a", "sm_100a", "sm_103a", "sm_120a"):
            assert "it needs sm_107" in target_problem(parsed(statement), target), statement


def test_a_file_of_the_newest_version_runs_and_the_readme_names_it():
    assert f"| PTX | ISA {NEWEST} (" in (ROOT / "README.md").read_text()
    assert Module.from_text(module(["mov.u32 %r0, 1;"], "sm_100a", NEWEST)).code("kernel")


@pytest.mark.skipif(newest_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize(
    "target", ["sm_90a", "sm_90", "sm_100a", "sm_100f", "sm_103a", "sm_120a", "sm_120f", "sm_121a"]
)
def test_each_target_has_the_forms_that_ptxas_accepts(target, tmp_path):
    """An advisory of ptxas is no refusal. It knows the PTX ISA of its own version alone."""
    assert tried(("mov.b32 %r0, %nothing;",), "sm_90a", tmp_path, "9.0") == set()
    version = isa_of_ptxas()
    for family, (targets, every) in FORMS.items():
        forms = [form for form in every if all(float(row.version) <= float(version) for row in rows_of(form))]
        accepted = tried(forms, target, tmp_path, version)
        assert accepted == {form for form in forms if is_implemented(form, target)}, family
        assert target not in targets or len(accepted) == len(forms), family


def tried(forms: Sequence[str], target: str, folder: Path, version: str) -> set[str]:
    """The forms that ptxas accepts."""
    source = folder / "forms.ptx"
    source.write_text(module(forms, target, version))
    command = [str(newest_ptxas()), f"-arch={target}", "-O0", str(source), "-o", "/dev/null"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = source.read_text().splitlines()
    refused = {int(line) for line in re.findall(r"line (\d+); error", run.stdout + run.stderr)}
    assert bool(refused) == (run.returncode != 0), run.stdout + run.stderr
    wrong = {lines[line - 1].strip() for line in refused}
    return {form for form in forms if form.strip() not in wrong}
