"""Triton's autotuner on the emulated GPU takes the first configuration that runs; without PyTorch and Triton."""

import sys
import threading
from types import SimpleNamespace

import pytest

from emugpu.pytorch import benchmarks


class Event:
    record = synchronize = lambda self: None

    def elapsed_time(self, end):
        return float("inf")


class Autotuner:
    """As Triton's: what does not run has infinite times, whatever the reason."""

    nargs = None

    def _bench(self, config):
        try:
            return [self.do_bench(config)] * 3
        except RuntimeError:
            return [float("inf")] * 3

    def run(self, *configs):
        self.nargs = {}
        return [self._bench(config=config)[0] for config in configs]


@pytest.fixture
def autotuner(monkeypatch):
    testing, kind = SimpleNamespace(), type("Autotuner", (Autotuner,), {})
    monkeypatch.setitem(sys.modules, "emugpu.pytorch.streams", SimpleNamespace(Event=Event))
    monkeypatch.setattr("emugpu.pytorch.streams", sys.modules["emugpu.pytorch.streams"], raising=False)
    benchmarks.install(testing)
    benchmarks.install_in_autotuner(SimpleNamespace(Autotuner=kind))
    kind.do_bench = staticmethod(testing.do_bench)
    return kind()


def fails():
    raise RuntimeError


def test_the_first_configuration_that_runs_is_taken(autotuner):
    ran = []
    times = autotuner.run(fails, lambda: ran.append(1), lambda: ran.append(2))
    assert times == [benchmarks.INFINITY, benchmarks.NOT_MEASURED, benchmarks.INFINITY] and ran == [1]


def test_what_runs_in_another_thread_meanwhile_does_not_count(autotuner):
    def fails_while_another_one_runs():
        thread = threading.Thread(target=autotuner.do_bench, args=(lambda: None,))
        thread.start()
        thread.join()
        raise RuntimeError

    times = autotuner.run(fails_while_another_one_runs, lambda: None)
    assert times == [benchmarks.INFINITY, benchmarks.NOT_MEASURED]
