"""How many clusters run at the same time, by their size and by how many of their CTAs an SM has room for.

The CTAs of a cluster lie in one GPC, whose SMs their number need not divide; with room for more than one CTA on an SM,
what one cluster leaves another may use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks
from metrology.survey.micro.launch import TEXTS
from metrology.survey.micro.ptx import HEAD
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import SMS

SHARED_KIB = 227
"""That the CTAs of an SM may have together, beside one that each has for the system."""
SPIN = 400_000
"""Cycles that each CTA stays, about 200 microseconds: all that fit have begun before the first ends."""
MORE = 20
"""Clusters more than would fit if nothing but the number of SMs counted."""


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """clusters_at_once: that began before the first CTA ended; on so many SMs; and the most of them on one."""
    began = clocks[clocks[:, 2] < clocks[:, 3].min()]
    _, of_each = np.unique(began[:, 4], return_counts=True)
    return {
        "clusters_at_once": len(began) / case.cluster,
        "multiprocessors": len(of_each),
        "most_ctas_of_a_multiprocessor": int(of_each.max(initial=0)),
        "began_within_ns": int(began[:, 2].max(initial=0) - clocks[:, 2].min()),
    }


def _cases() -> Iterator[Case]:
    for cluster in (2, 4, 8, 16):
        for room in (1, 2, 3, 4):
            about = {"cluster": cluster, "room_for_ctas": room, "spin_cycles": SPIN}
            clusters = SMS * room // cluster + MORE
            shared = (SHARED_KIB // room - 1) * 1024
            yield Case(about, (OUT, SPIN), HEAD, "bare", 32, clusters * cluster, cluster, shared)


RESIDENT = Benchmark(
    name="resident_clusters",
    question=QUESTIONS["resident_clusters"],
    texts={"bare": TEXTS["bare"]},
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (RESIDENT,)
