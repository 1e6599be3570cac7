"""The forms that are said to be implemented: ptxas accepts each one, and each one is translated."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from ptx_forms import FORMS, module

from emugpu.emulator.device import Module

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
@pytest.mark.parametrize("family", FORMS)
def test_ptxas_accepts_every_form(family, tmp_path):
    targets, lines = FORMS[family]
    source = tmp_path / "forms.ptx"
    source.write_text(module(lines, targets[0]))
    run = subprocess.run(
        ["ptxas", f"-arch={targets[0]}", "-O0", str(source), "-o", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
