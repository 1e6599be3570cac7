"""A pytest plugin that writes what became of each test when it has ended: a line of JSON in the file SUITE_RECORD.

It is loaded by the Python of the suite, and needs nothing of this repository.
"""

import importlib.metadata
import json
import os

PACKAGES = ("emugpu", "torch", "triton", "nvidia-cutlass-dsl", "tilelang")


def _write(line):
    with open(os.environ["SUITE_RECORD"], "a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):  # a worker of pytest-xdist
        _write({"versions": {package: _version(package) for package in PACKAGES if _version(package)}})


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        given = dict(report.user_properties)
        reason = given.get("emulated_gpu_reasons", "").partition("\n")[0]
        _write({"test": report.nodeid, "outcome": report.outcome, "verdict": given.get("emulated_gpu"), "why": reason})


def pytest_collectreport(report):
    if report.skipped:  # a whole file
        _write({"test": report.nodeid, "outcome": report.outcome, "verdict": None, "why": ""})
