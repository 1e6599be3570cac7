"""Every kernel and preset, in every cluster, type and kind of size, and odd configurations, some with another type of
C: bit-exact. Daily so many that every pair of values of two options is run; the others every night.
"""

from __future__ import annotations

import itertools

import pytest
from all_pairs import all_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runs import cluster_tile, run, sizes

from conftest import BF16_KERNELS
from harness.compile.catalog import ARCHITECTURES
from harness.compile.config import KernelConfig, make_config
from harness.compile.presets import PRESETS, configure
from harness.problem import ELEMENT_TYPES, Shape

pytestmark = pytest.mark.slow

# CTAs of an MMA in clusters of sm_100a, where a kernel may choose: a pair needs an even number along M.
CLUSTERS = {(1, 1): 1, (2, 1): 2, (1, 2): 1, (2, 2): 2, (4, 1): 2, (4, 2): 2, (4, 4): 2}
ODD = [
    *(
        make_config(kernel, arch="sm_100a", **options)
        for kernel in BF16_KERNELS
        for options in (
            {"cluster": (6, 2)},
            {"cluster": (2, 5), "mma_shape": (128, 256), "out_dtype": "f32"},
            {"cluster": (4, 1), "mma_shape": (256, 128), "dtype": "fp16"},
            {"cluster": (2, 2), "multicast": False},
            {"cluster": (1, 1), "cta_group": 1, "mma_shape": (128, 128), "out_dtype": "fp16"},
            {"cluster": (2, 3), "cta_group": 1, "mma_shape": (64, 64), "dtype": "fp16", "out_dtype": "f32"},
            {"cluster": (2, 1), "cta_group": 1, "mma_shape": (128, 48)},
            {"cluster": (2, 1), "cta_group": 1, "mma_shape": (64, 256)},
        )
    ),
    *(
        make_config(kernel, arch="sm_90a", **options)
        for kernel in BF16_KERNELS
        for options in (
            {"cluster": (4, 4), "mma_shape": (128, 128)},
            {"cluster": (3, 2), "mma_shape": (128, 64), "out_dtype": "f32"},
            {"cluster": (2, 2), "mma_shape": (128, 192), "multicast": False},
            {"cluster": (2, 3), "mma_shape": (64, 96), "epilogue_width": 32},
            {"cluster": (1, 2), "mma_shape": (256, 128), "epilogue_width": 32, "dtype": "fp16", "out_dtype": "bf16"},
        )
    ),
    make_config("kernel7", cluster=(2, 1), epilogue_width=16),
    make_config("kernel7", cluster=(2, 1), epilogue_width=64),
    make_config("kernel7", cluster=(2, 1), epilogue_width=16, stages=2, mma_shape=(128, 256)),
    make_config("kernel7", arch="sm_90a", cluster=(2, 1), epilogue_width=16, mma_shape=(128, 48), out_dtype="f32"),
    make_config("kernel7", arch="sm_90a", cluster=(2, 1), epilogue_width=64, stages=2),
    configure("kernel7", "tilus-tile", epilogue_width=16),
    # Persistent CTAs: one cluster for all tiles, or two; every group, and clusters of every kind.
    *(
        make_config("kernel8", scheduler="static", sms=cm * cn, cluster=(cm, cn), raster_group=group, accumulators=a)
        for (cm, cn), group, a in (
            ((2, 1), 1, 1),
            ((2, 1), 4, 2),
            ((4, 1), 8, 2),
            ((2, 2), 16, 2),
            ((4, 2), 4, 1),
            ((4, 4), 1, 2),
        )
    ),
    make_config("kernel8", scheduler="static", sms=2, cta_group=1, cluster=(1, 1), mma_shape=(128, 128)),
    make_config("kernel8", scheduler="static", sms=2, cta_group=1, cluster=(1, 2), mma_shape=(64, 48)),
    make_config("kernel8", scheduler="static", sms=4, cluster=(2, 1), mma_shape=(128, 256), stages=2),
    make_config("kernel8", scheduler="none", cluster=(2, 1), raster_group=4),
    *(
        make_config("kernel8", arch="sm_90a", sms=sms, mma_shape=shape, cluster=cluster, raster_group=group)
        for sms, shape, cluster, group in (
            (2, (256, 128), (1, 2), 1),
            (4, (128, 256), (2, 1), 4),
            (1, (128, 128), (1, 1), 8),
            (6, (64, 256), (3, 2), 16),
            (4, (128, 192), (2, 2), 8),
            (2, (128, 48), (2, 1), 4),
        )
    ),
    make_config("kernel8", arch="sm_90a", sms=2, stages=1),
    make_config("kernel8", arch="sm_90a", sms=2, epilogue_width=16, dtype="fp16"),
    make_config("kernel8", arch="sm_90a", sms=2, mma_shape=(128, 256), cluster=(2, 1), out_dtype="f32"),
    make_config("kernel8", arch="sm_90a", sms=2, mma_shape=(256, 128), cluster=(1, 2), out_dtype="f32"),
    make_config("kernel8", arch="sm_90a", scheduler="none"),
    make_config("kernel6", cluster=(2, 1), stages=1),
    make_config("kernel6", cluster=(2, 1), stages=2, epilogue_width=32),
    make_config("kernel6", arch="sm_90a", cluster=(2, 1), stages=1),
]


def matrix() -> list[KernelConfig]:
    """Kernels, with their defaults and with each preset, x clusters x types; what is the same only once."""
    found = []
    for arch, preset in [
        *((arch, None) for arch in ARCHITECTURES),
        *((p.options["arch"], n) for n, p in PRESETS.items()),
    ]:
        for kernel, cluster, dtype in itertools.product(BF16_KERNELS, CLUSTERS, ELEMENT_TYPES):
            options = group_options(arch, preset, cluster)
            if options is not None:
                found.append(configure(kernel, preset, arch=arch, cluster=cluster, dtype=dtype, **options))
    return list(dict.fromkeys([*found, *ODD]))


def group_options(arch: str, preset: str | None, cluster: tuple[int, int]) -> dict[str, int] | None:
    """How many CTAs work on an MMA; None: not in this cluster."""
    if arch != "sm_100a":
        return {}
    if preset is None:
        return {"cta_group": CLUSTERS[cluster]}
    return None if PRESETS[preset].options["cta_group"] == 2 and CLUSTERS[cluster] == 1 else {}


MATRIX = matrix()
SQUARES = [
    make_config(kernel, arch=arch, cluster=(2, 2)) for arch, kernel in itertools.product(ARCHITECTURES, BF16_KERNELS)
]
PAIRED = ("kernel", "arch", "dtype", "out_dtype", "cta_group", "cluster", "multicast", "mma_shape")
CONFIGS = list(dict.fromkeys([*all_pairs(MATRIX, PAIRED), *SQUARES]))
"""What is run daily."""
CASES = [*CONFIGS, *(pytest.param(config, marks=pytest.mark.nightly) for config in MATRIX if config not in CONFIGS)]


def label(config: KernelConfig) -> str:
    return config.label.replace(" ", "_")


@pytest.mark.parametrize("config", CASES, ids=label)
def test_exact(builder, config):
    """Inputs and schedules take turns from size to size and configuration to configuration; ragged sizes get both.

    Each gets three more of the other kinds of sizes in turn, fp16, which differs in a descriptor and a conversion, one.
    """
    [artifact] = builder(label(config), [config])
    index = MATRIX.index(config)
    ways = (("integer", "fifo"), ("index", "random"))
    ragged, *others = sorted(sizes(artifact.config).items(), key=lambda item: item[0] != "ragged")
    more = 1 if artifact.config.dtype == "fp16" else 3
    asked = [ragged, *(others[(index + n) % len(others)] for n in range(more))]
    for number, (name, size) in enumerate(asked, start=index):
        for kind, schedule in ways if name == "ragged" else [ways[number % 2]]:
            _, validation = run(artifact, size, kind, schedule=schedule, seed=index)
            assert validation.exact and validation.mismatches == 0, (name, size, kind, validation)


def test_the_matrix_has_every_combination():
    found = {(c.arch, c.kernel, c.cluster, c.dtype) for c in MATRIX}
    assert found >= set(itertools.product(ARCHITECTURES, BF16_KERNELS, CLUSTERS, ELEMENT_TYPES))
    assert {configure(kernel, preset) for kernel in BF16_KERNELS for preset in PRESETS} <= set(MATRIX)
    assert len(MATRIX) == len(set(MATRIX)) > 200


def test_every_pair_of_values_is_run_daily():
    for one, other in itertools.combinations(PAIRED, 2):
        wanted, found = (
            {(getattr(config, one), getattr(config, other)) for config in configs} for configs in (MATRIX, CONFIGS)
        )
        assert found == wanted, (one, other)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_random_values_within_tolerance(series, kernel, kind):
    _, validation = run(series[kernel], (512, 520, 1024), kind)
    assert validation.passed and not validation.exact and validation.max_abs_error > 0


@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_bit_level_accumulation_stays_within_tolerance(series, kernel):
    _, validation = run(series[kernel], (256, 256, 256), "normal", accumulation="tensor_core")
    assert validation.passed


@pytest.mark.parametrize("kind", ["integer", "index"])
@pytest.mark.parametrize("cluster", ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4)), ids=lambda c: f"{c[0]}x{c[1]}")
def test_exact_at_2048(artifacts, cluster, kind):
    _, validation = run(artifacts[cluster], (2048, 2048, 2048), kind)
    assert validation.mismatches == 0


def test_bands_of_a_tall_problem(common):
    """kernel7 of sm_90a goes through C in bands of 2048 rows."""
    artifact = common[make_config("kernel7", arch="sm_90a")]
    assert artifact.plan(Shape(2100, 264, 72)).grid[2] == 2
    for kind in ("integer", "index"):
        _, validation = run(artifact, (2100, 264, 72), kind)
        assert validation.mismatches == 0


@pytest.mark.parametrize("config", SQUARES, ids=label)
def test_any_other_shape_is_exact(builder, config):
    [artifact] = builder(label(config), [config])
    m, n = cluster_tile(artifact.config)

    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(
        m=st.integers(1, 2 * m + 20),
        n=st.integers(1, (2 * n + 40) // 8).map(lambda x: 8 * x),
        k=st.integers(1, 70).map(lambda x: 8 * x),
        seed=st.integers(0, 2**32 - 1),
    )
    def check(m: int, n: int, k: int, seed: int) -> None:
        _, validation = run(artifact, (m, n, k), "index", schedule="random", seed=seed)
        assert validation.mismatches == 0, validation

    check()
