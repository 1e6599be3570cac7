"""The verdict on a case, and the exit code of a run.

If both records have times, the times decide, and the exact figures only explain. Without times, as on the emulator, the
exact figures decide. A case that could not be measured is never called slower. Errors of synchronisation outweigh both,
in old and new records, because they do not depend on the comparison. A wrong result outweighs everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emugpu.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, EXIT_WRONG_RESULT
from harness.experiments.facts import FigureChange, changes, not_compared
from harness.experiments.history import is_right
from harness.experiments.soundness import what_is_unsound
from harness.experiments.suite import SuiteCase
from harness.experiments.times import THRESHOLD, TimeVerdict, compare_times
from harness.run.records import is_timed

MEANINGS = {
    "SAME": "no difference that is real and matters; exact figures are equal",
    "FASTER": "less time, beyond doubt and threshold",
    "SLOWER": "more time, beyond doubt and threshold",
    "UNSURE": "the times scatter too much, or come from too few processes, for a verdict",
    "BETTER": "exact figures changed, none for the worse",
    "WORSE": "exact figures changed, at least one for the worse",
    "CHANGED": "exact figures changed; whether for the better or for the worse is unknown",
    "NEW": "nothing to compare with",
    "NOT MEASURED": "could not be measured",
    "UNSOUND": "the output is right, the synchronisation is not: the checker has errors, or did not end",
    "WRONG": "the output is wrong",
}
REGRESSIONS = ("SLOWER", "WORSE", "UNSOUND")


@dataclass(frozen=True)
class RecordComparison:
    """The result of a comparison of two records. ``verdict`` is one of MEANINGS; ``reason`` says why it is NEW, NOT
    MEASURED, UNSURE, UNSOUND or WRONG.
    """

    verdict: str
    reason: str = ""
    time: TimeVerdict | None = None
    changes: tuple[FigureChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Judgement(RecordComparison):
    """A case, its record and its baseline, compared. ``record`` and ``baseline`` are None if there is none."""

    case: SuiteCase
    record: Mapping[str, Any] | None = None
    baseline: Mapping[str, Any] | None = None


def judge(
    case: SuiteCase,
    record: Mapping[str, Any] | None,
    baseline: Mapping[str, Any] | None,
    *,
    reason: str = "",
    cases: int = 1,
    threshold: float = THRESHOLD,
) -> Judgement:
    """Judges a case. ``reason`` says why there is no record, or no baseline. ``cases`` is the number of cases whose
    times are compared.
    """
    if record is None:
        return Judgement("NOT MEASURED", reason, case=case)
    found = compare_records(record, baseline, cases=cases, threshold=threshold)
    if baseline is None and not found.reason:
        found = replace(found, reason=reason)
    return Judgement(**vars(found), case=case, record=record, baseline=baseline)


def compare_records(
    record: Mapping[str, Any], baseline: Mapping[str, Any] | None, *, cases: int = 1, threshold: float = THRESHOLD
) -> RecordComparison:
    """Returns the verdict on a record and an older one. ``cases`` is the number of cases whose times are compared."""
    found = _compare(record, baseline, cases, threshold)
    why = what_is_unsound(record)
    if not why:
        return found
    verdict = "WRONG" if found.verdict == "WRONG" else "UNSOUND"
    return replace(found, verdict=verdict, reason="; ".join(filter(None, (found.reason, why))))


def _compare(
    record: Mapping[str, Any], baseline: Mapping[str, Any] | None, cases: int, threshold: float
) -> RecordComparison:
    """Compares output, times and exact figures."""
    if not is_right(record):
        return RecordComparison("WRONG", _mistakes(record))
    timed = is_timed(record)
    if not timed and not _is_emulated(record):
        return RecordComparison("NOT MEASURED", (record.get("timing") or {}).get("reason") or "no times came back")
    # A GPU process crashed or hung during the timing; its earlier measurements are kept.
    failure = (record["timing"].get("reason") or "") if timed else ""
    if baseline is None:
        return RecordComparison("NOT MEASURED" if failure else "NEW", failure)
    found = tuple(changes(baseline, record))
    notes = _notes(baseline, record)
    if timed and is_timed(baseline):
        time = compare_times(
            baseline["timing"],
            record["timing"],
            cases=cases,
            threshold=threshold,
            same_vendor=_vendor_of(baseline) == _vendor_of(record),
        )
        # A time known to be slower remains slower, whatever happened afterwards; nothing else is known.
        verdict = "NOT MEASURED" if failure and time.verdict != "SLOWER" else time.verdict
        return RecordComparison(verdict, failure or time.reason, time, found, notes)
    if failure:
        return RecordComparison("NOT MEASURED", failure, changes=found, notes=notes)
    if timed:
        return RecordComparison("NEW", "the baseline has no times", changes=found, notes=notes)
    return RecordComparison(_exact_verdict(found), changes=found, notes=notes)


def exit_code(judgements: Sequence[Judgement]) -> int:
    """Returns 4 for a wrong result, otherwise 1 for a regression or errors of synchronisation, otherwise 3 if a case
    was not measured, otherwise 0.
    """
    verdicts = {judgement.verdict for judgement in judgements}
    if "WRONG" in verdicts:
        return EXIT_WRONG_RESULT
    if verdicts & set(REGRESSIONS):
        return EXIT_FINDINGS
    return EXIT_CANNOT_RUN if "NOT MEASURED" in verdicts else EXIT_OK


def have_times(record: Mapping[str, Any] | None, baseline: Mapping[str, Any] | None) -> bool:
    """Returns whether the times of two records will be compared."""
    return bool(record and baseline and is_timed(record) and is_timed(baseline))


def _exact_verdict(found: Sequence[FigureChange]) -> str:
    directions = {change.direction for change in found}
    if "worse" in directions:
        return "WORSE"
    if "better" in directions:
        return "BETTER"
    return "CHANGED" if found else "SAME"


def _vendor_of(record: Mapping[str, Any]) -> Any:
    """Returns the version of the vendor's GEMM. Records with other versions cannot be compared with it."""
    return record["device"].get("torch")


def _is_emulated(record: Mapping[str, Any]) -> bool:
    return str(record["device"]["kind"]).startswith("emulated")


def _mistakes(record: Mapping[str, Any]) -> str:
    found = record["validation"]
    if found["passed"]:
        return ""  # it was wrong under a schedule of the checker, which reports that
    return f"{found.get('mismatches', '?'):,} of {found.get('elements', '?'):,} elements are wrong"


def _notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what a reader must know about the comparison: other compilers, another way of timing, and figures that
    only one side has.
    """
    before, after = old.get("toolchain") or {}, new.get("toolchain") or {}
    names = ("mojo", "max", "ptxas")
    notes = [
        f"{name} {before.get(name) or 'none'} -> {after.get(name) or 'none'}"
        for name in names
        if before.get(name) != after.get(name)
    ]
    if "launches" in old and "launches" not in new:  # as records of a GPU had them when MAX launched
        notes.append("timed through MAX -> from CUDA graphs; below 50 us the two differ")
    notes += [f"not compared: {what}" for what in not_compared(old, new)]
    return tuple(notes)
