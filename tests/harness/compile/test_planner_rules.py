"""The planner keeps the rules as they are written down here once more, on hundreds of drawn configurations."""

from __future__ import annotations

import json
import random

import pytest

from emugpu.errors import UsageProblem
from harness.compile import planner
from harness.paths import ROOT
from harness.problem import Shape

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
    "out_dtype": ["bf16", "fp16", "f32"],
}
ODD = {
    "dtype": ["fp8"],
    "out_dtype": ["fp8"],
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
        *({"out_dtype": "f32", "mma_n": columns} for columns in (192, 208)),
    )
]
"""Rules that a drawn configuration hardly meets: 8 rows for each CTA that shares, the limits of a cluster."""


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
    if o["out_dtype"] not in ("bf16", "fp16", "f32") or o["epilogue_width"] * out_bytes(o) > 128:
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


def out_bytes(o: dict) -> int:
    return 4 if o["out_dtype"] == "f32" else 2


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
        + steps * halves * rows * o["epilogue_width"] * out_bytes(o)
        + 8 * words
        + answers * (16 + 2 * 8)
    )


@pytest.mark.slow
def test_the_planner_keeps_the_rules():
    """Of hundreds of drawn configurations, against the rules as they are written down here."""
    legal = 0
    for options in EDGES + drawn_options():
        asked = {name: value for name, value in options.items() if value not in (0, "") or name not in LEFT_OUT}
        try:
            found = planner.complete(asked, ROOT)
        except UsageProblem:
            found = None
        assert (found is not None) == is_legal(options), options
        if found:
            legal += 1
            plan = json.loads(planner.plan_json(asked, Shape(512, 512, 512), ROOT))
            assert plan["dynamic_smem"] == shared_bytes(options, found["stages"])
            deepest = 1 if options["kernel"] == "kernel5" else found["stages"] + 1
            assert options["stages"] or deepest == 1 or shared_bytes(options, deepest) > 227 * 1024
    # The comparison means something only if both verdicts are common.
    assert DRAWN // 5 < legal < DRAWN * 4 // 5
