"""The assembler accepts the programs that the checker is tested with."""

from __future__ import annotations

import subprocess

import pytest
import test_check_careless
import test_check_edges
import test_check_handovers_copies
import test_check_handovers_flags
import test_check_handovers_tensor
import test_check_handovers_threads
import test_check_lanes
import test_check_public_bugs
import test_check_tensor_fences
import test_check_tensor_maps
import test_check_tolerated
from newest_ptxas import newest_ptxas

MODULES = (
    test_check_careless,
    test_check_edges,
    test_check_handovers_copies,
    test_check_handovers_flags,
    test_check_handovers_tensor,
    test_check_handovers_threads,
    test_check_lanes,
    test_check_public_bugs,
    test_check_tensor_fences,
    test_check_tensor_maps,
    test_check_tolerated,
)
TABLES = [(table, target) for module in MODULES for table in module.TABLES for target in table.targets]

pytestmark = pytest.mark.skipif(newest_ptxas() is None, reason="there is no ptxas")


def assembled(text: str, target: str, tmp_path) -> None:
    """Without optimisation: what counts is that it is accepted."""
    source = tmp_path / "program.ptx"
    source.write_text(text)
    output = f"--output-file={tmp_path / 'program.cubin'}"
    command = [str(newest_ptxas()), "-O0", f"--gpu-name={target}", output, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:1000]


def test_the_first_settings_of_each_table(tmp_path):
    """Together, as one module for each architecture."""
    for arch in ("sm_100a", "sm_90a"):
        header, entries = "", ""
        for number, (table, target) in enumerate(TABLES):
            if target == arch:
                text = table.text(target, first=2)
                header, _, own = text.partition(".visible")
                entries += ".visible" + own.replace(" setting", f" table{number}_setting")
        assembled(header + entries, arch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "target"), TABLES, ids=[f"{table.name} {target}" for table, target in TABLES])
def test_every_setting(table, target, tmp_path):
    assembled(table.text(target), target, tmp_path)


def test_there_are_many_settings():
    modules = (
        test_check_handovers_copies,
        test_check_handovers_flags,
        test_check_handovers_tensor,
        test_check_handovers_threads,
    )
    tables = [table for module in modules for table in module.TABLES]
    assert len(tables) >= 12 and sum(1 for table in tables for _ in table.settings) >= 1500
