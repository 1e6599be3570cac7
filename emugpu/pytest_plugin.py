"""The pytest plugin of this package: ``pytest --emulated-gpu b200 [--check]`` runs an unchanged test suite on the
emulated GPU, and gives each test a verdict (docs/verdicts.md).

A test that passes is failed if its verdict is wrong, racy or hung, and skipped if its verdict is incomplete.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from emugpu.errors import ReportedError

if TYPE_CHECKING:
    from emugpu.check.verdict import Verdict
    from emugpu.driver.attached import EmulatedGpu

_SECTION = pytest.StashKey["EmulatedGpu"]()
_RUNS = pytest.StashKey[bool]()
"""Whether the test runs. Reports meanwhile belong to its subtests, which have no verdict of their own."""
_WORD, _REASONS = "emulated_gpu", "emulated_gpu_reasons"
"""Properties of a report, which JUnit XML also has."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("emulated GPU", "the emulated GPU")
    group.addoption("--emulated-gpu", metavar="GPU", help="Run the tests on an emulated GPU: b200, h200, h100, ...")
    group.addoption("--check", action="store_true", help="Look for races in every launch on the emulated GPU, too.")
    group.addoption(
        "--emulated-gpu-limit", metavar="SECONDS", type=float,
        help="End the launches of a test that take longer, all together; the test is then incomplete.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    marker = "emulated_gpu(verdict='clean', **options): the verdict that a test is to have on the emulated GPU"
    config.addinivalue_line("markers", f"{marker}; options of emugpu.emulated_gpu")
    limit, has_gpu = config.getoption("--emulated-gpu-limit"), config.getoption("--emulated-gpu")
    if config.getoption("--check") and not has_gpu:
        raise pytest.UsageError("--check looks at launches on the emulated GPU; add --emulated-gpu b200")
    if limit is not None and not has_gpu:
        raise pytest.UsageError("--emulated-gpu-limit is that of the emulated GPU; add --emulated-gpu b200")
    if limit is not None and not 0 < limit < math.inf:
        raise pytest.UsageError(f"--emulated-gpu-limit {limit:g}: must be finite and above 0; give a test's seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Loads the CUDA libraries before any other module does. With pytest-xdist each worker gets its own GPU."""
    given = early_config.known_args_namespace
    dealt_out = getattr(given, "numprocesses", None) or getattr(given, "tx", None)
    if given.emulated_gpu is None:
        return
    if dealt_out and "PYTEST_XDIST_WORKER" not in os.environ:
        _require(given.emulated_gpu)
    else:
        _begin(given.emulated_gpu, "the start of pytest", {})


def _require(gpu: str) -> None:
    """Refuses an unknown GPU before workers are started, each of which would end with a traceback."""
    from emugpu.driver.gpu_model import gpu_model

    try:
        gpu_model(gpu)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _begin(gpu: str, target: str, options: dict[str, Any]) -> EmulatedGpu:
    from emugpu.driver.attached import begin

    try:
        return begin(gpu, target, options)
    except ReportedError as error:
        raise pytest.UsageError(str(error)) from error


def _marked(item: pytest.Item) -> dict[str, Any]:
    """Returns the options of the test's markers; the nearest one applies."""
    found: dict[str, Any] = {}
    for marker in item.iter_markers("emulated_gpu"):
        found = {**marker.kwargs, **found}
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    gpu = item.config.getoption("--emulated-gpu")
    if gpu:
        given = {"check": item.config.getoption("--check"), "limit": item.config.getoption("--emulated-gpu-limit")}
        options = {**given, **_marked(item)}
        options.pop("verdict", None)
        item.stash[_SECTION] = _begin(gpu, item.nodeid, options)


@pytest.fixture
def emulated_gpu(request: pytest.FixtureRequest) -> EmulatedGpu:
    """Returns what the test has done on the emulated GPU so far: verdict, launches, counters, findings."""
    section: EmulatedGpu | None = request.node.stash.get(_SECTION, None)
    if section is None:
        pytest.skip("needs the emulated GPU: pytest --emulated-gpu b200")
    return section


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_RUNS] = True
    try:
        yield
    finally:
        item.stash[_RUNS] = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    section = item.stash.get(_SECTION, None)
    if section is None or item.stash.get(_RUNS, False) or (report.when == "setup" and report.passed):
        return report
    failure = ""
    if report.failed:
        failure = "the test failed" + (f": {call.excinfo.exconly()}".partition("\n")[0] if call.excinfo else "")
    verdict = section.end(failure)
    # Launches during the teardown of fixtures are judged separately.
    options = {"check": verdict.checked}
    item.stash[_SECTION] = _begin(item.config.getoption("--emulated-gpu"), f"{item.nodeid}, at its end", options)
    expected = _marked(item).get("verdict", "clean") if report.when == "call" else "clean"
    if verdict.untouched and expected == "clean":
        return report
    properties = [(_WORD, verdict.word), (_REASONS, "\n".join(reason for _, reason in verdict.reasons))]
    report.user_properties += properties
    item.user_properties += properties  # JUnit XML has the properties of the last report
    if report.passed and verdict.word != expected:
        _change(report, item, verdict, expected)
    elif report.failed:
        report.sections.append(("emulated GPU", "\n".join(verdict.lines())))
    return report


def _change(report: pytest.TestReport, item: pytest.Item, verdict: Verdict, expected: str) -> None:
    """Replaces the outcome of a passed test according to its verdict."""
    lines = verdict.lines()
    if verdict.word == "incomplete":
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, (line or 0) + 1, f"Skipped: incomplete: {verdict.reasons[0][1]}")
    else:
        report.outcome = "failed"
        wanted = [f"the expected verdict is {expected}"] if expected != "clean" else []
        report.longrepr = "\n".join([*lines, *wanted])


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    word = dict(report.user_properties).get(_WORD) if report.when == "call" else None
    if word is None or hasattr(report, "wasxfail"):
        return None
    letter = {"passed": ".", "failed": "F", "skipped": "s"}[report.outcome]
    return report.outcome, letter, f"{report.outcome.upper()} ({word})"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    gpu = config.getoption("--emulated-gpu")
    if not gpu:
        return
    found = [
        (report.nodeid, properties)
        for reports in terminalreporter.stats.values()
        for report in reports
        if _WORD in (properties := dict(getattr(report, "user_properties", ())))
        and (report.when == "call" or report.failed)
    ]
    counts = Counter(properties[_WORD] for _, properties in found)
    terminalreporter.section(f"emulated {gpu.upper()}")
    for nodeid, properties in found:
        for reason in properties[_REASONS].splitlines()[:1]:
            terminalreporter.line(f"{properties[_WORD]} {nodeid}: {reason}")
    summary = ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "no test launched a kernel"
    unchecked = "" if config.getoption("--check") else "; only marked tests were checked for races (--check checks all)"
    terminalreporter.line(f"{summary}{unchecked}")
