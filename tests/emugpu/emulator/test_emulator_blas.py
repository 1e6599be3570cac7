"""NumPy's matrix products use one thread while a launch runs, and as many as before when no launch runs any more."""

from __future__ import annotations

from typing import Any

from ptx_programs import launch
from threadpoolctl import ThreadpoolController

from emugpu.emulator.machine.blas import one_thread

BLAS = ThreadpoolController().select(user_api="blas")


def threads() -> set[int]:
    return {library["num_threads"] for library in BLAS.info()}


def test_a_launch_uses_one_thread():
    during: list[Any] = []
    with BLAS.limit(limits=2):
        launch("ret;", sinks=[lambda event: during.append(threads())])
        assert threads() == {2}
    assert during[1:] and all(found == {1} for found in during[1:])  # the first event comes before the run


def test_launches_that_overlap_leave_the_threads_as_they_were():
    with BLAS.limit(limits=2):
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}, "the second launch still runs"
        second.__exit__(None, None, None)
        assert threads() == {2}
