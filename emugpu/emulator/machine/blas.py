"""The threads of NumPy's matrix products.

A launch multiplies matrices of one tile after the other. They are too small for several threads: on two cores, two
threads multiplied 128x128x128 no faster than one, and several times slower beside other work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """Returns a context in which matrix products of this process use one thread."""
    limited: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limited


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
