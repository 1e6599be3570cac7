"""Of kernels with one synchronising instruction left out, weakened or misplaced, none goes unseen. One of each kind and
instruction here; `python tests/kernel_mutants.py` has them all.
"""

from __future__ import annotations

import pytest
from kernel_mutants import Subject, config_of
from kernel_mutations import Mutant

CHOSEN = [config_of("kernel8", "sm_100a", (2, 1)), config_of("kernel6", "sm_90a", (2, 1))]


@pytest.fixture(scope="module")
def subjects(builder) -> list[Subject]:
    return [Subject(artifact) for artifact in builder("kernels to mutate", CHOSEN)]


pytestmark = pytest.mark.xdist_group("kernels to mutate")


def chosen(subject: Subject) -> list[Mutant]:
    """The last one of each kind, and each instruction dropped once."""
    by_kind = {(m.kind, m.kind == "dropped" and m.text.split()[0]): m for m in subject.mutants()}
    return list(by_kind.values())


@pytest.mark.parametrize("number", range(len(CHOSEN)), ids=["kernel8 sm_100a", "kernel6 sm_90a"])
def test_every_kind_of_mutant_is_seen(subjects, number):
    subject = subjects[number]
    verdicts = [subject.judge(mutant, seeds=1) for mutant in chosen(subject)]
    survivors = [f"line {v.line}: {v.text}: {v.kind}" for v in verdicts if v.seen == "survived"]
    assert not survivors
    seen = [verdict.seen for verdict in verdicts]
    assert len(seen) >= 30 and seen.count("error") >= len(seen) // 2
    assert seen.count("equivalent") <= 10


def test_a_mutant_differs_in_one_place_and_keeps_the_lines(subjects):
    for subject in subjects:
        original = subject.artifact.ptx.splitlines()
        for mutant in subject.mutants():
            lines = mutant.ptx.splitlines()
            assert len(lines) == len(original), mutant
            changed = [n for n, (a, b) in enumerate(zip(original, lines, strict=True), 1)
                       if a != b and not a.startswith(".version")]  # fmt: skip
            assert 1 <= len(changed) <= 2, mutant
            assert mutant.line in changed or mutant.kind == "arrival before the load", mutant
