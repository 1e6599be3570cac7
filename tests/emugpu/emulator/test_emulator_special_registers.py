"""Special registers, thread by thread (PTX ISA 10)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator.instructions import move
from emugpu.emulator.machine import state

LANES = np.arange(32, dtype=np.uint64)
ALL = (1 << 32) - 1


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("eq", [1 << n for n in range(32)]),
        ("lt", [(1 << n) - 1 for n in range(32)]),
        ("le", [(1 << n + 1) - 1 for n in range(32)]),
        ("gt", [ALL - ((1 << n + 1) - 1) for n in range(32)]),
        ("ge", [ALL - ((1 << n) - 1) for n in range(32)]),
    ],
)
def test_lane_masks(which, expected):
    assert run(f"mov.u32 %r1, %lanemask_{which};" + STORE_R1 + "ret;").tolist() == expected
    one = f"mov.b32 %r1, 0; setp.eq.u32 %p1, %r0, 9; @!%p1 bra L; mov.u32 %r1, %lanemask_{which}; L: "
    assert run(one + STORE_R1 + "ret;")[9] == expected[9]


SHAPE = {"grid": (4, 6, 4), "cluster": (2, 3, 2), "threads": (5, 4, 3), "words": 4 * 6 * 4 * 64}


@pytest.mark.parametrize("axis", "xyz")
@pytest.mark.parametrize("name", ["tid", "ctaid", "clusterid", "cluster_ctaid", "ntid", "nctaid", "nclusterid"])
def test_indexes_and_sizes_along_each_axis(name, axis):
    check(f"%{name}.{axis}", name, "xyz".find(axis))


@pytest.mark.parametrize("name", ["laneid", "warpid", "nwarpid", "cluster_ctarank", "cluster_nctarank"])
def test_numbers_of_lanes_warps_and_ctas(name):
    check(f"%{name}", name, 0)


def check(register: str, name: str, axis: int) -> None:
    body = f"""
    mov.u32 %r1, {register};
    mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
    mad.lo.u32 %r0, %r2, 5, %r0; mad.lo.u32 %r0, %r3, 20, %r0;
    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;
    mad.lo.u32 %r4, %r5, 4, %r4; mad.lo.u32 %r4, %r6, 24, %r4;
    mad.lo.u32 %r0, %r4, 64, %r0;
    """
    grid, cluster, block = SHAPE["grid"], SHAPE["cluster"], SHAPE["threads"]
    run = launch(body + STORE_R1 + "ret;", **SHAPE)
    for z, y, x in np.ndindex(*reversed(grid)):
        first = 64 * (x + 4 * (y + 6 * z))
        found = run.device.download(run.out + 4 * first, np.uint32, 60)
        cta = (x, y, z)
        in_cluster = tuple(c % s for c, s in zip(cta, cluster, strict=True))
        for thread in range(60):
            tid = (thread % 5, thread // 5 % 4, thread // 20)
            expected = {
                "tid": tid[axis],
                "ctaid": cta[axis],
                "clusterid": cta[axis] // cluster[axis],
                "cluster_ctaid": in_cluster[axis],
                "ntid": block[axis],
                "nctaid": grid[axis],
                "nclusterid": grid[axis] // cluster[axis],
                "laneid": thread % 32,
                "warpid": thread // 32,
                "nwarpid": 2,
                "cluster_ctarank": in_cluster[0] + 2 * (in_cluster[1] + 3 * in_cluster[2]),
                "cluster_nctarank": 12,
            }
            assert found[thread] == expected[name], (cta, thread)


@pytest.mark.parametrize(("cluster", "explicit"), [(1, 0), (2, 1)])
def test_shared_memory_and_clusters_tell_their_sizes(cluster, explicit):
    body = """
    mov.b32 %r3, words;
    mov.pred %p1, %is_explicit_cluster;
    selp.u32 %r1, 1, 0, %p1;
    mov.u32 %r2, %dynamic_smem_size;
    mov.u32 %r3, %total_smem_size;
    st.global.b32 [%rd0], %r1;
    st.global.b32 [%rd0+4], %r2;
    st.global.b32 [%rd0+8], %r3;
    ret;
    """
    run = launch(body, words=3, grid=cluster, cluster=cluster, dynamic_smem=100, module_scope=WORDS)
    assert run.words(3).tolist() == [explicit, 100, 1024 + 4096 + 100]


def test_clocks_go_on_and_their_halves_fit_together():
    body = """
    mov.u64 %rd1, %clock64;
    mov.u32 %r1, %clock;
    mov.u32 %r2, %clock_hi;
    nanosleep.u32 500;
    mov.u64 %rd2, %globaltimer;
    mov.u32 %r3, %globaltimer_lo;
    mov.u32 %r4, %globaltimer_hi;
    st.global.v2.b64 [%rd0], {%rd1, %rd2};
    st.global.v4.b32 [%rd0+16], {%r1, %r2, %r3, %r4};
    ret;
    """
    words = launch(body, words=8).words(8).tolist()
    first, then = words[0] | words[1] << 32, words[2] | words[3] << 32
    assert 0 < first < words[4] < then < words[6] and then - first >= 500
    assert words[5] == words[7] == 0
    assert max(words[4] - first, words[6] - then) < 500, "each look at a clock takes a little time only"


@pytest.mark.parametrize(
    ("register", "kind", "expected"),
    [
        ("clock", "u32", 0x89ABCDEF),
        ("clock_hi", "u32", 0xFEDC4567),
        ("clock64", "u64", 0xFEDC4567_89ABCDEF),
        ("globaltimer", "u64", 0xFEDC4567_89ABCDEF),
        ("globaltimer_lo", "u32", 0x89ABCDEF),
        ("globaltimer_hi", "u32", 0xFEDC4567),
    ],
)
def test_halves_of_a_clock_that_has_run_for_long(register, kind, expected, monkeypatch):
    """A grid whose clock starts just before 0x1_FEDC4567_89ABCDEF: of its 65 bits the register has the low ones."""
    start = state.Grid.__init__

    def late(self, *arguments) -> None:
        start(self, *arguments)
        self.clock = 0x1_FEDC4567_89ABCDEF - move._TICK

    monkeypatch.setattr(state.Grid, "__init__", late)
    read = f"mov.u64 %rd1, %{register};" if kind == "u64" else f"mov.u32 %r1, %{register}; cvt.u64.u32 %rd1, %r1;"
    found = launch(f"setp.ne.u32 %p1, %r0, 0; @%p1 exit; {read} st.global.u64 [%rd0], %rd1; ret;", words=2)
    assert found.device.download(found.out, np.uint64, 1)[0] == expected
