"""Kernel 6 with one fault planted in its PTX: each must end in a report or a wrong result, never pass unseen."""

from __future__ import annotations

import re

import pytest
from kernel_faults import drop_wait, flip_wait, outcome, substitute, waits_in

pytestmark = pytest.mark.slow

SIZE = (512, 512, 7 * 64)
SEEDS = 26
MORE_SEEDS = 60
"""One order in 17 shows that the last drain wait is missing."""


def constant_before(ptx: str, instruction: str, change) -> str:
    """Change the constant that a ``mov.b32`` puts into the last register operand of ``instruction``."""
    use = re.search(rf"{instruction}[^;]*?(%r\d+)\s*;", ptx)
    assert use, f"no {instruction}"
    move = rf"(mov\.b32\s+{re.escape(use.group(1))}, )(-?\d+);"
    return substitute(move, lambda m: f"{m.group(1)}{change(int(m.group(2)))};")(ptx)


def expect_bytes(change):
    return lambda ptx: constant_before(ptx, r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64", change)


def multicast_mask(change: str, nth: int):
    """Replace the mask of the nth TMA load by a PTX expression of the old one."""

    def alter(ptx: str) -> str:
        pattern = r"(cp\.async\.bulk\.tensor\.2d[^;]*multicast::cluster [^;]*, )(%rs\d+);"
        load = list(re.finditer(pattern, ptx))[nth]
        altered = f"{{ .reg .b16 m; {change.format(load.group(2))} {load.group(1)}m; }}"
        return ptx[: load.start()] + altered + ptx[load.end() :]

    return alter


def descriptor_bits(mask: int):
    """Flip bits of the shared-memory descriptors in every MMA."""

    pattern = r"(tcgen05\.mma\.cta_group::2\.kind::f16 \[[^]]*\]), (%rd\d+), (%rd\d+)([^;]*;)"
    return substitute(pattern, rf"{{ .reg .b64 d; xor.b64 d, \2, {mask}; \1, d, \3\4 }}", count=0)


FAULTS = {
    # The bytes of a full barrier.
    "expect_tx halved": (expect_bytes(lambda n: n // 2), "always seen"),
    "expect_tx doubled": (expect_bytes(lambda n: 2 * n), "always seen"),
    "expect_tx one byte short": (expect_bytes(lambda n: n - 1), "always seen"),
    # Masks of A (first load) and B (second load).
    "A sent to one CTA too few": (multicast_mask("and.b16 m, {}, 0x7;", 0), "always seen"),
    "B sent to the other parity": (multicast_mask("xor.b16 m, {}, 15;", 1), "always seen"),
    "A sent to itself only": (multicast_mask("and.b16 m, {}, 3;", 0), "always seen"),
    "mask names no CTA": (multicast_mask("and.b16 m, {}, 0;", 0), "always seen"),
    # Descriptors: swizzle mode 64B instead of 128B; stride of 8-row groups; start address.
    "descriptor swizzle": (descriptor_bits((2 ^ 4) << 61), "always seen"),
    "descriptor without version": (descriptor_bits(1 << 46), "always seen"),
    "descriptor stride": (descriptor_bits(96 << 32), "always seen"),
    "descriptor start": (descriptor_bits(2), "always seen"),
    "TMEM read before the wait": (
        substitute(r" tcgen05\.wait::ld\.sync\.aligned;", "", count=0),
        "always seen",
    ),
    "TMEM not freed": (substitute(r"tcgen05\.dealloc[^;]*;", ""), "always seen"),
    "store not read before exit": (
        substitute(r"cp\.async\.bulk\.wait_group\.read 0;", ""),
        "some schedule",
    ),
    "epilogue threads not joined before the store": (
        substitute(r"bar\.sync[^;]*;", ""),
        "some schedule",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(artifacts, name):
    alter, when = FAULTS[name]
    # B is multicast only where the cluster has several pairs along M.
    artifact = artifacts[4, 2] if name.startswith("B ") else artifacts[2, 2]
    if when == "always seen":
        assert outcome(artifact, alter, SIZE, "fifo") != "right"
    seen = [outcome(artifact, alter, SIZE, "random", seed) != "right" for seed in range(SEEDS)]
    assert all(seen) if when == "always seen" else any(seen)


@pytest.mark.parametrize("alter", [drop_wait, flip_wait])
def test_every_wait_matters(artifacts, alter):
    """Each mbarrier wait of the program, dropped or turned to the other parity, is seen under some schedule.

    The exception is a drain wait that is only dropped: commits of one thread land in order, so the later ones cover it.
    """
    artifact = artifacts[2, 2]
    waits = waits_in(artifact.ptx)
    unseen = []
    for nth in range(waits):
        if all(outcome(artifact, alter(nth), SIZE, "random", seed) == "right" for seed in range(MORE_SEEDS)):
            unseen.append(nth)
    stages = artifact.config.stages
    assert waits == 3 + stages
    assert set(unseen) <= (set(range(3, waits - 1)) if alter is drop_wait else set())


def test_a_deadlock_report_tells_the_story(artifacts):
    artifact = artifacts[2, 2]
    report = outcome(artifact, expect_bytes(lambda n: n + 16), SIZE, "fifo")
    assert report.startswith("Deadlock: deadlock in kernel 'kernel6")
    assert "pending: 16 bytes" in report
    assert re.search(
        r"CTA .*rank.* warp 5 lanes 0x[0-9a-f]{8}: waits for parity 0, PTX line \d+: mbarrier.try_wait", report
    )
    assert re.search(r"CTA .*rank.* warp 4 .*waits for parity", report)
