"""All micro-benchmarks."""

from __future__ import annotations

from metrology.survey.micro import (
    barriers,
    edges,
    launch,
    mixed,
    resident,
    rows,
    shared,
    shared_loads,
    starts,
    stores,
    tcgen05,
    tma,
    wgmma,
    wgmma_issue,
    write_out,
)
from metrology.survey.micro.benchmark import Benchmark

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (
        launch,
        barriers,
        shared,
        shared_loads,
        write_out,
        wgmma,
        wgmma_issue,
        tcgen05,
        tma,
        stores,
        mixed,
        edges,
        resident,
        rows,
        starts,
    )
    for benchmark in module.BENCHMARKS
}
