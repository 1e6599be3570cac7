"""TMA copies of tensors whose rows do not all begin with a cache line: a GEMM whose K or N is no multiple of 64.

A row of a box that is as long as a line then lies in two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from metrology.survey.micro.benchmark import Benchmark, Case, Tensor
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.stores import STORES, read_stores, store_case
from metrology.survey.micro.tma import IN_DRAM, IN_L2, LOADS, SMS, load_case, read_loads

OVER = (0, 16, 32, 48, 64, 96)
"""Bytes by which the distance of two rows is no multiple of a line."""


def _shifted(case: Case, over: int) -> Case:
    arguments = tuple(replace(a, over=over) if isinstance(a, Tensor) else a for a in case.arguments)
    return replace(case, arguments=arguments, about={**case.about, "over": over})


def _cases() -> Iterator[Case]:
    for over in OVER:
        for kib, depth in ((16, 1), (16, 4), (32, 4)):
            yield _shifted(load_case("loads", kib, depth, 256, IN_L2), over)
        for kib, depth in ((16, 4), (16, 8), (32, 4)):
            yield _shifted(load_case("loads", kib, depth, 512, IN_L2, SMS), over)
        yield _shifted(load_case("loads", 32, 4, 512, IN_L2, SMS, same=True), over)
        yield _shifted(load_case("loads", 32, 4, 256, IN_DRAM, SMS), over)


def _stores() -> Iterator[Case]:
    for over in OVER:
        for columns, kib in ((64, 8), (32, 4), (16, 2)):
            yield _shifted(store_case("read", 3, kib, columns, IN_L2, 1), over)
            yield _shifted(store_case("read", 3, kib, columns, IN_L2, SMS), over)
            yield _shifted(store_case("read", 3, kib, columns, IN_DRAM, SMS, 256), over)


ROWS = Benchmark(
    name="tma_rows",
    question=QUESTIONS["tma_rows"],
    texts={"loads": LOADS},
    cases=tuple(_cases()),
    read=read_loads,
)
STORED_ROWS = Benchmark(
    name="tma_stored_rows",
    question=QUESTIONS["tma_stored_rows"],
    texts=STORES.texts,
    cases=tuple(_stores()),
    read=read_stores,
)
BENCHMARKS = (ROWS, STORED_ROWS)
