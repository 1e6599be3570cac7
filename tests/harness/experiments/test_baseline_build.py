"""``harness bench --baseline COMMIT``: the other commit is built, and measured in turns with this checkout."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace

import pytest
from bench_support import timing
from test_bench_command import CASES, H200, alter_ptx, bench, results, suite  # noqa: F401 (fixtures)

import harness.experiments.bench as runs
from emugpu.paths import git
from harness.experiments.baseline_build import _archive, _build_in, _unpack, build_commit
from harness.experiments.suite import load_suite
from harness.paths import find_commit

HEAD = find_commit("HEAD")
pytestmark = [
    pytest.mark.skipif(HEAD is None, reason="not in a git checkout"),
    pytest.mark.slow,
    pytest.mark.nightly_unless_changed("harness/experiments/"),
]


def test_a_commit_builds_itself(suite, artifacts):  # noqa: F811
    """Also cases it does not know: they alone are missing."""
    known, other = load_suite(str(suite)).cases
    other = replace(other, asked=(*other.asked, ("stages", 99)))
    configs = {known: known.config("sm_100a"), other: known.config("sm_100a")}
    found = build_commit(HEAD, configs)
    assert found[known].plan(known.shape).grid and ".entry" in found[known].ptx
    assert found[other].startswith(f"commit {HEAD[:10]} cannot build it: ") and "99" in found[other]


def test_the_sources_are_unpacked_by_the_first_python_3_11_too(monkeypatch, tmp_path):
    """Debian 12 has 3.11.2, whose extractall takes no filter."""
    unpack = tarfile.TarFile.extractall
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: unpack(self, path))
    _unpack(git("archive", "--format=tar", HEAD, "harness/paths.py"), tmp_path)
    assert (tmp_path / "harness" / "paths.py").is_file()


@pytest.mark.parametrize("commit", ["ccff401", "c25b39cd"])
def test_commits_from_before_the_packages_were_renamed_can_be_built(tmp_path, commit):
    archive = _archive(commit)
    if archive is None:
        pytest.skip("a clone without that commit")
    _unpack(archive, tmp_path)
    assert _build_in(tmp_path, {}) == {}


def test_a_commit_is_built_with_its_own_emugpu(tmp_path):
    _unpack(_archive(HEAD), tmp_path)
    assert (tmp_path / "emugpu" / "errors.py").is_file() and (tmp_path / "kernels").is_dir()


def test_a_commit_without_a_harness_says_so(suite, artifacts):  # noqa: F811
    [case, _] = load_suite(str(suite)).cases
    found = build_commit("0" * 40, {case: case.config("sm_100a")})
    assert found == {case: "git has no harness and kernels in commit 0000000000"}


def test_exact_figures_beside_a_commit(bench, monkeypatch, tmp_path, results_dir):  # noqa: F811
    """The commit is built once: what the emulator counts of it stays true."""
    # As the kernels are altered, so is the checkout, also where these tests run in a clean one.
    monkeypatch.setattr("harness.run.runner.source_version", lambda: {"commit": HEAD, "dirty": True})
    commit = "\tcp.async.bulk.commit_group;"
    alter_ptx(monkeypatch, tmp_path, commit, f"\tfence.proxy.async.shared::cta;\n{commit}")
    code, found = results(bench, "--baseline", "HEAD")
    assert code == 1 and {case["verdict"] for case in found.values()} == {"WORSE"}
    lines = [json.loads(line) for line in (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()]
    assert [line["bench"]["case"] for line in lines] == [CASES[0]] * 2 + [CASES[1]] * 2
    assert [line["git"] for line in lines[::2]] == [{"commit": HEAD, "dirty": False}] * 2
    assert lines[0]["ptx"] != lines[1]["ptx"]
    monkeypatch.setattr(runs, "build_commit", lambda *_, **__: pytest.fail("it is known"))
    assert results(bench, "--baseline", "HEAD")[0] == 1
    code, _, errors = bench("--resume")
    assert "resuming run" in errors  # the newest of this checkout, not the commit's


def test_times_beside_a_commit(bench, monkeypatch, results_dir):  # noqa: F811
    """However often it was measured before: both are timed now."""
    run, calls = runs.run_in_turns, []

    def timed(request, builds):
        calls.append(len(builds))
        outcomes = run(runs.replace(request, gpu=None), builds)
        for number, outcome in enumerate(outcomes):
            seconds = timing((1e-3, 1.05e-3)[number], len(calls), processes=request.processes)
            about = {"kind": request.device_kind, "name": H200.name, "driver": H200.driver}
            outcome.record.update(device=about, counters={}, timing=seconds)
        return outcomes

    monkeypatch.setattr(runs, "choose_device", lambda wanted, kernel, arch: (H200, "sm_100a"))
    monkeypatch.setattr(runs, "run_in_turns", timed)
    for _ in range(2):  # this checkout's comes first
        code, found = results(bench, "--baseline", "HEAD")
        assert code == 0 and {case["verdict"] for case in found.values()} == {"FASTER"}
    assert calls == [2] * 4


def test_what_the_commit_cannot_build_is_not_compared(bench, monkeypatch):  # noqa: F811
    monkeypatch.setattr(runs, "build_commit", lambda commit, cases: dict.fromkeys(cases, "it lacks kernel6"))
    code, _, errors = bench("--baseline", "HEAD")
    assert code == 3 and "nothing could be compared: it lacks kernel6" in errors
