"""Summarises the state: is everything right and sound, and what changed since the previous run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiments.facts import in_words
from harness.experiments.history import case_of, is_right, platform_of
from harness.experiments.soundness import is_checked, what_is_unsound
from harness.experiments.verdict import REGRESSIONS, compare_records
from harness.report.data import DeviceRecords, Record, version_label
from harness.run.records import is_timed

QUIET = ("SAME", "NEW", "UNSURE")
"""Verdicts that need no attention."""


@dataclass(frozen=True)
class CaseChange:
    """A case whose newest record differs from the one before it. ``since`` is the version of that one."""

    case: str
    platform: str
    verdict: str
    what: str
    since: str


@dataclass(frozen=True)
class DeviceState:
    """The state of a kind of device. ``verdict``: whether its newest results are right. ``changed``: changes since the
    previous records. ``soundness``: of the synchronisation, kernel by kernel, or empty if none was checked. ``when``:
    the time of the newest. ``attention``: whether something is wrong, unsound, slower or worse.
    """

    platform: str
    verdict: str
    changed: str
    soundness: str
    when: str
    attention: bool
    changes: tuple[CaseChange, ...]


def state_of(device: DeviceRecords) -> DeviceState:
    """Compares the newest record of each case with the right one before it on the same platform."""
    newest = device.newest_of_all
    wrong = [case for case, record in newest.items() if not is_right(record)]
    verdicts: Counter[str] = Counter()
    changes = []
    for case, record in newest.items():
        before = _before(device, case, record)
        found = compare_records(record, before)
        verdicts[found.verdict] += 1
        if found.verdict not in QUIET:
            since = version_label(before) if before else ""
            what = "; ".join(filter(None, (found.reason, *in_words(found.changes, 2))))
            changes.append(CaseChange(case, str(platform_of(record)), found.verdict, what, since))
    last = max(newest.values(), key=lambda record: record["time"])
    timed = sum(map(is_timed, newest.values()))
    right = f"{len(newest)} cases are right" if not wrong else f"{len(wrong)} of {len(newest)} cases are WRONG"
    return DeviceState(
        platform=str(platform_of(last)),
        verdict=right + (f", {timed} of them timed" if timed else ", counted, not timed"),
        changed="Against the run before: " + ", ".join(f"{n} {name}" for name, n in verdicts.most_common()),
        soundness=_soundness(list(newest.values())),
        when=f"Last run: {version_label(last)}",
        attention=bool(wrong) or any(verdicts[name] for name in REGRESSIONS),
        changes=tuple(changes),
    )


def _soundness(newest: Sequence[Record]) -> str:
    """Returns in one line which kernels are sound."""
    if not any(is_checked(record) for record in newest):
        return ""
    words = []
    for kernel in sorted({record["kernel"] for record in newest}):
        checked = [record for record in newest if record["kernel"] == kernel and is_checked(record)]
        unsound = sum(bool(what_is_unsound(record)) for record in checked)
        if not checked:
            words.append(f"{kernel} not checked")
        elif unsound:
            words.append(f"{kernel} UNSOUND in {unsound} of {len(checked)} cases")
        else:
            words.append(f"{kernel} sound")
    return f"Synchronisation: {', '.join(words)}"


def _before(device: DeviceRecords, case: str, record: Record) -> Record | None:
    found = None
    for one in device.everything or device.records:
        same = case_of(one) == case and platform_of(one) == platform_of(record)
        if same and is_right(one) and one["bench"]["run"] != record["bench"]["run"]:
            found = one
    return found
