"""Engines over a Dask cluster and over processes: all is done, once, whatever becomes of those who do it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import subprocess
import tempfile
from collections import Counter

import dask
import distributed
import psutil
import pytest
import work

from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.engine import MOST_DEATHS, Processes, in_order
from emugpu.processes.worker_process import JobTimeout, WorkerCrashed
from harness.experiments.cluster import DaskCluster

pytestmark = pytest.mark.xdist_group("engines of a sweep")


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster whose workers are processes of their own, as on other machines."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as running:
        yield running.scheduler_address


@pytest.fixture(scope="module")
def cluster(scheduler):
    with DaskCluster(scheduler) as engine:
        yield engine


@pytest.fixture(scope="module")
def processes():
    with Processes(2) as engine:
        yield engine


@pytest.fixture(params=["processes", "cluster"])
def engine(request):
    return request.getfixturevalue(request.param)


def test_each_piece_of_work_is_done_once(engine):
    done = list(engine.map(work.square, range(200)))
    assert Counter(one.item for one in done) == Counter(range(200))
    assert all(one.result() == one.item**2 for one in done)


def test_what_goes_wrong_costs_nothing_else(engine):
    done = {one.item: one for one in engine.map(work.misbehave, range(8), limit=1)}
    assert sorted(done) == list(range(8))
    assert {n for n, one in done.items() if one.error is None} == {0, 1, 2, 4, 7}
    assert isinstance(done[3].error, WorkerCrashed) and done[3].deaths == MOST_DEATHS
    assert "about to die" in done[3].log and "code 7" in str(done[3].error)
    assert isinstance(done[5].error, JobTimeout)
    assert "in misbehave" in done[5].log, "where it hung"
    assert isinstance(done[6].error, ValueError) and str(done[6].error) == "six"


def test_a_worker_that_dies_has_its_work_done_by_another(engine, tmp_path):
    (done,) = engine.map(work.die_once, [str(tmp_path)])
    assert done.result() == "done" and done.deaths == 1


def test_work_is_taken_as_it_can_be_done(engine):
    """A million pieces of work are never there at once."""
    taken = 0

    def source():
        nonlocal taken
        for n in range(10**6):
            taken += 1
            yield n

    results = engine.map(work.square, source())
    for _ in range(50):
        next(results)
    results.close()
    assert taken < 100, "a few for each worker"


def test_what_was_done_is_not_kept(cluster):
    """Dask's logs would hold the messages with the work, and this process would grow with a sweep."""
    assert len(list(cluster.map(work.square, range(100)))) == 100
    gc.collect()
    messages = [one for one in gc.get_objects() if type(one) is dict and one.get("op") == "update-graph"]
    assert len(messages) < 5, "some may be in flight"


def test_memory_is_not_given_back_between_two_jobs(engine):
    """Dask has its workers do it, and the kernel would clear the same pages again for each job."""
    (done,) = engine.map(os.getenv, ["MALLOC_TRIM_THRESHOLD_"])
    assert done.result() is None


def test_results_in_order():
    assert list(in_order(work.square, range(30), 2)) == [n * n for n in range(30)]
    with pytest.raises(ValueError, match="six"):
        list(in_order(work.misbehave, [1, 6], 2))


@pytest.mark.slow
def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert list(in_order(work.square, [2, 3], 2)) == [4, 9]


def listening() -> set[tuple[str, int]]:
    """Addresses at which this process and those it started take connections."""
    mine = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {tuple(c.laddr) for p in mine for c in p.net_connections("inet") if c.status == "LISTEN"}


@pytest.mark.slow
def test_processes_of_this_machine_listen_nowhere():
    """What listens, even on the loopback interface alone, has another user of the machine run code as this one."""
    before = listening()
    with Processes(2) as engine:
        assert [one.result() for one in engine.map(work.square, [3])] == [9]
        assert listening() == before


@pytest.mark.slow
def test_processes_of_this_machine_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(psutil.Process().children(recursive=True))
    with Processes(2) as engine:
        assert len(list(engine.map(work.square, range(20)))) == 20
        started = set(psutil.Process().children(recursive=True)) - before
        assert started
    assert not [process for process in started if process.is_running()]
    assert list(tmp_path.iterdir()) == []


def workers_of_dask() -> list[psutil.Process]:
    """Those that have a process beside them which does the work."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and "emugpu.processes.worker" in " ".join(process.cmdline()):
                found.append(process.parent())
    return [process for process in found if process and process.pid != os.getpid()]


@pytest.mark.slow
def test_workers_that_are_killed_lose_nothing(scheduler, tmp_path):
    """First the process beside one of Dask's, then one of Dask's."""
    log = tmp_path / "log"
    done = []
    with DaskCluster(scheduler) as engine:
        for one in engine.map(work.note, ((str(log), n) for n in range(300))):
            done.append(one.result())
            if len(done) == 20:
                workers_of_dask()[0].children()[0].kill()
            if len(done) == 150:
                workers_of_dask()[0].kill()
    assert sorted(done) == list(range(300))
    assert set(log.read_text().split()) == set(map(str, range(300)))


@pytest.mark.slow
def test_an_address_where_nothing_is():
    with (
        pytest.raises(CannotRun, match=r"127\.0\.0\.1:1 cannot be reached"),
        DaskCluster("tcp://127.0.0.1:1", patience=1),
    ):
        pass


@pytest.mark.slow
def test_what_is_timed_never_shares_a_gpu():
    """Two pretended GPUs: work that needs one sees it alone, and is alone on it; other work is done elsewhere."""
    with Processes(1, ["3", "5"]) as engine:
        seen = [one.result() for one in engine.map(work.on_a_gpu, range(12), needs="GPU")]
        assert [one.result()[0] for one in engine.map(work.on_a_gpu, range(2))] == [None, None]
    assert {gpu for gpu, _, _ in seen} == {"3", "5"}
    for gpu in ("3", "5"):
        turns = sorted((start, end) for name, start, end in seen if name == gpu)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(turns))


@pytest.mark.slow
def test_what_no_worker_has(scheduler):
    with DaskCluster(scheduler, patience=0.5) as engine, pytest.raises(CannotRun, match="GPU=1"):
        list(engine.map(work.square, [1], needs="GPU"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_certificates_are_those_of_dasks_configuration(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    of = {"ca-file": certificate}
    for who in ("client", "scheduler"):
        of |= {f"{who}.cert": certificate, f"{who}.key": key}
    with (
        dask.config.set({f"distributed.comm.tls.{name}": str(path) for name, path in of.items()}),
        distributed.LocalCluster(
            n_workers=0, protocol="tls://", security=distributed.Security(), dashboard_address=None, processes=False
        ) as running,
        DaskCluster(running.scheduler_address, patience=5) as engine,
    ):
        assert running.scheduler_address.startswith("tls://") and engine._client.status == "running"
    with pytest.raises(UsageProblem, match=r"names no certificates; set DASK_DISTRIBUTED__COMM__TLS__CA_FILE"):
        DaskCluster("tls://127.0.0.1:1").__enter__()
