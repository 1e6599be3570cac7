"""The checked-in PTX that other tests run is what is compiled from kernels/ today."""

from __future__ import annotations

import re

import golden
import pytest


def neutral(ptx: str) -> str:
    """The PTX without what Mojo numbers anew in every build: the suffix of the entry's name, the name of the dynamic
    shared memory.
    """
    [entry] = re.findall(r"\.entry (\w+)", ptx)
    return re.sub(r"extern_ptr_syml(_\d+)?", "extern_ptr_syml", ptx.replace(entry, "entry"))


def test_the_checked_in_kernels_were_made_from_what_is_here():
    source, _ = golden.read()
    assert source == golden.made_from(), "kernels/ or Mojo has changed; run `python tests/support/golden.py`"


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("kernels/", "harness/compile/", "tests/support/golden.py", "tests/data/kernels")
def test_the_checked_in_kernels_are_what_is_compiled():
    _, kernels = golden.read()
    compiled = golden.compile_all()
    assert list(kernels) == list(compiled)
    different = [config.label for config, ptx in compiled.items() if neutral(kernels[config]) != neutral(ptx)]
    assert not different, "run `python tests/support/golden.py`"
