"""Configurations: defaults, what is refused, and what is then advised. The rules are the kernels' own."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from itertools import combinations, product

import pytest

from harness.config import planner
from harness.config.catalog import KERNELS
from harness.config.config import KernelConfig, make_config, parse_cluster, parse_mma_shape
from harness.errors import UsageProblem
from harness.problem.shape import Shape

DRAWN = 600
USUAL = {
    "kernel": ["kernel5", "kernel6", "kernel7", "kernel8"],
    "arch": ["sm_100a", "sm_90a"],
    "dtype": ["bf16", "fp16"],
    "cta_group": [1, 2],
    "mma_m": [64, 128, 256],
    "mma_n": [32, 64, 96, 128, 160, 192, 224, 256],
    "stages": [0, 1, 2, 3, 4, 5],
    "cluster_m": [1, 2, 4],
    "cluster_n": [1, 2, 3, 4],
    "epilogue_width": [16, 32],
    "multicast": [True, False],
    "scheduler": [""],
    "raster_group": [0],
    "accumulators": [0],
    "clc_depth": [0],
    "sms": [0],
}
ODD = {
    "dtype": ["fp8"],
    "cta_group": [3, 4],
    "mma_m": [32, 192, 512],
    "mma_n": [0, 8, 16, 48, 80, 248, 264, 272, 288],
    "stages": [-1, 6, 7, 9],
    "cluster_m": [0, 3, 5, 8, 16],
    "cluster_n": [0, 5, 8, 16],
    "epilogue_width": [8, 48, 64, 128],
    "scheduler": ["none", "static", "clc"],
    "raster_group": [1, 2, 4, 16],
    "accumulators": [1, 2, 3],
    "clc_depth": [1, 3, 4],
    "sms": [1, 16, 100],
}
WALK = ("scheduler", "raster_group", "accumulators", "clc_depth", "sms")


# Rules that a drawn configuration hardly meets: 8 rows for each CTA that shares, the limits of a cluster.
BASE = {name: values[0] for name, values in USUAL.items()}
EDGES = [
    {**BASE, "mma_m": m, "mma_n": n, "cluster_m": cm, "cluster_n": cn, "multicast": multicast}
    for m, n in ((64, 64), (128, 256))
    for cm, cn in ((1, 8), (1, 9), (1, 16), (8, 1), (9, 1), (16, 1), (1, 17), (4, 4), (3, 5))
    for multicast in (True, False)
] + [
    {**BASE, "kernel": "kernel8", "arch": arch, "cta_group": 2 if arch == "sm_100a" else 1, "mma_m": 128, **walk}
    for arch in ("sm_100a", "sm_90a")
    for walk in (
        {"scheduler": "clc", "clc_depth": 3, "accumulators": 1},
        {"scheduler": "clc", "clc_depth": 4},
        {"scheduler": "clc", "sms": 64},
        {"scheduler": "static", "clc_depth": 1},
        {"scheduler": "static", "sms": 1},
        {"scheduler": "none", "sms": 4},
        {"scheduler": "none", "raster_group": 16, "accumulators": 2},
        {"scheduler": "static", "sms": 6, "raster_group": 4, "accumulators": 1},
        {"raster_group": 2},
        {"raster_group": 16},
        {"accumulators": 2},
        {"accumulators": 3},
        {"scheduler": "dynamic", "clc_depth": 1},
    )
]


def drawn_options() -> list[dict]:
    """Mostly usual values; each field is now and then an odd one."""
    rng = random.Random(1)
    return [
        {
            name: rng.choice(ODD[name] if name in ODD and rng.random() < 0.06 else values)
            for name, values in USUAL.items()
        }
        for _ in range(DRAWN)
    ]


LEFT_OUT = ("stages", *WALK)
ROWS = {("sm_100a", 1): (64, 128), ("sm_100a", 2): (128, 256), ("sm_90a", 1): (64, 128, 256)}


def is_legal(o: dict) -> bool:
    """The rules once more, from the ISA's shapes (9.7.15.2, 9.7.16.2.1) and what a CTA and a cluster can hold."""
    blackwell = o["arch"] == "sm_100a"
    group, rows, columns = o["cta_group"], o["mma_m"], o["mma_n"]
    if o["dtype"] not in ("bf16", "fp16") or rows not in ROWS.get((o["arch"], group), ()):
        return False
    if columns not in range(16 * group, (128 if not blackwell and rows == 256 else 256) + 1, 16 * group):
        return False
    cm, cn = o["cluster_m"], o["cluster_n"]
    if min(cm, cn) < 1 or cm * cn > 16 or cm % group:
        return False
    if not may_walk(o):
        return False
    if o["epilogue_width"] not in (16, 32, 64) or warp_columns(o) % o["epilogue_width"]:
        return False
    if o["multicast"] and (rows // group < 8 * cn or columns // group < 8 * (cm // group)):
        return False
    if o["kernel"] == "kernel5" and o["stages"] not in (0, 1):
        return False
    return o["stages"] >= 0 and shared_bytes(o, o["stages"] or 1) <= 227 * 1024


def may_walk(o: dict) -> bool:
    """Where tiles come from, in which order, and where they are accumulated."""
    blackwell, asked = o["arch"] == "sm_100a", {name: o[name] for name in WALK if o[name]}
    if o["kernel"] != "kernel8":
        only = {"scheduler": "none", "raster_group": 1, "accumulators": 1}
        return all(value == only.get(name) for name, value in asked.items())
    scheduler = asked.get("scheduler", "clc" if blackwell else "static")
    stays = scheduler in ("static", "dynamic")
    return (
        scheduler in ("none", "static", "clc" if blackwell else "dynamic")
        and asked.get("raster_group", 1) in (1, 4, 8, 16)
        and asked.get("accumulators", 1) <= (2 if blackwell else 1)
        and asked.get("clc_depth", 0) <= (3 if scheduler == "clc" else 0)
        and asked.get("sms", 999) >= o["cluster_m"] * o["cluster_n"]
        and (stays or "sms" not in asked)
    )


def warp_columns(o: dict) -> int:
    """A pair with M = 128 has half of the columns in other lanes."""
    return o["mma_n"] // 2 if (o["cta_group"], o["mma_m"]) == (2, 128) else o["mma_n"]


def shared_bytes(o: dict, stages: int) -> int:
    """A and B of each stage, C or two steps of it, and barriers of 8 bytes."""
    walks, blackwell = o["kernel"] == "kernel8", o["arch"] == "sm_100a"
    rows, columns = o["mma_m"] // o["cta_group"], o["mma_n"] // o["cta_group"]
    steps = 2 if o["kernel"] in ("kernel7", "kernel8") else warp_columns(o) // o["epilogue_width"]
    halves = o["mma_n"] // warp_columns(o)
    accumulators = (o["accumulators"] or (2 if walks else 1)) if blackwell else 0
    words = accumulators * (2 if walks else 1) + 1 if blackwell else 0
    clc = walks and blackwell and o["scheduler"] in ("", "clc")
    answers = (o["clc_depth"] or 2) if clc else 0
    return (
        stages * ((rows + columns) * 64 * 2 + 2 * 8)
        + steps * halves * rows * o["epilogue_width"] * 2
        + 8 * words
        + answers * (16 + 2 * 8)
    )


def test_the_planner_keeps_the_rules():
    """Of hundreds of drawn configurations, against the rules as they are written down here."""
    legal = 0
    for options in EDGES + drawn_options():
        asked = {name: value for name, value in options.items() if value not in (0, "") or name not in LEFT_OUT}
        try:
            found = planner.complete(asked)
        except UsageProblem:
            found = None
        assert (found is not None) == is_legal(options), options
        if found:
            legal += 1
            plan = json.loads(planner.plan_json(asked, Shape(512, 512, 512)))
            assert plan["dynamic_smem"] == shared_bytes(options, found["stages"])
            deepest = 1 if options["kernel"] == "kernel5" else found["stages"] + 1
            assert options["stages"] or deepest == 1 or shared_bytes(options, deepest) > 227 * 1024
    # The comparison means something only if both verdicts are common.
    assert DRAWN // 5 < legal < DRAWN * 4 // 5


@pytest.mark.parametrize("kernel", KERNELS)
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


@pytest.mark.parametrize("kernel", KERNELS)
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
        ({"arch": "sm_90a", "cta_group": 2}, "cta group 2 is not possible on sm_90a; use 1, or arch sm_100a"),
        ({"arch": "sm_90a", "mma_shape": (256, 256)}, "N must be a multiple of 16 up to 128; use 256x128"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not supported; use one of: bf16, fp16"),
        ({"cta_group": 3}, "cta group 3 is not possible on sm_100a; use 1 or 2"),
        ({"mma_shape": (64, 64)}, "M must be 128 or 256; use 128x64, or cta group 1"),
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
            "16 CTAs share 64 rows of A and each needs at least 8; use 1x8, or no multicast",
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
    assert parse_cluster("4x2") == (4, 2) and parse_mma_shape("256X128") == (256, 128)
    with pytest.raises(UsageProblem, match=r"mma shape '256' is not MxN; write for example 256x256"):
        parse_mma_shape("256")


@pytest.mark.parametrize(
    ("shape", "tile", "cluster", "ping_pong"),
    [
        ((4096, 4096, 4096), (128, 128), (2, 1), True),  # twice as many rounds as 256x128, of half the size
        ((8192, 8192, 8192), (128, 192), (2, 1), False),  # 20.8 rounds, 21 paid for; of 256x128 15.5 and 16
        ((512, 4096, 4096), (128, 128), (2, 1), True),  # half as many tiles of 256x128 as the GPU has SMs
        (
            (2500, 5120, 13824),
            (128, 160),
            (2, 1),
            False,
        ),  # 4.8 of them in turn, 5 are paid for; 3.03 of 256x128, 4 paid
        ((777, 8192, 8192), (256, 128), (1, 2), False),  # seven tiles of 128 rows leave a CTA of two outside of C
    ],
)
def test_a_hopper_kernel_that_walks_chooses_its_tile_for_the_problem(shape, tile, cluster, ping_pong):
    config = make_config("kernel8", arch="sm_90a", shape=Shape(*shape))
    assert (config.mma_shape, config.cluster, config.ping_pong) == (tile, cluster, ping_pong)
    assert not make_config("kernel8", arch="sm_90a", shape=Shape(*shape), scheduler="dynamic").ping_pong
    assert make_config("kernel8", arch="sm_90a").mma_shape == (256, 128)
    asked = make_config("kernel8", arch="sm_90a", shape=Shape(*shape), mma_shape=(64, 256), cluster=(1, 1))
    assert (asked.mma_shape, asked.cluster) == ((64, 256), (1, 1))
    assert make_config("kernel8", arch="sm_90a", shape=Shape(*shape), cluster=(1, 2)).mma_shape[0] == 256


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
        ("kernel8", {"scheduler": "static", "clc_depth": 1}, "clc depth 1: the scheduler static keeps no answers"),
        ("kernel8", {"scheduler": "dynamic"}, "'dynamic' is not one of sm_100a's; use clc"),
        ("kernel8", {"arch": "sm_90a", "scheduler": "dynamic", "clc_depth": 1}, "the scheduler dynamic keeps no"),
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
WORDS = {name.replace("_", " "): name for name in ODD_OPTIONS}


def setting(words: str, subject: str) -> tuple[str, object]:
    """An option and its value: ``cta group 1``, ``128x64``, ``at most 5``, ``no multicast``, ``kernel8``."""
    if words.startswith("no "):
        return words.removeprefix("no ").replace(" ", "_"), False
    words = words.removeprefix("at most ").removesuffix(" or more")
    named = next((word for word in WORDS if words.startswith(f"{word} ")), None)
    value = words.removeprefix(f"{named} ")
    if value in KERNELS:
        return "kernel", value
    read = tuple(map(int, value.split("x"))) if "x" in value else int(value) if value.isdecimal() else value
    return WORDS[named] if named else subject, read


def advice(message: str, subject: str) -> list[dict]:
    """What a refusal says to do, read as a person would: options to be set otherwise, None to be left out."""
    found = []
    for part in re.split(r", or | or (?!more)", message.rsplit("; ", 1)[1]):
        if left_out := re.fullmatch(r"leave (.*) out", part):
            found.append(dict.fromkeys(name.replace(" ", "_") for name in left_out[1].split(" and ")))
            continue
        found.append(dict(setting(words, subject) for words in part.removeprefix("use ").split(" and ")))
    return found


@pytest.mark.parametrize("kernel", KERNELS)
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
            assert "--" not in message and "\n" not in message
            subject = next((name for word, name in WORDS.items() if message.startswith(word)), "arch")
            changes = advice(message, subject)
            assert changes, message
            for change in changes:
                make_config(**{name: value for name, value in {**asked, **change}.items() if value is not None})
    assert refused > 100
