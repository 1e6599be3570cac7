"""What the emulator answers to the probes of what only Blackwell has, and which answers have been compared.

They are compared with rules that are written down once more: from the PTX ISA and, where a probe says that it assumes
something, from that. No GPU has answered yet.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from conformance import emulator
from conformance.catalogue import BLACKWELL
from conformance.probe import Outputs

ONE_WORKER = [pytest.mark.slow, pytest.mark.xdist_group("Blackwell's probes")]
"""Of all these tests, so that an answer is computed once, and who comes last knows which were compared."""
BLANK = 0xEEEEEEEE
CHECKED: set[str] = set()
"""Probes whose answer has been compared."""


@cache
def emulated(name: str) -> Outputs:
    """What the emulator answers, to do something else with than to compare it."""
    return emulator.run(BLACKWELL[name])


def answer(name: str) -> Outputs:
    """The same, and it is compared."""
    CHECKED.add(name)
    return emulated(name)


def image(name: str, case: str) -> np.ndarray:
    """Tensor memory of every CTA after a case, and every commit has arrived."""
    outputs = answer(name)[case]
    assert (outputs["done"] == 1).all()
    return outputs["after"]


def given(name: str, case: str) -> dict[str, np.ndarray]:
    return next(c.buffers for c in BLACKWELL[name].cases if c.name == case)
