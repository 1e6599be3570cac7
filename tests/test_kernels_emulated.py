"""Every kind of kernel configuration, executed: MMA shapes, accumulator layouts, slices, ragged edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernels_support import compile_driver, run

PAIRS = (
    "cluster_m=4, cluster_n=4",
    "cluster_m=6, cluster_n=2",
    "cluster_m=2, cluster_n=5, mma_m=128",
    "cluster_m=4, mma_n=128, dtype=DType.float16",
    "cluster_m=2, cluster_n=2, multicast=False",
)
SINGLES = (
    "cluster_m=4, cluster_n=4, mma_m=128",
    "cluster_m=1, mma_m=128, mma_n=128",
    "cluster_m=2, cluster_n=3, mma_m=64, mma_n=64, dtype=DType.float16",
)
HOPPER = (
    "cluster_m=2, cluster_n=1",
    "cluster_m=1, cluster_n=2, dtype=DType.float16",
    "cluster_m=4, cluster_n=4, mma_n=128",
    "cluster_m=3, cluster_n=2, mma_n=64",
    "cluster_m=2, cluster_n=2, multicast=False, mma_n=192",
    "cluster_m=2, cluster_n=3, mma_m=64, mma_n=96, epilogue_width=32",
    "cluster_m=1, cluster_n=2, mma_m=256, mma_n=128, epilogue_width=32",
)
HOPPER_WIDTHS = ("epilogue_width=16, mma_n=48", "epilogue_width=64, stages=2, band_m=2", "cluster_m=1, band_m=1")
WIDTHS = ("epilogue_width=16", "epilogue_width=64", "epilogue_width=16, stages=2, mma_m=128")
CONFIGS = [
    *(f'"{kernel}", {options}' for kernel in ("kernel5", "kernel6", "kernel7") for options in PAIRS),
    *(f'"{kernel}", cta_group=1, {options}' for kernel in ("kernel5", "kernel6", "kernel7") for options in SINGLES),
    *(f'"kernel7", {options}' for options in WIDTHS),
    *(f'"{kernel}", arch="sm_90a", {options}' for kernel in ("kernel5", "kernel6", "kernel7") for options in HOPPER),
    *(f'"kernel7", arch="sm_90a", {options}' for options in HOPPER_WIDTHS),
    '"kernel6", arch="sm_90a", stages=1',
    '"kernel6", stages=1',
    '"kernel6", stages=2, epilogue_width=32',
]
# Clusters of 1, 2 and 4 CTAs, one-CTA MMA 128x256: what each operand costs in bytes read.
SHARING = {"1x1": (1, 1), "2x1": (2, 1), "1x2": (1, 2), "2x2": (2, 2), "4x4": (4, 4)}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    shared = [f'"kernel6", cta_group=1, mma_m=128, cluster_m={cm}, cluster_n={cn}' for cm, cn in SHARING.values()]
    done = compile_driver(folder, [*CONFIGS, *shared])
    assert done.returncode == 0, done.stderr
    return folder / "driver"


@pytest.mark.parametrize("index", range(len(CONFIGS)), ids=CONFIGS)
def test_exact_on_tiles_ragged_edges_and_random_schedules(driver: Path, index: int) -> None:
    """Every edge ragged and K longer than the ring; whole tiles; one small corner of a tile."""
    for (m, n, k), schedule in [
        ((300, 520, 840), "random"),
        ((512, 512, 256), "fifo"),
        ((8, 8, 8), "random"),
    ]:
        got, expected, _ = run(driver, index, m, n, k, schedule, seed=index)
        wrong = np.argwhere(got != expected)
        assert wrong.size == 0, (m, n, k, schedule, len(wrong), wrong[:4].tolist())


@pytest.mark.parametrize("cluster", SHARING)
def test_multicast_divides_the_bytes_read_by_the_ctas_that_share(driver: Path, cluster: str) -> None:
    """CTAs along N share A, CTAs along M share B; what lands in shared memory is always the same."""
    m, n, k = 512, 1024, 256
    cm, cn = SHARING[cluster]
    got, expected, counters = run(driver, len(CONFIGS) + list(SHARING).index(cluster), m, n, k)
    assert (got == expected).all()
    tiles = (m // 128) * (n // 256)
    by_tensor = counters.tma_global_bytes_read_by_tensor
    assert by_tensor["argument 0"] == tiles * 128 * k * 2 // cn
    assert by_tensor["argument 1"] == tiles * 256 * k * 2 // cm
    assert counters.tma_shared_bytes_written == tiles * (128 + 256) * k * 2


def test_double_buffering_keeps_two_stores_in_flight(driver: Path) -> None:
    six, seven = (CONFIGS.index(f'"{kernel}", {PAIRS[0]}') for kernel in ("kernel6", "kernel7"))
    assert run(driver, six, 512, 512, 512)[2].max_stores_in_flight == 1
    assert run(driver, seven, 512, 512, 512, "random")[2].max_stores_in_flight == 2
