"""Configurations: defaults, what is refused, and what is then advised. The rules are the kernels' own."""

from __future__ import annotations

import dataclasses
import re
from itertools import combinations, product

import pytest

from conftest import BF16_KERNELS
from emugpu.errors import UsageProblem
from harness.compile.catalog import ARCHITECTURES, KERNELS
from harness.compile.config import KernelConfig, make_config
from harness.compile.options import OPTIONS
from harness.problem import Shape


@pytest.mark.parametrize("kernel", [name for name, kernel in KERNELS.items() if kernel.of_series])
@pytest.mark.parametrize("cta_group", [None, 1, 2])
@pytest.mark.parametrize("multicast", [True, False])
def test_defaults_are_legal_and_fill_shared_memory(kernel, cta_group, multicast):
    config = make_config(kernel, cta_group=cta_group, multicast=multicast)
    assert config.cta_group == (cta_group or 2)
    assert config.arch == "sm_100a" and config.cluster == (4, 4)
    deeper = config.options() | {"stages": config.stages + 1}
    with pytest.raises(UsageProblem, match="use kernel6" if kernel == "kernel5" else f"use at most {config.stages}"):
        make_config(**deeper)


def test_depths_of_the_series():
    assert [make_config(kernel).stages for kernel in ("kernel5", "kernel6", "kernel7")] == [1, 5, 6]
    assert [make_config(kernel, cta_group=1).stages for kernel in ("kernel6", "kernel7")] == [3, 4]


@pytest.mark.parametrize(("columns", "width"), [(256, 64), (96, 32), (48, 16)])
def test_the_default_width_divides_the_columns(columns, width):
    assert make_config("kernel6", cta_group=1, mma_shape=(128, columns)).epilogue_width == width


AS_AN_H200_ANSWERS = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
"""cudaOccupancyMaxActiveClusters, by CTAs of a cluster, one CTA an SM."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2), (4, 4)])
def test_clusters_that_stay_are_as_many_as_run_at_once(arch, cluster):
    size = cluster[0] * cluster[1]
    tile = {"cta_group": 1, "mma_shape": (128, 128), "cluster": cluster}
    made = make_config("kernel8", arch=arch, **tile, scheduler="static")
    assert made.sms == size * ARCHITECTURES[arch].usual.resident_clusters(size)
    if arch == "sm_90a":
        assert made.sms == size * AS_AN_H200_ANSWERS[size]


@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_json_keeps_everything(kernel):
    config = make_config(kernel, dtype="fp16", cta_group=1, cluster=(2, 3), multicast=False)
    assert KernelConfig.from_json(config.to_json()) == config
    assert "\n" not in config.to_json()


def test_labels_differ_where_configurations_do():
    base = make_config("kernel7", cluster=(2, 1))
    changes = [
        {"kernel": "kernel6", "stages": 5},
        {"dtype": "fp16"},
        {"cta_group": 1, "mma_shape": (128, 256), "stages": 4},
        {"mma_shape": (256, 128)},
        {"stages": 5},
        {"cluster": (4, 1)},
        {"epilogue_width": 16},
        {"multicast": False},
    ]
    others = [dataclasses.replace(base, **change) for change in changes]
    assert len({config.label for config in (base, *others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "sm_120a"}, "is written for sm_100a and sm_90a, not for 'sm_120a'; use sm_100a or sm_90a"),
        ({"arch": "sm_90a", "cta_group": 2}, "cta group 2 is not possible on sm_90a; use 1, or arch=sm_100a"),
        ({"arch": "sm_90a", "mma_shape": (256, 256)}, "N must be a multiple of 16 up to 128; use 256x128"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not supported; use one of: bf16, fp16"),
        ({"cta_group": 3}, "cta group 3 is not possible on sm_100a; use 1 or 2"),
        ({"mma_shape": (64, 64)}, "M must be 128 or 256; use 128x64, or cta_group=1"),
        ({"mma_shape": (512, 256)}, "M must be 128 or 256; use 256x256"),
        ({"mma_shape": (256, 100)}, "N must be a multiple of 32 up to 256; use 256x96"),
        ({"mma_shape": (256, 512)}, "N must be a multiple of 32 up to 256; use 256x256"),
        ({"cta_group": 1, "mma_shape": (128, 8)}, "N must be a multiple of 16 up to 256; use 128x32"),
        ({"cluster": (3, 2)}, "3 CTAs along M cannot be split into pairs"),
        ({"cluster": (4, 5)}, "has 20 CTAs; a cluster has at most 16"),
        ({"epilogue_width": 8}, "epilogue width 8 is not one of 16, 32, 64; use 64"),
        ({"mma_shape": (256, 96), "epilogue_width": 64}, "does not divide the 96 accumulator columns"),
        (
            {"cta_group": 1, "mma_shape": (64, 64), "cluster": (1, 16)},
            "16 CTAs share 64 rows of A and each needs at least 8; use 1x8, or multicast=false",
        ),
        ({"stages": 7}, "229376 + C 65536 + barriers 128 = 295040, more than the 232448 bytes"),
    ],
)
def test_illegal_configurations_name_value_rule_and_fix(options, message):
    with pytest.raises(UsageProblem) as caught:
        make_config("kernel6", **options)
    assert message in str(caught.value)


def test_one_kernel_has_no_pipeline():
    with pytest.raises(UsageProblem, match=r"stages 2: kernel5 has no pipeline, its only depth is 1; use kern"):
        make_config("kernel5", stages=2)


def test_sizes_are_read():
    assert OPTIONS["cluster"].parse("4x2") == (4, 2) and OPTIONS["mma_shape"].parse("256X128") == (256, 128)
    with pytest.raises(UsageProblem, match=r"mma shape '256' is not MxN; write for example 256x256"):
        OPTIONS["mma_shape"].parse("256")


@pytest.mark.parametrize(
    ("shape", "tile", "cluster", "ping_pong", "across"),  # across: the tile for a cluster of two along N
    [
        # As many waves as 256x128, fewer joules.
        ((4096, 4096, 4096), (128, 256), (2, 1), False, (256, 128)),
        # 15.5 waves, 16 paid for; of 128x192 20.8 and 21, each dearer.
        ((8192, 8192, 8192), (128, 256), (2, 1), False, (256, 128)),
        # Half as many tiles of 256x128 as the GPU has SMs.
        ((512, 4096, 4096), (128, 128), (2, 1), True, (128, 128)),
        # 4.8 of them in turn, 5 are paid for; 3.03 of 256x128, 4 paid.
        ((2500, 5120, 13824), (128, 160), (2, 1), False, (128, 160)),
        # 6.97 of 7 waves; of 128x256 6.06.
        ((5120, 5120, 13824), (128, 224), (2, 1), False, (128, 160)),
        # Three rows of tiles: half of a cluster along M would be outside C, so its two tiles lie along N.
        ((384, 5120, 13824), (128, 128), (1, 2), False, (128, 128)),
        # Swapped: 4 x 208 is 832, of 128 rows 896 or 1024 are paid for. The CTAs of a cluster share their rows of B.
        ((777, 8192, 8192), (128, 208), (1, 2), False, (128, 208)),
    ],
)
def test_a_hopper_kernel_that_walks_chooses_its_tile_for_the_problem(shape, tile, cluster, ping_pong, across):
    config = make_config("kernel8", arch="sm_90a", shape=Shape(*shape))
    assert (config.mma_shape, config.cluster, config.ping_pong) == (tile, cluster, ping_pong)
    assert not make_config("kernel8", arch="sm_90a", shape=Shape(*shape), scheduler="dynamic").ping_pong
    assert make_config("kernel8", arch="sm_90a").mma_shape == (256, 128)
    asked = make_config("kernel8", arch="sm_90a", shape=Shape(*shape), mma_shape=(64, 256), cluster=(1, 1))
    assert (asked.mma_shape, asked.cluster) == ((64, 256), (1, 1))
    asked = make_config("kernel8", arch="sm_90a", shape=Shape(*shape), cluster=(1, 2))
    assert (asked.mma_shape, asked.cluster) == (across, (1, 2))


@pytest.mark.parametrize(
    ("shape", "tile", "split", "swapped"),
    [
        # As an H200 was fastest with, or all but 1 %, of what was tried (results/nvidia-h200-small-m.json).
        ((1, 7168, 16384), (64, 16), 1, True),
        ((16, 4096, 14336), (64, 16), 2, True),
        ((16, 14336, 4096), (128, 16), 1, True),
        ((64, 8192, 8192), (128, 32), 1, True),
        ((64, 14336, 4096), (64, 128), 1, False),
        ((128, 4096, 14336), (64, 64), 1, False),
        ((128, 8192, 8192), (128, 64), 1, False),
        ((128, 14336, 4096), (128, 128), 1, False),
        # An H100 likewise, of fewer that were tried (results/nvidia-h100.json).
        ((280, 14336, 4096), (128, 144), 1, True),
        ((300, 8192, 8192), (128, 160), 1, True),
        ((384, 4096, 4096), (128, 128), 1, False),
        ((1050, 5120, 5120), (128, 176), 1, True),
        # An H200 again (results/nvidia-h200-split-k.json).
        ((144, 8192, 8192), (128, 144), 2, True),
        ((160, 7168, 18432), (128, 160), 2, True),
        ((224, 2048, 8192), (128, 128), 3, True),
        ((300, 4096, 4096), (128, 160), 2, True),
        ((256, 5120, 5120), (128, 128), 1, False),  # parts would take two waves
        # Not tried there.
        ((16, 8192, 256), (64, 16), 1, True),  # four K steps are not worth a hand-over
        ((16, 65536, 8192), (128, 16), 1, True),
        ((8, 10056, 16208), (128, 16), 3, True),  # of few rows, parts may take two waves
        ((4096, 4096, 4096), (128, 256), 1, False),
    ],
)
def test_few_rows_are_split_or_swapped(shape, tile, split, swapped):
    config = make_config("kernel8", arch="sm_90a", shape=Shape(*shape))
    assert (config.mma_shape, config.split_k, config.swapped) == (tile, split, swapped)
    asked = make_config("kernel8", arch="sm_90a", shape=Shape(*shape), split_k=3, swapped=False)
    assert (asked.split_k, asked.swapped) == (3, False)


@pytest.mark.parametrize(
    ("shape", "tile", "split", "swapped"),
    [
        (
            (16, 8192, 8192),
            (128, 16),
            2,
            True,
        ),  # 64 tiles, so that 2 parts of each fill 128 of 148 SMs, 3 take two waves
        ((1, 4096, 14336), (128, 16), 4, True),  # 32 tiles
        ((33, 28672, 4096), (128, 48), 1, True),
        ((1, 26752, 14336), (128, 16), 2, True),  # 418 parts, three waves
        ((64, 8192, 8192), (64, 128), 2, False),  # swapped, 64 of 96 columns
        ((128, 8192, 8192), (128, 128), 2, False),
        ((129, 8192, 8192), (256, 256), 1, False),
    ],
)
def test_few_rows_on_blackwell(shape, tile, split, swapped):
    found = make_config("kernel8", arch="sm_100a", shape=Shape(*shape))
    assert (found.mma_shape, found.split_k, found.swapped) == (tile, split, swapped)
    assert (found.cta_group, found.cluster) == ((2, (4, 4)) if tile == (256, 256) else (1, (1, 1)))


def test_what_is_asked_for_on_blackwell_stays():
    few = {"arch": "sm_100a", "shape": Shape(16, 8192, 8192)}
    assert not make_config("kernel8", **few, out_dtype="nvfp4").swapped
    assert make_config("kernel8", **few, cta_group=2).mma_shape == (256, 256)
    assert make_config("kernel8", **few, cluster=(2, 1)).mma_shape == (256, 256)
    of_groups = Shape(16, 8192, 8192, groups=(10, 6))
    assert make_config("kernel8", arch="sm_100a", shape=of_groups).cluster == (2, 1)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_no_part_is_no_choice(arch):
    with pytest.raises(UsageProblem, match="split k 0 is not one of 1 to 16"):
        make_config("kernel8", arch=arch, shape=Shape(16, 4096, 4096), split_k=0)


def test_what_cannot_be_swapped_takes_the_next_best():
    shape = Shape(16, 8192, 8192)
    wide = make_config("kernel8", arch="sm_90a", shape=shape, epilogue_width=64)
    assert not wide.swapped and wide.mma_shape == (64, 64)


def test_an_epilogue_and_the_type_of_c_change_no_choice():
    for asked in ({}, {"epilogue": "bias-gelu"}, {"epilogue": "swiglu"}, {"out_dtype": "f32"}):
        found = make_config("kernel8", arch="sm_90a", shape=Shape(16, 4096, 14336), **asked)
        assert (found.mma_shape, found.split_k, found.swapped) == ((64, 16), 2, True)


@pytest.mark.parametrize(
    ("shape", "asked", "tile"),
    [
        ((2560, 2816, 7168), {"epilogue_width": 64}, (128, 256)),  # 128x160 would be the fastest: 160 = 2.5 * 64
        ((1792, 1024, 6400), {"epilogue_width": 64, "cluster": (1, 2)}, (128, 128)),  # not 128x144
        ((2560, 2816, 7168), {"stages": 6}, (128, 144)),  # six of 128x160 take 221 KiB, and C beside them
        ((4096, 4096, 4096), {"scheduler": "dynamic", "cluster": (1, 2)}, (256, 128)),
    ],
)
def test_a_tile_is_chosen_among_those_that_the_rules_allow(shape, asked, tile):
    config = make_config("kernel8", arch="sm_90a", shape=Shape(*shape), **asked)
    assert config.mma_shape == tile
    assert all(getattr(config, name) == value for name, value in asked.items())


def test_of_several_tiles_that_break_a_rule_the_fastest_is_spoken_of():
    with pytest.raises(UsageProblem, match=r"^stages 60: .* use at most 6$"):
        make_config("kernel8", arch="sm_90a", shape=Shape(2560, 2816, 7168), stages=60)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("kernel7", {"scheduler": "static"}, "scheduler static: kernel7 computes one tile a CTA, .*; use kernel8"),
        ("kernel6", {"raster_group": 4}, "raster group 4: kernel6 computes one tile a CTA"),
        ("kernel8", {"raster_group": 3}, "raster group 3 is not one of 1, 4, 8, 16"),
        ("kernel8", {"raster_group": 0}, "raster group 0 is not one of 1, 4, 8, 16"),
        ("kernel8", {"epilogue_width": 0}, "epilogue width 0 is not one of 16, 32, 64"),
        ("kernel8", {"epilogue_width": 0, "stages": 2}, "epilogue width 0 is not one of 16, 32, 64"),
        ("kernel8", {"scheduler": "static", "sms": 0}, "sms 0: a cluster of 4x4 needs 16; use 16 or more"),
        ("kernel8", {"accumulators": 3}, "accumulators 3: there are 1 or 2, in tensor memory; use 1 or 2"),
        ("kernel8", {"arch": "sm_90a", "accumulators": 2}, "as sm_90a has no tensor memory; use 1"),
        ("kernel8", {"arch": "sm_90a", "scheduler": "clc"}, "'clc' is not one of sm_90a's; use static"),
        ("kernel8", {"scheduler": "clc", "clc_depth": 4}, "clc depth 4 is not one of 1, 2, 3"),
        ("kernel8", {"scheduler": "static", "clc_depth": 1}, "clc depth 1: the scheduler static has no responses"),
        ("kernel8", {"scheduler": "dynamic"}, "'dynamic' is not one of sm_100a's; use clc"),
        ("kernel8", {"arch": "sm_90a", "scheduler": "dynamic", "clc_depth": 1}, "the scheduler dynamic has no"),
        ("kernel8", {"arch": "sm_90a", "scheduler": "dynamic", "sms": 1}, "needs 2; use 2"),
        ("kernel8", {"scheduler": "static", "sms": 2}, "sms 2: a cluster of 4x4 needs 16"),
        ("kernel8", {"scheduler": "none", "sms": 4}, "sms 4: the scheduler none launches all tiles"),
    ],
)
def test_rules_of_the_order_of_tiles(kernel, options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config(kernel, **options)


# Each value of a list but the first is odd somewhere. Every pair of odd values is refused for one of them.
ODD_OPTIONS: dict[str, list] = {
    "arch": ["auto", "sm_90a"],
    "cta_group": [None, 1, 2, 3],
    "mma_shape": [None, (64, 64), (128, 256), (256, 250), (64, 8), (100, 512)],
    "stages": [None, 0, 2, 20],
    "cluster": [None, (1, 1), (3, 5), (16, 1), (1, 16), (8, 4), (0, 1)],
    "epilogue_width": [None, 48, 64],
    "scheduler": [None, "clc", "static", "dynamic"],
    "ping_pong": [None, True, False],
    "raster_group": [None, 3],
    "accumulators": [None, 2, 3],
    "clc_depth": [None, 0, 4],
    "sms": [None, 2],
}


def setting(words: str, subject: str) -> tuple[str, object]:
    """An option and its value: ``cta_group=1``, ``128x64``, ``at most 5``, ``multicast=false``, ``kernel8``."""
    value = words.removeprefix("at most ").removesuffix(" or more")
    if value in KERNELS:
        return "kernel", value
    name, _, text = value.rpartition("=")
    return name or subject, OPTIONS[name or subject].parse(text)


def advice(message: str, subject: str) -> list[dict]:
    """What a refusal says to do, read as a person would: options to be set otherwise, None to be left out."""
    found = []
    for part in re.split(r", or | or (?!more)", message.rsplit("; ", 1)[1]):
        if part.startswith("leave out "):
            left_out = part.removeprefix("leave out ").split(" and ")
            found.append(dict.fromkeys(left_out))
            continue
        found.append(dict(setting(words, subject) for words in part.removeprefix("use ").split(" and ")))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.slow
def test_what_a_refusal_advises_is_accepted(kernel):
    refused = 0
    for one, other in combinations(ODD_OPTIONS, 2):
        for value, second in product(ODD_OPTIONS[one], ODD_OPTIONS[other]):
            asked = {"kernel": kernel, one: value, other: second}
            try:
                make_config(**asked)
                continue
            except UsageProblem as problem:
                message = str(problem)
            refused += 1
            assert "\n" not in message
            subject = next((name for name in ODD_OPTIONS if message.startswith(name.replace("_", " "))), "arch")
            changes = advice(message, subject)
            assert changes, message
            for change in changes:
                make_config(**{name: value for name, value in {**asked, **change}.items() if value is not None})
    assert refused > 100
