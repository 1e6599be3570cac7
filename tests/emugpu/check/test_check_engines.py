"""Random programs of accesses of every strength: the checker finds the same under both engines."""

from __future__ import annotations

import pytest
from access_programs import draw, findings

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("first", range(0, 160, 20))
def test_the_checker_finds_the_same_under_both_engines(first):
    found = 0
    for seed in range(first, first + 20):
        program = draw(seed)
        expected = findings(program, native=False)
        assert findings(program, native=True) == expected, (seed, program.text)
        found += bool(expected[1])
    assert 0 < found < 20, "some programs race, and some do not"
