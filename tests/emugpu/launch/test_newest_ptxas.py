"""The ptxas that judges forms of PTX in these tests is the newest one at hand."""

import newest_ptxas as module
import pytest


@pytest.mark.parametrize(
    ("versions", "newest", "isa"),
    [
        ({"old": "13.0.88", "new": "13.5.37"}, "new", "9.5"),
        ({"new": "13.10.1", "old": "13.9.9"}, "new", "9.10"),
        ({"broken": None, "only": "13.0.88"}, "only", "9.0"),
        ({"older": "12.8.93"}, "older", "8.7"),
        ({}, None, "9.0"),
    ],
)
def test_the_newest_one_that_answers_is_taken(monkeypatch, versions, newest, isa):
    module.version_of.cache_clear()
    monkeypatch.setattr(module, "ptxas_at_hand", lambda: list(versions))
    monkeypatch.setattr(module, "ask_version", lambda path: (versions[str(path)], None))
    assert (module.newest_ptxas(), module.isa_of_ptxas()) == (newest, isa)
    module.version_of.cache_clear()
