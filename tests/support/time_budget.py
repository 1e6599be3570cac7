"""A budget of CPU time that fails: for each test, and for the session.

What counts is CPU time, of the test's process and of the processes that it waited for, so a busy machine changes
little. But one machine took 1,680 s and, an hour before, 2,270 s for the same tests; the limits have room for both. A
test that compiles kernels, or needs a GPU, has no limit of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import compile_queue
import pytest

QUICK_TEST, SLOW_TEST = 4.0, 60.0
"""CPU seconds of one test."""
QUICK_TIER, DAILY_TIER = 320.0, 2600.0
"""CPU seconds of the tests of a session, without collection and what the queue compiles."""
SHOWN = 25

before_the_test = pytest.StashKey[float]()


def cpu_seconds() -> float:
    return sum(os.times()[:4]) - compile_queue.seconds_compiled


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = cpu_seconds()
    yield
    seconds = cpu_seconds() - before
    exempt = item.get_closest_marker("nightly") or item.get_closest_marker("gpu") or "builder" in item.fixturenames
    if not exempt:
        limit = SLOW_TEST if item.get_closest_marker("slow") else QUICK_TEST
        kind = "slow" if item.get_closest_marker("slow") else "quick"
        if seconds > limit:
            pytest.fail(f"this {kind} test took {seconds:.1f} s of CPU time; its limit is {limit:g} s", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[bool]:
    item.stash[before_the_test] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu_seconds", cpu_seconds() - item.stash[before_the_test]))
    return report


class Budget:
    """Of the whole session; only the process that reports has it."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.took: dict[str, float] = {}

    @property
    def is_exceeded(self) -> bool:
        return sum(self.took.values()) > self.limit

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "cpu_seconds":
                self.took[report.nodeid] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.took) < 1000 and not self.is_exceeded:
            return
        total = sum(self.took.values())
        terminalreporter.section(f"CPU time: {total:.0f} s of {self.limit:g} s", red=self.is_exceeded)
        for name, seconds in sorted(self.took.items(), key=lambda item: -item[1])[:SHOWN]:
            terminalreporter.line(f"{seconds:7.2f} s {name}")
        if self.is_exceeded:
            terminalreporter.line("ERROR: the tests took more CPU time than their budget; make the slowest ones faster")


def budget_of(markers: str) -> float | None:
    """By the expression that selects the tests."""
    if "not nightly" not in markers:
        return None
    return QUICK_TIER if "not slow" in markers else DAILY_TIER


def pytest_configure(config: pytest.Config) -> None:
    limit = budget_of(config.option.markexpr)
    if limit is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budget(limit), "the budget of the session")
