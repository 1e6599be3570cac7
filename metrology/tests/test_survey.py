"""Surveys: parts in processes of their own, an archive, and its reading."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from harness.build.compiler import Gpu
from harness.cli.main import main
from harness.errors import CannotRun, UsageProblem
from harness.paths import ROOT
from harness.timing.constants import find_gpu, read
from harness.timing.measured import find_traces
from harness.timing.survey_archive import StepResult, Survey
from metrology.probes import emulator
from metrology.probes.catalogue import PROBES
from metrology.probes.recording import entry
from metrology.survey import archive, command, run
from metrology.survey import bundle as bundling
from metrology.survey.parts import PARTS, Part
from metrology.survey.reading import findings as finding
from metrology.survey.reading.constants import as_toml, derive, put_into
from metrology.survey.reading.counters import NAMES, read_counters
from metrology.survey.reading.findings import findings
from metrology.survey.reading.recording import recording
from metrology.survey.runs import TRACED
from metrology.validation import Row

GPU = {"name": "NVIDIA H200", "compute_capability": "9.0", "multiprocessors": 132, "cuda": "13.0"}
COUNTERS = """==PROF== Connected to process 7
"ID","Kernel Name","sm__cycles_elapsed.max","lts__t_bytes.sum"
"","","cycle","byte"
"0","kernel7_a","297,321","1,330,000,000"
"1","kernel8_b","284,900","1,050,000,000"
"""


BOMB = {
    "case": {
        "out": {"dtype": "<u4", "shape": [1 << 38], "zlib": base64.b64encode(zlib.compress(bytes(80 << 20))).decode()}
    }
}
"""An answer of far more than a probe has."""


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


# ---- conducting ----


def test_a_part_that_fails_or_hangs_costs_no_other(tmp_path):
    parts = [
        Part("good", "?", (*program("import sys; open(sys.argv[1] + '/found.json', 'w').write('[7]')"), "{out}"), 20),
        Part("bad", "?", program("print('so far'); raise SystemExit('no such kernel')"), 20),
        Part("stuck", "?", program("import time; print('waiting', flush=True); time.sleep(60)"), 1),
        Part("lacking", "?", program("pass"), 20, modules=("no_such_module",)),
        Part("unpacked", "?", program("pass"), 20, packed=True),
        Part("kept", "?", program("print('a,b')"), 20, keeps="table.csv"),
    ]
    path, seen = tmp_path / "survey.tar.gz", []
    start = time.monotonic()
    run.survey(path, None, 60, parts, seen.append)
    assert time.monotonic() - start < 20
    survey = Survey(path)
    assert survey.parts == seen
    assert [(part.part, part.status) for part in seen] == [
        ("good", "done"),
        ("bad", "failed"),
        ("stuck", "timed out"),
        ("lacking", "skipped"),
        ("unpacked", "skipped"),
        ("kept", "done"),
    ]
    assert [seen[i].message for i in (1, 2)] == ["no such kernel", "waiting"]
    assert survey.json("found.json") == [7] and survey.text("table.csv") == "a,b\n"
    assert "so far" in survey.text("logs/bad.txt")


def test_no_part_starts_when_the_time_is_up(tmp_path):
    parts = [Part("late", "?", program("pass"), 20)]
    [ended] = run.survey(tmp_path / "s.tar.gz", None, 1, parts)
    assert (ended.status, ended.message) == ("skipped", "no time was left for it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "usage: python -m metrology.survey.run FILE.tar.gz PACKED [SECONDS [PART...]]"),
        ("s.tar.gz", "usage: python -m metrology.survey.run FILE.tar.gz PACKED [SECONDS [PART...]]"),
        ("s.tar.gz packed soon", "SECONDS 'soon' is not a number above 0; write for example 600"),
        ("s.tar.gz packed nan", "SECONDS 'nan' is not a number above 0; write for example 600"),
        ("s.tar.gz packed -5", "SECONDS '-5' is not a number above 0; write for example 600"),
        ("s.tar.gz packed 600 probe", f"there is no part 'probe'; there are {', '.join(p.name for p in PARTS)}"),
    ],
)
def test_what_cannot_be_conducted_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run.main(words.split()) == 2
    assert capsys.readouterr() == ("", f"{said}\n") and not list(tmp_path.iterdir())


def test_an_archive_that_cannot_be_written_ends_the_survey(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "PARTS", [Part("lacking", "?", program("pass"), 20, modules=("no_such_module",))])
    monkeypatch.setattr(run, "_gpu", lambda: None)
    path = tmp_path / "there" / "s.tar.gz"
    assert run.main([str(path), str(tmp_path)]) == 3
    assert capsys.readouterr().err == f"cannot write {path}: No such file or directory\n"
    path.parent.mkdir()
    assert run.main([str(path), str(tmp_path), "60", "lacking"]) == 0
    assert [part.part for part in Survey(path).parts] == ["lacking"]


def test_parts_have_names_and_limits():
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert all(part.limit <= run.SECONDS for part in PARTS)


def test_parts_say_that_they_need_ml_dtypes():
    """On a machine without it they are skipped with that message; they do not fail."""
    asked = {part: re.search(r"metrology\.[\w.]+", " ".join(part.command)) for part in PARTS}
    names = {part: found[0] for part, found in asked.items() if found}
    code = f"""
import importlib, sys
sys.modules["ml_dtypes"] = None
for name in {sorted(set(names.values()))}:
    try:
        importlib.import_module(name)
        print(name)
    except ImportError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    can = done.stdout.split()
    assert {part.name for part in names if names[part] not in can} == {
        part.name for part in names if "ml_dtypes" in part.modules
    }


def test_a_bundle_needs_no_more_than_it_says(tmp_path, monkeypatch):
    """It is conducted where only NumPy and ml_dtypes are: a stranger's machine."""
    monkeypatch.setattr(bundling, "pack", lambda chosen, arch, folder: folder.mkdir())
    bundling.bundle(tmp_path / "bundle", "sm_90a")
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rich", "max", "click", "platformdirs", "matplotlib", "scipy", "jinja2", "torch"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import harness, metrology.survey.run, metrology.survey.kernels
import metrology.survey.micro.measured, metrology.survey.trace.record
import metrology.probes.record
print(harness.__file__, len(metrology.probes.record.BLACKWELL))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "bundle", capture_output=True, text=True)
    assert done.stderr == "" and str(tmp_path) in done.stdout
    with pytest.raises(UsageProblem, match="is not empty"):
        bundling.bundle(tmp_path / "bundle", "sm_90a")


# ---- the archive ----


@pytest.fixture
def make(tmp_path):
    """Writes an archive of files and parts, and opens it."""

    def make(files: dict[str, object], parts: list[StepResult] | None = None, gpu: dict | None = GPU) -> Survey:
        folder = tmp_path / "folder"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        folder.mkdir(exist_ok=True)
        path = tmp_path / "made.tar.gz"
        archive.write(path, folder, {"time": "2026-11-21T18:00:00+00:00", "gpu": gpu}, parts or [])
        return Survey(path)

    return make


def test_what_is_no_archive_is_said_so(tmp_path, make):
    nothing = tmp_path / "nothing.tar.gz"
    with pytest.raises(UsageProblem, match="cannot be read as the archive of a survey"):
        Survey(nothing)
    nothing.write_bytes(make({}).path.read_bytes()[:40])
    with pytest.raises(UsageProblem, match="cannot be read as the archive of a survey"):
        Survey(nothing)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (Path.unlink, "No such file or directory"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "Compressed file ended"),
        (lambda path: path.write_bytes(flipped(path.read_bytes(), 30)), "Error -3 while decompressing data"),
        (lambda path: path.write_bytes(flipped(path.read_bytes(), -6)), "CRC check failed"),
        (lambda path: path.write_bytes(b"no archive"), "Not a gzipped file"),
        (lambda path: path.write_bytes(gzip.compress(b"no archive")), "truncated header"),
    ],
)
def test_why_an_archive_cannot_be_read_is_said_in_words(make, spoil, why):
    """One byte that is another is enough: what lies behind it would be other numbers, or not there."""
    path = make({"launches.json": list(range(999))}).path
    spoil(path)
    with pytest.raises(UsageProblem) as caught:
        Survey(path)
    assert str(caught.value).startswith(f"{path}: cannot be read as the archive of a survey ({why}")
    assert "Errno" not in str(caught.value)


def flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0x55
    return bytes(changed)


def test_an_archive_that_unpacks_to_more_than_a_survey_leaves_is_refused(tmp_path):
    """A gzip bomb is refused before all of it is unpacked."""
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(bytes(300 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(UsageProblem, match="it unpacks to more than 256 MiB"):
            Survey(path)
        assert tracemalloc.get_traced_memory()[1] < 600 << 20
    finally:
        tracemalloc.stop()


def test_damaged_arrays_are_said_so(make):
    survey = make({"trace-0.npz": "no arrays"})
    with pytest.raises(
        UsageProblem, match=r"not of the form that `harness survey -o` writes \(ValueError: arrays that"
    ):
        survey.arrays("trace-0.npz")
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    text = b"{'descr': '<u8', 'fortran_order': False, 'shape': (1099511627776,), }"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as arrays:
        arrays.writestr("clock.npy", head + text.ljust(117) + b"\n")
    (survey.path.parent / "folder" / "trace-0.npz").write_bytes(file.getvalue())
    archive.write(survey.path, survey.path.parent / "folder", {"time": "", "gpu": None}, [])
    with pytest.raises(UsageProblem, match="not of the form that"):
        Survey(survey.path).arrays("trace-0.npz")


@pytest.mark.parametrize(
    "files",
    [
        {"kernels.json": {"runs": [{"name": 7}]}},
        {"kernels.json": [1]},
        {"barriers.json": {"launches": [{"what": "arrive", "cycles": "many"}]}},
        {"barriers.json": {"launches": {"what": 1}}},
        {"probes.json": {"probes": {"elect_sync": {}}}},
        {"probes.json": {"probes": {"elect_sync": {"digest": PROBES["elect_sync"].digest(), "outputs": BOMB}}}},
        {"trace-0.json": [1]},
        {"power.json": [1]},
        {"runs.json": 5, "kernels.json": {"runs": []}},
    ],
)
def test_a_damaged_file_of_an_archive_is_one_line(make, files):
    path = make(files).path
    done = CliRunner().invoke(main, ["survey", "--read", str(path), "--recording", "-"])
    assert done.exit_code in (2, 3) and done.stdout == "" and done.stderr.count("\n") == 1, done.exception
    done = CliRunner().invoke(main, ["survey", "--read", str(path)])
    assert done.exit_code in (0, 2) and not isinstance(done.exception, Exception), done.exception
    assert done.exit_code == 0 or f"{path}: a file of it is not of the form" in done.stderr


@pytest.mark.parametrize("manifest", [{"parts": [{}]}, {"parts": 7}, {}, {"parts": [], "gpu": 7, "time": 7}])
def test_a_damaged_manifest_is_one_line(make, manifest):
    path = make({}).path
    text = json.dumps({"schema": 1, **manifest}).encode()
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    done = CliRunner().invoke(main, ["survey", "--read", str(path)])
    assert done.exit_code in (0, 2) and not isinstance(done.exception, Exception), done.exception
    assert done.stderr.count("\n") == (done.exit_code == 2)


def test_a_damaged_timeline_is_one_line(make, tmp_path):
    trace = {"name": "kernel7 at 4096x4096x4096", "plan": {}, "sites": [], "same_result": True}
    words = ["timeline", "kernel7", "--measured", "PATH", "-o", str(tmp_path / "t.json")]
    for spoiled in (trace, [7], {"name": 7}):
        words[3] = str(make({"trace-0.json": spoiled}).path)
        done = CliRunner().invoke(main, words)
        assert done.exit_code in (2, 3) and done.stderr.count("\n") == 1, done.exception


def test_a_file_cut_short_counts_as_none(make):
    survey = make({"launches.json": '{"launches": [{"what"'})
    assert survey.json("launches.json") is None and derive(survey) == {}


# ---- reading ----


def test_counters_are_read_between_other_lines():
    [part] = [part for part in PARTS if part.name == "counters"]
    asked = part.command[part.command.index("--metrics") + 1]
    assert asked.split(",") == [*NAMES], "what is read is asked for"
    assert read_counters(COUNTERS) == [
        ("kernel7_a", {"cycles": 297321.0, "l2_bytes": 1.33e9}),
        ("kernel8_b", {"cycles": 284900.0, "l2_bytes": 1.05e9}),
    ]
    assert read_counters("==ERROR== no permission\n") == []


def kernels_file(wrong: str | None = None) -> dict:
    timed = {"cycles": [300.0, 100.0, 200.0], "nanoseconds": [30.0, 10.0, 20.0], "mhz": 1800.0}
    names = ("kernel7 at 512x512x512", "kernel8 at 512x512x512")
    return {
        "runs": [
            {"name": names[0], "use": "fit", "wrong": None, "zeros": timed, "normal": timed},
            {"name": names[1], "use": "judge", "wrong": wrong, "zeros": timed},
        ]
    }


def packed_runs(*entries: str) -> list[dict]:
    names = [run["name"] for run in kernels_file()["runs"]]
    return [{"name": name, "plan": {"entry": e}} for name, e in zip(names, entries, strict=True)]


def test_the_recording_has_times_and_counters_of_right_runs(make):
    files = {
        "kernels.json": kernels_file(wrong="7 of 9 elements are wrong"),
        "counters.csv": COUNTERS,
        "runs.json": packed_runs("kernel7_a", "kernel8_b"),
    }
    [run] = recording(make(files))["runs"]
    assert run["name"] == "kernel7 at 512x512x512" and run["use"] == "fit"
    assert (run["cycles"], run["nanoseconds"], run["mhz"], run["normal"]["cycles"]) == (200.0, 20.0, 1800.0, 200.0)
    assert run["ncu"] == {"cycles": 297321.0, "l2_bytes": 1.33e9}


def test_counters_of_another_kernel_are_not_taken(make):
    """A launch that the profiler missed would shift all that follow."""
    files = {
        "kernels.json": kernels_file(),
        "counters.csv": COUNTERS,
        "runs.json": packed_runs("kernel7_x", "kernel8_b"),
    }
    first, second = recording(make(files))["runs"]
    assert "ncu" not in first and second["ncu"]["cycles"] == 284900.0


def stores(columns: int, rate: float, count: int = 128, cycles: float = 1e6) -> dict:
    about = {"where": "L2", "pending": 3, "ctas": 132, "box_columns": columns, "box_bytes": 8192, "waits_until": "read"}
    return {
        **about,
        "stores": count,
        "gigabytes_per_second": rate,
        "bytes_per_cycle_per_sm": count * about["box_bytes"] / cycles,
    }


BARRIERS = [
    {"what": "arrive", "threads": 32, "cluster": 1, "cycles": 8.5},
    {"what": "message between warps", "threads": 64, "cluster": 1, "cycles": 110.0},
    {"what": "message between CTAs", "threads": 32, "cluster": 2, "cycles": 290.0},
    {"what": "message between CTAs", "threads": 32, "cluster": 4, "cycles": 999.0},
]


def test_constants_follow_from_the_benchmarks_by_arithmetic(make):
    """Stores: 20 bytes a row more than the row has, at 6000 GB/s."""
    rates = [stores(columns, 6000 / (1 + 20 / (2 * columns))) for columns in (64, 32, 16)]
    found = derive(make({"barriers.json": {"launches": BARRIERS}, "tma_stores.json": {"launches": rates}}))
    assert {name: constant.value for name, constant in found.items()} == {
        "barrier.arrive": 8.5,
        "barrier.remote": 180.0,
        "l2.write_bandwidth": 6e12,
        "l2.write_row": 20.0,
    }
    assert all(constant.status == "measured" and "2026-11-21" in constant.source for constant in found.values())


def test_a_burst_of_stores_is_read_off_the_long_run(make):
    """8 KiB take 400 cycles in the long run, and a burst 500 less if its rows are lines, else 1000 or 1200."""
    entries = [
        stores(columns, 6000 if count == 128 else 1, count, 400 * count + 128 - sooner)
        for columns, sooner in ((64, 500), (32, 1000), (16, 1200))
        for count in (8, 16, 128)
    ]
    found = derive(make({"tma_stores.json": {"launches": entries}}))
    assert found["l2.write_slack"].value == pytest.approx(500, abs=1)
    assert found["l2.write_slack_parts"].value == pytest.approx(1100, abs=1)
    assert found["l2.write_bandwidth"].value == pytest.approx(6e12), "of long launches alone"
    assert "l2.write_slack" not in derive(make({"tma_stores.json": {"launches": entries[2::3]}}))


def test_what_a_write_out_costs_is_without_the_loop_and_the_branch(make):
    """The loop takes 8 cycles, an elected thread's branch 12 in it; a stmatrix 11, the fence behind it 60."""
    turns = {
        "the loop and a store": 8.0,
        "elected: a store": 12.0,
        "elected: commit_group": 84.0,
        "elected: wait_group.read": 56.0,
        "1 stmatrix, fence": 8.0 + 11 + 60,
        "4 stmatrix, fence": 8.0 + 44 + 60,
        "arrive, release.cluster": 271.0,
    }
    entries = [{"what": what, "warps": 4, "cycles": cycles} for what, cycles in turns.items()]
    entries += [{"what": what, "warps": 8, "cycles": 3 * cycles} for what, cycles in turns.items()]
    found = derive(make({"write_out.json": {"launches": entries}}))
    assert {name: (constant.value, constant.unit) for name, constant in found.items()} == {
        "tma.commit_group": (72.0, "cycles"),
        "tma.wait_group": (44.0, "cycles"),
        "barrier.release": (263.0, "cycles"),
        "issue.proxy_fence_stored": (60.0, "cycles"),
    }


def issued(n: int, count: int, room: int, warpgroups: int = 1, descriptors: str = "the same") -> dict:
    """20 cycles for the first, 12 for each more; where there is no room for it, also half of the work of one."""
    cycles = 20 + 12 * (count - 1) + max(0, count - room) * n / 4
    about = {"n": n, "count": count, "warpgroups": warpgroups, "descriptors": descriptors}
    return {**about, "issue_cycles": cycles, "cycles": cycles + n / 2}


def test_the_queue_of_the_tensor_cores_is_what_issues_without_waiting(make):
    counts = (1, 2, 4, 6, 7, 8, 9, 16)
    entries = [issued(n, count, room) for n, room in ((128, 9), (256, 7)) for count in counts]
    entries += [issued(256, count, 3, warpgroups=2) for count in counts]
    entries += [issued(256, count, 3, descriptors="computed") for count in counts]
    found = derive(make({"wgmma_issue.json": {"launches": entries}}))
    assert {name: (constant.value, constant.unit) for name, constant in found.items()} == {
        "issue.wgmma": (12.0, "cycles"),
        "tensor.queue": (7.0, "count"),
    }
    without_wait = [issued(256, count, 100) for count in counts]
    assert set(derive(make({"wgmma_issue.json": {"launches": without_wait}}))) == {"issue.wgmma"}


def test_rows_of_l2_are_the_best_of_all_groups_that_are_in_time(make):
    entries = [
        {"group": group, "over": over, "late_cycles": late, "gigabytes_per_second": rate}
        for group, over, late, rate in (
            *((1, 0, 0, 9000), (132, 0, 0, 24000), (2, 0, 100, 30000)),
            *((1, 16, 0, 7200), (132, 16, 0, 7100)),
            *((1, 64, 0, 8000), (11, 64, 0, 15000)),
            (1, 48, 0, 50000),
        )
    ]
    found = derive(make({"shared_loads.json": {"launches": entries}}))
    assert {name: (constant.value, constant.unit) for name, constant in found.items()} == {
        "l2.rows_of_128": (2.4e13, "byte/s"),
        "l2.rows_of_64": (1.5e13, "byte/s"),
        "l2.rows_of_16": (7.2e12, "byte/s"),
    }


def test_the_constants_file_keeps_what_was_not_measured(make, tmp_path):
    survey = make({"barriers.json": {"launches": BARRIERS}})
    base = find_gpu("h200")
    path = tmp_path / "new.toml"
    path.write_text(as_toml(put_into(base, derive(survey), survey)))
    written = read(path)
    assert written["barrier.arrive"] == 8.5 and written.constants["barrier.arrive"].status == "measured"
    assert written["tensor.latency"] == base["tensor.latency"] and written.gpcs == base.gpcs
    assert set(written.constants) == set(base.constants)


def test_every_kind_of_finding(make):
    probe = PROBES["elect_sync"]
    right = entry(probe, emulator.run(probe), 1.0)
    other = {case: {name: array ^ np.uint32(1) for name, array in b.items()} for case, b in emulator.run(probe).items()}
    files = {
        "kernels.json": kernels_file(wrong="7 of 9 elements are wrong"),
        "clusters.json": {"runs": [{"name": "kernel5 cluster=16x1", "wrong": "1 of 9 elements are wrong"}]},
        "probes.json": {"probes": {"elect_sync": entry(probe, other, 1.0), "gone": {**right, "digest": ""}}},
        "trace-0.json": {"name": "kernel7 at 512x512x512", "same_result": False},
        "barriers.json": {"launches": [{"what": "arrive", "cycles": 1e6}]},
    }
    parts = [
        StepResult("power", "?", archive.TIMED_OUT, 60.0, "starting"),
        StepResult("probes", "?", archive.FAILED, 9.0, "1 differ"),
    ]
    survey = make(files, parts)
    found = findings(survey, derive(survey), find_gpu("h200"))
    assert [(f.about, f.where) for f in found] == [
        ("survey", "power"),
        ("kernel", "kernel8 at 512x512x512"),
        ("kernel", "kernel5 cluster=16x1"),
        *[("emulator", "elect_sync")] * sum(f.about == "emulator" for f in found),
        ("survey", "gone"),
        ("trace", "kernel7 at 512x512x512"),
        ("model", "barrier.arrive"),
    ]
    assert any(f.about == "emulator" and "elements differ" in f.what for f in found)
    agreeing = make({"probes.json": {"probes": {"elect_sync": right}}, "kernels.json": kernels_file()})
    (agreeing.path.parent / "folder" / "trace-0.json").unlink()
    assert not [f for f in findings(agreeing, {}, None) if f.about == "emulator"]


def test_runs_that_the_model_misses_are_found(make, monkeypatch):
    """One twice as fast as predicted, one a hundredth off; the verdict on both kinds needs more than one run."""
    model = find_gpu("h200")
    predicted = {"kernel7 at 512x512x512": 400.0, "kernel8 at 512x512x512": 202.0}

    def compare(runs, gpu):
        assert gpu is model and {run.hertz for run in runs} == {1.8e9}
        return [Row(run, predicted[run.name]) for run in runs]

    monkeypatch.setattr(finding, "compare", compare)
    [found], verdicts = finding.predictions(recording(make({"kernels.json": kernels_file()})), model)
    assert verdicts == []
    assert (found.about, found.where) == ("model", "kernel7 at 512x512x512")
    assert found.what == "measured 200 cycles, predicted 400 (+100.0 %)"


# ---- the command ----


def test_read_reports_and_writes_what_is_asked_for(make, tmp_path):
    survey = make({"kernels.json": kernels_file(), "barriers.json": {"launches": BARRIERS}})
    constants, kept = tmp_path / "c.toml", tmp_path / "r.json"
    words = ["survey", "--read", str(survey.path), "--constants", str(constants), "--recording", str(kept)]
    done = CliRunner().invoke(main, words)
    assert "# Survey of NVIDIA H200" in done.output and "| barrier.arrive | 8.5 | cycles |" in done.output
    assert read(constants)["barrier.arrive"] == 8.5
    assert [run["name"] for run in json.loads(kept.read_text())["runs"]] == [r["name"] for r in kernels_file()["runs"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "survey does one thing"),
        (["-o", "a.tar.gz", "--read", "b.tar.gz"], "survey does one thing"),
        (["--read", "there_is_no.tar.gz"], "cannot be read as the archive"),
        (["--read", "there_is_no.tar.gz", "--constants", "no/folder/c.toml"], "is not a file in an existing folder"),
        (["-o", "no/folder/s.tar.gz"], "is not a file in an existing folder"),
        (["--read", "there_is_no.tar.gz", "--probes", "no/folder/p.json"], "is not a file in an existing folder"),
        (["-o", "survey.zip"], "--output 'survey.zip': the name must end in .tar.gz"),
        (["--read", "there_is_no.tar.gz", "--gpu", ""], "cannot be read as the archive"),
        (
            ["--read", "there_is_no.tar.gz", "--part", "power", "--seconds", "20"],
            "--seconds, --part: of --output, which",
        ),
        (["--bundle", "new", "--probes", "p.json"], "--probes: of --read, which is not asked for; leave it out"),
        (["--read", "x.tar.gz", "--arch", "sm_90a"], "--arch: of --bundle, which is not asked for; leave it out"),
        (["--read", "x.tar.gz", "--probes", "-", "--constants", "-"], "only one of --constants, --probes can be -"),
        (["--bundle", "/dev/null/new"], "--bundle /dev/null/new: /dev/null is not a folder"),
        (["--bundle", "/proc"], "--bundle /proc: is not empty; name a new folder"),
    ],
)
def test_bad_requests_get_one_line(words, said):
    done = CliRunner().invoke(main, ["survey", *words])
    assert (done.exit_code, done.stdout) == (2, "") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_goes_to_the_screen_is_alone_there_and_nothing_is_half_written(make, tmp_path):
    path, constants = make({"barriers.json": {"launches": BARRIERS}}).path, tmp_path / "c.toml"
    done = CliRunner().invoke(main, ["survey", "--read", str(path), "--constants", "-"])
    assert tomllib.loads(done.stdout)["barrier"]["arrive"]["value"] == 8.5
    words = ["--constants", str(constants), "--recording", str(tmp_path / "r.json")]
    done = CliRunner().invoke(main, ["survey", "--read", str(path), *words])
    assert (done.exit_code, done.stdout) == (3, "") and "the part `kernels` left no times" in done.stderr
    assert not constants.exists()
    done = CliRunner().invoke(main, ["survey", "--read", str(path), "--gpu", ""])
    assert done.exit_code == 2 and "GPU ''" in done.stderr


def test_a_bundle_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise CannotRun("no compiler")

    monkeypatch.setattr(bundling, "pack", fail)
    done = CliRunner().invoke(main, ["survey", "--bundle", str(tmp_path / "new")])
    assert done.exit_code == 3 and "no compiler" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("codes", "exit_code"), [((0,), 0), ((0, 7), 3)])
def test_measuring_tells_how_each_part_ended(tmp_path, monkeypatch, codes, exit_code):
    parts = tuple(Part(f"part-{code}", "?", program(f"raise SystemExit({code})"), 20) for code in codes)
    monkeypatch.setattr(command, "PARTS", parts)
    monkeypatch.setattr(command, "find_gpus", lambda: [Gpu("a GPU", "9.0", "1 GiB", "1")])
    path = tmp_path / "s.tar.gz"
    done = CliRunner().invoke(main, ["survey", "-o", str(path)])
    assert done.exit_code == exit_code, done.output
    assert [part.part for part in Survey(path).parts] == [part.name for part in parts]
    assert f"{len(codes)} parts, {len(codes) - 1} failed" in done.output


OURS = ROOT / "results" / "nvidia-h200-timelines.tar.gz"


def test_a_timeline_of_what_an_h200_did(tmp_path):
    assert len(find_traces(Survey(OURS))) == len(TRACED)
    path = tmp_path / "t.json"
    words = ["timeline", "kernel7", "--measured", str(OURS), "--to", "6000", "-o", str(path)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert json.loads(path.read_text())["otherData"]["status"] == "measured"
    done = CliRunner().invoke(main, [*words[:1], "kernel9", *words[2:]])
    assert "has no events of such a run" in str(done.exception) + done.output


def test_a_gpu_without_constants_needs_a_name(make, tmp_path):
    survey = make({}, gpu={**GPU, "name": "NVIDIA Unheard Of"})
    path = tmp_path / "c.toml"
    done = CliRunner().invoke(main, ["survey", "--read", str(survey.path), "--constants", str(path)])
    assert isinstance(done.exception, UsageProblem) or "name the GPU" in done.output
    assert not path.exists()


def test_the_script_of_a_bundle_is_the_shells(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(bundling.SCRIPT)
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0
    assert Path(bundling.paths.PACKAGE).is_dir()
