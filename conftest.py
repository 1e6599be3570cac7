"""What all tests share: kernels that are compiled once, and results that go to a temporary folder."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

# Before NumPy is imported: the workers of pytest-xdist have a core each, more threads only get in the way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import compile_queue
import golden
import pytest
from golden import BF16_KERNELS as BF16_KERNELS
from golden import CLUSTERS, COMMON, SERIES

from emugpu.emulator import Device
from emugpu.emulator.native.library import library_for
from harness.compile.artifacts import Artifact, build
from harness.compile.config import KernelConfig, make_config
from harness.compile.planner import planner as compiled_planner
from harness.paths import ROOT, git

# A shell has jobs in the background ignore Ctrl-C, and so would what the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["time_budget"]
number_of_results = count()


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the tests whose kernels are compiled meanwhile come last
    if not hasattr(config, "workerinput"):
        golden.fill_cache()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays until the end, so the garbage collector of Python need not look at it during tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def results_dir(tmp_path_factory, monkeypatch) -> Path:
    """Records of tests never go to the checkout. The folder does not exist yet: few tests write records, and a folder
    for every test, which is what tmp_path makes, takes longer than many a test."""
    path = tmp_path_factory.getbasetemp() / f"results{next(number_of_results)}"
    monkeypatch.setenv("HARNESS_RESULTS_DIR", str(path))
    return path


@contextmanager
def one_worker_at_a_time(tmp_path_factory, what: str):
    """The workers of pytest-xdist take turns, so that only the first one compiles."""
    with open(tmp_path_factory.getbasetemp().parent / f"{what}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def native_engine(tmp_path_factory) -> None:
    """The emulator's native engine is compiled before a test looks at what else is printed."""
    with one_worker_at_a_time(tmp_path_factory, "native engine"):
        library_for("native")


@pytest.fixture(autouse=True)
def natively_checked(request, monkeypatch) -> None:
    """The checker is tested as users have it: plain code runs natively, and accesses come many at a time."""
    if request.path.parent.name == "check":
        *others, _ = Device.__init__.__defaults__
        monkeypatch.setattr(Device.__init__, "__defaults__", (*others, library_for("native")))


@pytest.fixture(scope="session", autouse=True)
def queue_lock(request, tmp_path_factory) -> Iterator[Path]:
    """One worker starts the queue of compilations; the file is locked while it works."""
    folder, worker = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER")
    lock = (folder.parent if worker else folder) / "compile queue.lock"
    configs = compile_queue.needed_by(request.session.items)
    if not configs or worker not in (None, "gw0"):
        yield lock
        return
    with compile_queue.working(configs, lock):
        yield lock


Builder = Callable[[str, Sequence[KernelConfig]], list[Artifact]]


@pytest.fixture(scope="session")
def builder(tmp_path_factory, queue_lock) -> Builder:
    """Builds configurations in one compilation, which has a name; none if the build cache has them all."""

    def build_together(name: str, configs: Sequence[KernelConfig]) -> list[Artifact]:
        compile_queue.wait_for(configs, queue_lock)
        with one_worker_at_a_time(tmp_path_factory, name):
            return build(configs)

    return build_together


@pytest.fixture(scope="module")
def built(request, builder) -> dict[Any, Artifact]:
    """The artifacts of the configurations in a module's CONFIGS, by their names there or by themselves."""
    configs = request.module.CONFIGS
    values = list(configs.values()) if isinstance(configs, dict) else configs
    return dict(zip(configs, builder(request.module.__name__, values), strict=True))


@pytest.fixture(scope="session")
def common(builder) -> dict[KernelConfig, Artifact]:
    """The artifacts of `COMMON`."""
    return dict(zip(COMMON, builder("common", COMMON), strict=True))


@pytest.fixture(scope="session")
def artifacts(common) -> dict[tuple[int, int], Artifact]:
    """kernel6 by cluster shape."""
    return {cluster: common[make_config("kernel6", cluster=cluster)] for cluster in CLUSTERS}


@pytest.fixture(scope="session")
def series(common) -> dict[str, Artifact]:
    """Every kernel of bf16 with its defaults in a 2x1 cluster."""
    return {kernel: common[config] for kernel, config in SERIES.items()}


@pytest.fixture
def watched(monkeypatch):
    """The launches of a test, replayed from their events: `Watched`."""
    from watched import watch

    return watch(monkeypatch)


Planner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def planner(tmp_path_factory) -> Planner:
    """Runs `plan M N K name=value ...` of ``kernels/host/plan.mojo``; compiled once, no kernel is."""
    with one_worker_at_a_time(tmp_path_factory, "planner"):
        program = compiled_planner(ROOT)

    def run(m: int = 512, n: int = 512, k: int = 512, **options: object) -> subprocess.CompletedProcess[str]:
        words = [str(m), str(n), str(k), *(f"{name}={value}" for name, value in options.items())]
        return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)

    return run


@cache
def changed_files() -> tuple[str, ...]:
    """What differs from main, where this branch left it, and new files. Nothing, if git does not know."""
    for main in ("origin/main", "main"):
        base = git("merge-base", "HEAD", main)
        if base:
            differing = git("diff", "--name-only", base.decode().strip()) or b""
            new = git("ls-files", "--others", "--exclude-standard") or b""
            return tuple((differing + new).decode().splitlines())
    return ()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if compile_queue.is_user(item) or item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)
        folders = [folder for mark in item.iter_markers("nightly_unless_changed") for folder in mark.args]
        if folders and not any(file.startswith(tuple(folders)) for file in changed_files()):
            item.add_marker(pytest.mark.nightly)
    items.sort(key=compile_queue.is_user)  # what needs no compilation runs first
    yield
    # pytest-xdist writes the group behind the name of a test; a pytest that does not show it (9.2 does not) would have
    # every worker wait for the same compilations.
    if config.getoption("loadgroup", False):
        for item in items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError("this pytest and pytest-xdist lose the groups of tests; install pytest<9.2")
