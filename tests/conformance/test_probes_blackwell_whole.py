"""Every answer of the emulator has been compared; the name of this file puts it behind those that do it."""

from __future__ import annotations

from pathlib import Path

import pytest
from blackwell_answers import CHECKED, ONE_WORKER

from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


def test_every_answer_of_the_emulator_is_checked(request):
    """Whoever adds a probe adds what it must answer."""
    files = {path.name for path in Path(__file__).parent.glob("test_probes_blackwell_*.py")}
    if not files <= {item.path.name for item in request.session.items}:
        pytest.skip("only some of the tests that compare them were asked for")
    assert {probe.name for probe in BLACKWELL.values() if probe.modelled} == CHECKED
