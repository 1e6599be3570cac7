"""The checked-in PTX that other tests run is what is compiled from kernels/ today."""

from __future__ import annotations

import golden
import pytest


@pytest.mark.slow
def test_the_checked_in_kernels_are_what_is_compiled():
    source, kernels = golden.read()
    assert source == golden.made_from(), "kernels/ or Mojo has changed; run `python tests/support/golden.py`"
    compiled = golden.compile_all()
    assert list(kernels) == list(compiled)
    different = [config.label for config, ptx in compiled.items() if kernels[config] != ptx]
    assert not different, "run `python tests/support/golden.py`"
