"""The threads of NumPy's matrix products.

A launch multiplies matrices of one tile after the other. They are too small for several threads: on two cores, two
threads multiplied 128x128x128 no faster than one, and several times slower beside other work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import Any


class _OneThread:
    """The limit of this process. Launches may overlap, in several threads: the last one to end lifts the limit."""

    def __init__(self) -> None:
        self._launches = 0
        self._limit: Any = None
        self._lock = Lock()
        release = self._lock.release
        os.register_at_fork(before=self._lock.acquire, after_in_parent=release, after_in_child=release)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Lets matrix products of this process use one thread within the context."""
        with self._lock:
            if not self._launches:
                self._limit = self._blas.limit(limits=1)
            self._launches += 1
        try:
            yield
        finally:
            with self._lock:
                self._launches -= 1
                if not self._launches:
                    self._limit.restore_original_limits()

    @cached_property
    def _blas(self) -> Any:
        from threadpoolctl import ThreadpoolController  # only here: many modules are imported and launch nothing

        return ThreadpoolController().select(user_api="blas")


one_thread = _OneThread()
