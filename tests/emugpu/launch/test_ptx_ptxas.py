"""What ptxas says about PTX, as `emugpu.launch.ptxas` reads it."""

import shutil
import textwrap

import pytest

from emugpu.launch.ptxas import assemble, parse_statistics


def test_ptxas_figures_are_read():
    text = textwrap.dedent("""\
        ptxas info    : 0 bytes gmem
        ptxas info    : Compiling entry function 'kernel6' for 'sm_100a'
        ptxas info    : Function properties for kernel6
            8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
        ptxas info    : Used 87 registers, used 2 barriers, 8 bytes cumulative stack size, 40 bytes smem
        """)
    assert parse_statistics(text) == {
        "registers": 87,
        "barriers": 2,
        "static_shared_bytes": 40,
        "stack_bytes": 8,
        "spill_store_bytes": 12,
        "spill_load_bytes": 16,
    }


def test_ptxas_says_what_is_wrong(tmp_path):
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not on PATH")
    bad = tmp_path / "bad.ptx"
    bad.write_text(".version 8.8\n.target sm_100a\nnonsense\n")
    assert "bad.ptx" in assemble(bad, "sm_100a")["error"]
