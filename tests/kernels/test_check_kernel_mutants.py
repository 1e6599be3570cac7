"""Of kernels with one synchronising instruction left out, weakened or misplaced, none goes unseen. One of each kind and
instruction here; `python tests/mutation/kernel_mutants.py` has them all.
"""

from __future__ import annotations

import pytest
from kernel_mutants import Subject, config_of
from kernel_mutations import Mutant

CONFIGS = [
    config_of("kernel7", "sm_100a", (2, 1)),
    config_of("kernel8", "sm_100a", (2, 1)),
    config_of("kernel6", "sm_90a", (2, 1)),
]


@pytest.fixture(scope="module")
def subjects(builder) -> list[Subject]:
    return [Subject(artifact) for artifact in builder("kernels to mutate", CONFIGS)]


def chosen(subjects: list[Subject]) -> list[dict[tuple[str, str], Mutant]]:
    """The last one of each kind and instruction; of later kernels only what the earlier ones have not."""
    taken: set[tuple[str, str]] = set()
    found = []
    for subject in subjects:
        own = {(mutant.kind, mutant.text.split()[0]): mutant for mutant in subject.mutants()}
        found.append({key: mutant for key, mutant in own.items() if key not in taken})
        taken |= own.keys()
    return found


def test_every_kind_of_mutant_is_seen(subjects):
    seen, survivors = [], []
    for subject, mutants in zip(subjects, chosen(subjects), strict=True):
        for mutant in mutants.values():
            verdict = subject.judge(mutant, seeds=1)
            seen.append(verdict.seen)
            if verdict.seen == "survived":
                survivors.append(f"{subject.name} {mutant}")
    assert not survivors
    assert len(seen) >= 50 and seen.count("error") >= 30
    assert seen.count("equivalent") <= 12


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
