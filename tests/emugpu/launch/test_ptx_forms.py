"""The forms that are said to be implemented: ptxas accepts each one, and each one is translated."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ptx_forms import FORMS, module

from emugpu.emulator.device import Module
from emugpu.launch.coverage import is_implemented

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


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@pytest.mark.parametrize(
    "target", ["sm_90a", "sm_90", "sm_100a", "sm_100f", "sm_103a", "sm_120a", "sm_120f", "sm_121a"]
)
def test_each_target_has_the_forms_that_ptxas_accepts(target, tmp_path):
    """An advisory of ptxas is no refusal."""
    assert tried(("mov.b32 %r0, %nothing;",), "sm_90a", tmp_path) == set()
    for family, (targets, forms) in FORMS.items():
        accepted = tried(forms, target, tmp_path)
        assert accepted == {form for form in forms if is_implemented(form, target)}, family
        assert target not in targets or len(accepted) == len(forms), family


def tried(forms: Sequence[str], target: str, folder: Path) -> set[str]:
    """The forms that ptxas accepts."""
    source = folder / "forms.ptx"
    source.write_text(module(forms, target))
    run = subprocess.run(
        ["ptxas", f"-arch={target}", "-O0", str(source), "-o", "/dev/null"], capture_output=True, text=True, check=False
    )
    lines = source.read_text().splitlines()
    refused = {int(line) for line in re.findall(r"line (\d+); error", run.stdout + run.stderr)}
    assert bool(refused) == (run.returncode != 0), run.stdout + run.stderr
    wrong = {lines[line - 1].strip() for line in refused}
    return {form for form in forms if form.strip() not in wrong}
