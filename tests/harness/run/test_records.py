"""Result records: whole lines, also when things go wrong."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from emugpu import paths
from emugpu.errors import CannotRun
from emugpu.record import new_record, source_version
from harness.run import records


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "x.jsonl"
    made = [new_record(kernel="kernel6", number=number) for number in range(3)]
    for record in made:
        records.append(path, record)
    assert list(records.read(path)) == made
    assert path.read_bytes().count(b"\n") == 3


def test_every_record_has_schema_time_and_source():
    record = new_record()
    assert record["schema"] == records.SCHEMA == 1
    assert record["time"].endswith("+00:00")
    assert set(record["git"]) == {"commit", "dirty"} and len(record["git"]["commit"]) == 40


def test_one_write_and_then_to_the_disk(tmp_path, monkeypatch):
    calls = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append(data) or write(fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync") or fsync(fd))
    records.append(tmp_path / "x.jsonl", {"schema": 1, "text": "a\nb"})
    assert calls == [b'{"schema":1,"text":"a\\nb"}\n', "fsync"]


def test_damaged_lines_are_reported_and_skipped(tmp_path):
    path = tmp_path / "x.jsonl"
    good = {"schema": 1, "kernel": "kernel6"}
    path.write_bytes(json.dumps(good).encode() + b'\n{"schema": 1, "kern\n\n[1, 2]\n{"schema": 99}\n\xff\xfe\n')
    records.append(path, good)
    found = list(records.read(path))
    assert [item for item in found if isinstance(item, dict)] == [good, good]
    damaged = [item for item in found if isinstance(item, records.DamagedLine)]
    assert [line.number for line in damaged] == [2, 4, 5, 6]
    assert "not JSON" in str(damaged[0]) and str(damaged[0]).startswith(f"{path}:2: skipped")
    assert "schema 1" in damaged[2].reason


def test_a_line_without_end_does_not_swallow_the_next(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"schema": 1, "half')
    records.append(path, {"schema": 1})
    damaged, good = records.read(path)
    assert isinstance(damaged, records.DamagedLine) and good == {"schema": 1}


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.append(path, {"schema": 1, "value": float("nan")})
    assert not path.exists()


def append_many(path: str, writer: int) -> None:
    for number in range(50):
        records.append(paths.Path(path), {"schema": 1, "writer": writer, "number": number, "pad": "x" * 5000})


def test_writers_at_the_same_time_do_not_mix_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(append_many, [str(path)] * 4, range(4)))
    found = list(records.read(path))
    assert all(isinstance(item, dict) for item in found)
    for writer in range(4):
        assert [item["number"] for item in found if item["writer"] == writer] == list(range(50))


def test_a_full_disk_is_an_error(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with pytest.raises(CannotRun, match="No space left"):
        records.append(paths.Path("/dev/full"), {"schema": 1})


def test_the_file_of_a_device_kind(results_dir):
    assert records.record_file("emulated-sm_100a") == results_dir / "emulated-sm_100a.jsonl"
    assert not list(results_dir.iterdir())


def test_source_version_knows_changes_but_not_those_of_results(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert source_version() is None

    def git(*arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    (tmp_path / "results").mkdir()
    (tmp_path / "kernel").write_text("1")
    git("init")
    git("add", "kernel")
    git("commit", "-m", "one")
    assert source_version()["dirty"] is False
    (tmp_path / "results" / "x.jsonl").write_text("{}\n")
    assert source_version()["dirty"] is False
    (tmp_path / "kernel").write_text("2")
    assert source_version()["dirty"] is True


def test_looking_at_the_source_takes_no_lock(tmp_path, monkeypatch):
    """``git status`` writes the index when it finds stale times in it, and may leave its lock on a full disk."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "kernel").write_text("1")
    subprocess.run(["git", "-C", tmp_path, "add", "kernel"], check=True)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", "-C", tmp_path, *identity, "commit", "--quiet", "-m", "one"], check=True)
    os.utime(tmp_path / "kernel", (1, 1))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert source_version()["dirty"] is False
    assert index.read_bytes() == before


def test_raw_samples_lie_beside_the_records(tmp_path):
    path = tmp_path / "nvidia-h200.jsonl"
    timing = {"seconds": 2.0, "samples": [1.0, 2.0, 3.0], "vendor": {"cublas": {"seconds": 4.0, "samples": [4.0]}}}
    record = new_record(kernel="kernel7", timing=timing)
    records.append(path, record, new_record(kernel="kernel7", timing={"seconds": None, "reason": "emulated"}))
    assert record["timing"]["samples"] == [1.0, 2.0, 3.0], "what is shown is as it was"
    kept, counted = records.read(path)
    [line] = records.read(tmp_path / "samples" / path.name)
    assert kept["timing"]["samples"] == line["key"] and kept["timing"]["vendor"] == {"cublas": {"seconds": 4.0}}
    assert line["seconds"] == {"kernel": [1.0, 2.0, 3.0], "cublas": [4.0]}
    assert (records.is_timed(kept), records.is_timed(counted)) == (True, False)


@pytest.mark.parametrize("samples", [{"samples": [1.0, 2.0]}, {"samples": "0123"}, {}])
def test_records_with_samples_inline_beside_or_lost_are_read_alike(samples):
    assert records.is_timed({"timing": {"seconds": 1.5, **samples}})


def test_samples_that_cannot_be_written_leave_no_record(tmp_path):
    (tmp_path / "samples").write_text("a file in the way")
    path = tmp_path / "nvidia-h200.jsonl"
    with pytest.raises(CannotRun, match="cannot write the record to"):
        records.append(path, new_record(timing={"seconds": 1.0, "samples": [1.0]}))
    assert not path.exists()
