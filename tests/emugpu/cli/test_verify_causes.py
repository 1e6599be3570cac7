"""``emugpu verify`` names the cause of a fault first. Each program has a right twin, which is clean."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ptx_programs import WORDS, source

from emugpu.cli.main import main

START = """
mov.u32 %r20, %laneid; shr.u32 %r21, %r0, 5; mov.u32 %r22, %ctaid.x;
mov.b32 %r4, words; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r4; cvt.u64.u32 %rd9, %r0; shl.b64 %rd9, %rd9, 2;
add.s64 %rd8, %rd0, %rd9; mov.b32 %r1, 0;
"""
"""%r20: the lane, %r21: the warp, %r22: the CTA, %r3: the thread's word in shared memory, %rd8: its word of out."""
OUT = "st.global.b32 [%rd8], %r1; ret;"


HANDED = (
    """
ld.param.u64 %rd2, [part]; ld.param.u64 %rd3, [flag]; add.s64 %rd4, %rd2, %rd9; setp.ne.u32 %p1, %r0, 0;
setp.eq.u32 %p0, %r22, 1; @%p0 bra TAKE;
BEFORE st.global.b32 [%rd4], %r0; MEET @%p1 exit; RELEASE exit;
TAKE: @%p1 bra GO; SPIN: POLL setp.eq.u32 %p2, %r10, 0; @%p2 bra SPIN; AFTER
GO: bar.sync 0; ld.global.b32 %r1, [%rd4];
"""
    + OUT
)
"""CTA 0 hands 64 words of part to CTA 1 by a flag."""
RIGHT = {
    "BEFORE": "",
    "MEET": "bar.sync 0;",
    "RELEASE": "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd3], 1;",
    "POLL": "ld.relaxed.gpu.global.b32 %r10, [%rd3];",
    "AFTER": "fence.acq_rel.gpu;",
}


@dataclass(frozen=True)
class Case:
    """A program whose right and wrong forms differ in the text that stands for FAULT. ``first`` and ``then`` are texts
    of the wrong form's first finding. ``schedules``: so many find it.
    """

    body: str
    right: str
    wrong: str
    said: tuple[str, ...]
    expected: str = "arange(64)"
    size: int = 64
    grid: int = 1
    cluster: int = 1
    block: int = 64
    buffers: str = ""
    parameters: tuple[str, ...] = ()
    schedules: int = 4


PART_AND_FLAG: dict[str, Any] = {
    "buffers": "".join(f'{n} = {{ dtype = "u32", shape = 64, init = "zeros" }}\n' for n in ("part", "flag")),
    "parameters": ("u64 part", "u64 flag"),
}


def handed(said: tuple[str, ...], **wrong: str) -> Case:
    """A hand-over between two CTAs with other parts."""
    body = HANDED
    for name, text in RIGHT.items():
        body = body.replace(name, "FAULT" if name in wrong else text)
    right = {name: RIGHT[name] for name in wrong}
    [(name, text)] = wrong.items()
    words = ("error race-global: ", "by CTA (0, 0, 0) warp ", "by CTA (1, 0, 0) warp ", *said)
    if "scope" in " ".join(said):
        words = ("error scope: ", *words[1:])
    return Case(body, right[name], text, words, grid=2, **PART_AND_FLAG)


CASES = {
    "a flag without a release": handed(
        ("no release between the first access and the red.relaxed at PTX line ", "__threadfence() (fence.acq_rel.gpu)"),
        RELEASE="red.relaxed.gpu.global.add.u32 [%rd3], 1;",
    ),
    "a fence that comes before the write": handed(
        ("no release between the first access and the red.relaxed at PTX line ",),
        RELEASE="@%p0 fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd3], 1;",
    ),
    "a flag without an acquire": handed(
        ("no acquire between the ld.relaxed at PTX line ", "or .acquire.gpu in PTX line "), AFTER=""
    ),
    "a flag whose release has the scope of the CTA": handed(
        ("no release of .gpu scope (only of .cta)",),
        RELEASE="fence.acq_rel.cta; red.relaxed.gpu.global.add.u32 [%rd3], 1;",
    ),
    "a flag whose acquire has the scope of the CTA": handed(
        ("no acquire of .gpu scope (only of .cta)",), AFTER="fence.acq_rel.cta;"
    ),
    "a flag in front of which the wider fence is the earlier one": handed(
        ("no release of .gpu scope (only of .cluster)",),
        RELEASE="fence.acq_rel.cluster; fence.acq_rel.cta; red.relaxed.gpu.global.add.u32 [%rd3], 1;",
    ),
    "a flag after which the wider fence is the earlier one": handed(
        ("no acquire of .gpu scope (only of .cluster)",), AFTER="fence.acq_rel.cluster; fence.acq_rel.cta;"
    ),
    "a release before the other warp has written": handed(
        ("no barrier between the first access and the red.relaxed of warp 0 at PTX line ", "fix bar.sync"),
        MEET="",
    ),
    "the last CTA adds up": Case(
        """
        ld.param.u64 %rd2, [part]; ld.param.u64 %rd3, [flag]; mul.wide.u32 %rd4, %r22, 4; add.s64 %rd4, %rd2, %rd4;
        setp.ne.u32 %p1, %r0, 0; @%p1 exit; st.global.b32 [%rd4], 5;
        fence.acq_rel.gpu; atom.relaxed.gpu.global.add.u32 %r5, [%rd3], 1; FAULT
        setp.ne.u32 %p2, %r5, 2; @%p2 exit; ld.global.b32 %r6, [%rd2]; ld.global.b32 %r7, [%rd2+4];
        ld.global.b32 %r8, [%rd2+8]; add.u32 %r6, %r6, %r7; add.u32 %r1, %r6, %r8; st.global.b32 [%rd0], %r1; ret;
        """,
        "fence.acq_rel.gpu;",
        "",
        (
            "error race-global: 'part' + 0 (4 bytes): the read by ld does not wait for the write by st",
            "(2 places, ",
            "by CTA (0, 0, 0) warp 0",
            "by CTA (2, 0, 0) warp 0",
            "no acquire between the atom.relaxed at PTX line ",
        ),
        expected="full((1,), 15)",
        size=1,
        grid=3,
        buffers='part = { dtype = "u32", shape = 3, init = "zeros" }\nflag = { dtype = "u32", shape = 1, init = 0 }\n',
        parameters=("u64 part", "u64 flag"),
    ),
    "two CTAs without anything between them": Case(
        "ld.param.u64 %rd2, [part]; mul.wide.u32 %rd3, %r22, 4; FAULT st.global.b32 [%rd2], %r22;"
        "st.global.b32 [%rd8], %r0; ret;",
        "add.s64 %rd2, %rd2, %rd3;",
        "",
        ("error race-global: 'part' + 0 (4 bytes)", "fix a flag in global memory, written after a release"),
        grid=2,
        buffers='part = { dtype = "u32", shape = 2, init = "zeros" }\n',
        parameters=("u64 part",),
    ),
    "a parity that is not changed": Case(
        """
        setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32; mov.b32 %r5, words; add.u32 %r5, %r5, 512;
        @%p0 mbarrier.init.shared.b64 [%r5], 1; @%p0 mbarrier.init.shared.b64 [%r5+8], 32; bar.sync 0;
        mov.b32 %r6, 0; mov.b32 %r7, 1; mov.b32 %r8, 0; @%p1 bra PRODUCER;
        FULL: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r8; @!%p2 bra FULL;
        ld.shared.b32 %r10, [words]; add.u32 %r1, %r1, %r10; mbarrier.arrive.shared.b64 _, [%r5+8];
        FAULT add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 3; @%p3 bra FULL; bra DONE;
        PRODUCER: @!%p0 bra DONE;
        EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [%r5+8], %r7; @!%p2 bra EMPTY;
        add.u32 %r6, %r6, 1; st.shared.b32 [words], %r6; mbarrier.arrive.shared.b64 _, [%r5];
        xor.b32 %r7, %r7, 1; setp.lt.u32 %p3, %r6, 3; @%p3 bra EMPTY; DONE:
        """
        + OUT,
        "xor.b32 %r8, %r8, 1;",
        "",
        (
            "error phase-repeated: this wait at shared memory at 0x600 of CTA 0 asks for phase 0, which this thread "
            "has already seen end at PTX line ",
            "by CTA 0 warp 1",
        ),
        expected="where(arange(64) >= 32, 6, 0)",
    ),
    "a race beside a wait that is repeated, and may be": Case(
        """
        setp.eq.u32 %p0, %r0, 0; mov.b32 %r5, words; add.u32 %r5, %r5, 512; @%p0 mbarrier.init.shared.b64 [%r5], 32;
        bar.sync 0; setp.ge.u32 %p1, %r0, 64; @%p1 bra GIVES;
        W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W;
        V: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra V;
        st.shared.b32 [%r3], %r0; FAULT xor.b32 %r6, %r3, 128; ld.shared.b32 %r1, [%r6]; bra DONE;
        GIVES: setp.ge.u32 %p1, %r0, 96; @%p1 exit; mbarrier.arrive.shared.b64 _, [%r5]; exit;
        DONE:
        """
        + OUT,
        "bar.sync 1, 64;",
        "",
        ("error race-shared: ", "no barrier between the write and the read"),
        expected="roll(arange(64), 32)",
        block=128,
    ),
    "a half of a warp that arrives, and meets the other half before that arrives": Case(
        """
        setp.lt.u32 %p1, %r0, 32; st.shared.b32 [%r3], %r0; @%p1 bra WAITS;
        setp.lt.u32 %p2, %r0, 48; @%p2 barrier.arrive 1, 64; FAULT @!%p2 barrier.arrive 1, 64;
        bar.warp.sync -1; bra DONE;
        WAITS: bar.sync 1, 64; ld.shared.b32 %r1, [%r3+128]; DONE:
        """
        + OUT,
        "",
        "bar.warp.sync -1;",
        ("hung: ", "warp 1 lanes 0xffffffff: waits for the other lanes of its warp, PTX line "),
        expected="where(arange(64) < 32, arange(64) + 32, 0)",
    ),
    "halves of two warps, each of which counts as a warp": Case(
        """
        setp.ge.u32 %p1, %r0, 64; and.b32 %r6, %r0, 16; setp.ne.u32 %p2, %r6, 0; st.shared.b32 [%r3], %r0;
        @%p1 bra WAITS; @!%p2 barrier.arrive 1, FAULT; bra DONE;
        WAITS: bar.sync 1, FAULT; @!%p2 ld.shared.b32 %r1, [%r3+-128]; DONE:
        """
        + OUT,
        "96",
        "64",
        ("error race-shared: ", "by CTA 0 warp 2 missing no barrier between the write and the read"),
        expected="where(abs(2 * arange(96) - 143) < 16, arange(96) - 32, 0)",
        size=96,
        block=96,
        schedules=8,
    ),
    "a volatile flag that a third warp passes on before it has seen the first one": Case(
        """
        setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r20, 0; setp.ge.u32 %p4, %r0, 64; st.shared.b32 [%r3], %r0;
        @%p2 st.volatile.shared.b32 [%r4+1024], 0; @%p2 st.volatile.shared.b32 [%r4+1028], 0; bar.sync 0;
        @%p1 bra WAITS; @%p4 bra THIRD;
        bar.arrive 1, 64; POLL: ld.volatile.shared.b32 %r6, [%r4+1028]; setp.eq.u32 %p3, %r6, 0; @%p3 bra POLL;
        bar.arrive 1, 64; bra DONE;
        THIRD: ld.volatile.shared.b32 %r6, [%r4+1024]; setp.eq.u32 %p3, %r6, 0; FAULT
        @%p2 st.volatile.shared.b32 [%r4+1028], 1; bra DONE;
        WAITS: ld.shared.b32 %r1, [%r3+128]; bar.sync 1, 64; @%p2 st.volatile.shared.b32 [%r4+1024], 1; bar.sync 1, 64;
        DONE:
        """
        + OUT,
        "@%p3 bra THIRD;",
        "",
        ("error barrier-repeated: warp 1 arrives at barrier 1 again",),
        expected="where(arange(96) < 32, arange(96) + 32, 0)",
        size=96,
        block=96,
        schedules=1,
    ),
    "an mbarrier that is invalidated behind a volatile flag, beside a barrier of threads": Case(
        """
        setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r20, 0; setp.eq.u32 %p4, %r0, 0; st.shared.b32 [%r3], %r0;
        @%p4 mbarrier.init.shared.b64 [%r4+2048], 1; @%p2 st.volatile.shared.b32 [%r4+1024], 0; bar.sync 0;
        @%p1 bra WAITS;
        bar.arrive 1, 64; POLL: ld.volatile.shared.b32 %r6, [%r4+1024]; setp.eq.u32 %p3, %r6, 0; @%p3 bra POLL;
        FAULT @%p2 mbarrier.inval.shared.b64 [%r4+2048]; bra DONE;
        WAITS: ld.shared.b32 %r1, [%r3+128]; bar.sync 1, 64; @%p4 mbarrier.arrive.shared.b64 _, [%r4+2048];
        FAULT @%p4 st.volatile.shared.b32 [%r4+1024], 1; DONE:
        """
        + OUT,
        "fence.acq_rel.cta;",
        "",
        ("error init: ", "mbarrier.inval"),
        expected="where(arange(64) < 32, arange(64) + 32, 0)",
    ),
    "a volatile flag that does not tell that the phase is over": Case(
        """
        setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r20, 0; add.u32 %r5, %r4, 1024; st.shared.b32 [%r3], %r0;
        @%p2 st.volatile.shared.b32 [%r5], 0; bar.sync 0; @%p1 bra WAITS;
        bar.arrive 1, 64; POLL: ld.volatile.shared.b32 %r6, [%r5]; setp.eq.u32 %p3, %r6, 0; @%p3 bra POLL;
        bar.arrive 1, 64; bra DONE;
        WAITS: FAULT ld.shared.b32 %r1, [%r3+128]; bar.sync 1, 64; DONE:
        """
        + OUT,
        "bar.sync 1, 64; @%p2 st.volatile.shared.b32 [%r5], 1;",
        "@%p2 st.volatile.shared.b32 [%r5], 1; bar.sync 1, 64;",
        ("error barrier-repeated: warp 1 arrives at barrier 1 again",),
        expected="where(arange(64) < 32, arange(64) + 32, 0)",
    ),
    "a half of a warp that arrives for the other half": Case(
        """
        setp.lt.u32 %p1, %r0, 32; st.shared.b32 [%r3], %r0; @%p1 bra WAITS;
        setp.lt.u32 %p2, %r0, 48; @%p2 barrier.arrive 1, 64; FAULT barrier.arrive 1, 64;
        bar.warp.sync -1; bar.arrive 2, 64; bra DONE;
        WAITS: bar.sync 1, 64; setp.lt.u32 %p2, %r20, 16; @%p2 ld.shared.b32 %r1, [%r3+128]; bar.sync 2, 64; DONE:
        """
        + OUT,
        "@!%p2",
        "@%p2",
        ("hung: ", "warp 1 lanes 0x0000ffff: waits for the other lanes of its warp, PTX line "),
        expected="where(arange(64) < 16, arange(64) + 32, 0)",
    ),
    "a warp that arrives twice in a phase": Case(
        """
        setp.lt.u32 %p1, %r0, 32; st.shared.b32 [%r3], %r0; @%p1 bra WAITS;
        bar.arrive 1, 64; FAULT bar.arrive 1, 64; bra DONE;
        WAITS: bar.sync 1, 64; ld.shared.b32 %r1, [%r3+128]; SECOND bar.sync 1, 64; DONE:
        """.replace("SECOND", "bar.sync 2, 64;")
        + OUT,
        "bar.sync 2, 64;",
        "bar.arrive 2, 64;",
        (
            "error barrier-repeated: warp 1 arrives at barrier 1 again",
            "missing no wait for the end of the phase between the two arrivals",
        ),
        expected="where(arange(64) < 32, arange(64) + 32, 0)",
        schedules=1,
    ),
    "a warp that exits before the others meet": Case(
        "st.global.b32 [%rd8], %r0; setp.ge.u32 %p0, %r0, 32; FAULT barrier.cta.sync 1, 64; ret;",
        "",
        "@%p0 exit;",
        ("hung: ", "barrier 1 of CTA (0, 0, 0) lacks 32 of 64 threads: warp 1 of CTA (0, 0, 0) has exited; "),
    ),
    "a warp that waits at another barrier": Case(
        "st.global.b32 [%rd8], %r0; setp.ge.u32 %p0, %r0, 32; FAULT bar.sync 1, 64; ret;",
        "",
        "@%p0 bar.sync 2, 64;",
        ("hung: ", "barrier 1 of CTA (0, 0, 0) lacks 32 of 64 threads: warp 1 of CTA (0, 0, 0) waits at PTX line "),
    ),
    "a warp that leaves out an arrival": Case(
        """
        setp.eq.u32 %p0, %r0, 0; mov.b32 %r5, words; @%p0 mbarrier.init.shared.b64 [%r5], 64; bar.sync 0;
        mbarrier.arrive.shared.b64 _, [%r5]; W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W;
        setp.ge.u32 %p1, %r0, 32; FAULT mbarrier.arrive.shared.b64 _, [%r5];
        V: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 1; @!%p2 bra V; st.global.b32 [%rd8], %r0; ret;
        """,
        "",
        "@!%p1",
        (
            "error phase-unobserved: waits for phase 1 of shared memory at 0x400 of CTA 0, which never ends: it lacks "
            "32 of 64 arrivals: warp 1 of CTA (0, 0, 0), which arrived in phase 0, waits at PTX line ",
        ),
    ),
    "a warp that never arrives": Case(
        """
        st.global.b32 [%rd8], %r0; setp.eq.u32 %p0, %r0, 0; mov.b32 %r5, words; setp.ge.u32 %p1, %r0, 32;
        @%p0 mbarrier.init.shared.b64 [%r5], 32; bar.sync 0; @!%p1 bra W; FAULT mbarrier.arrive.shared.b64 _, [%r5];
        exit; W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W; ret;
        """,
        "",
        "exit;",
        ("which never ends: it lacks 32 of 32 arrivals: warp 1 of CTA (0, 0, 0) has exited",),
    ),
    "a bulk store whose source is written again": Case(
        """
        st.shared.b32 [%r3], %r0; fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p0, %r0, 0; @%p0 exit;
        cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r4], 256; cp.async.bulk.commit_group; FAULT
        st.shared.b32 [%r4+20], 9; cp.async.bulk.wait_group 0; ret;
        """,
        "cp.async.bulk.wait_group.read 0;",
        "",
        ("error store-source-reused: ", "missing no cp.async.bulk.wait_group.read by the thread that issued the store"),
    ),
    "a bulk copy whose source is written again": Case(
        """
        ld.param.u64 %rd2, [x]; setp.ne.u32 %p0, %r0, 0; mov.b32 %r5, words; add.u32 %r5, %r5, 1024;
        @!%p0 mbarrier.init.shared.b64 [%r5], 1; bar.sync 0; @%p0 bra W;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd2], 256, [%r5]; FAULT
        st.global.b32 [%rd2+12], 3; W: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0; @!%p1 bra W;
        ld.shared.b32 %r1, [%r3];
        """
        + OUT,
        "V: mbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0; @!%p1 bra V;",
        "",
        (
            "error race-global: 'x' + 12 (4 bytes): the write by st overwrites what the TMA copy may still read",
            "missing no wait for the phase of the mbarrier that counts the bytes of the copy fix wait for that phase "
            "before the write",
        ),
        expected="x",
        buffers='x = { dtype = "u32", shape = 64, init = "index" }\n',
        parameters=("u64 x",),
    ),
    "a cp.async whose source is written again": Case(
        """
        ld.param.u64 %rd2, [x]; add.s64 %rd2, %rd2, %rd9; cp.async.ca.shared.global [%r3], [%rd2], 4; FAULT
        st.global.b32 [%rd2], 5; cp.async.wait_all; ld.shared.b32 %r1, [%r3];
        """
        + OUT,
        "cp.async.wait_all;",
        "",
        ("overwrites what the cp.async may still read", "missing no cp.async.wait_group by the thread that copies"),
        expected="x",
        buffers='x = { dtype = "u32", shape = 64, init = "index" }\n',
        parameters=("u64 x",),
    ),
    "lane 0 hands over the word of another lane": Case(
        """
        ld.param.u64 %rd2, [part]; ld.param.u64 %rd3, [flag]; add.s64 %rd4, %rd2, %rd9; setp.ne.u32 %p1, %r0, 0;
        setp.eq.u32 %p0, %r22, 1; @%p0 bra TAKE;
        st.global.b32 [%rd4], 7; @%p1 exit; st.release.gpu.global.b32 [%rd3], 1; exit;
        TAKE: @%p1 exit; SPIN: ld.acquire.gpu.global.b32 %r5, [%rd3]; setp.eq.u32 %p2, %r5, 0; @%p2 bra SPIN;
        ld.global.b32 %r1, [%rd2+FAULT]; st.global.b32 [%rd0], %r1; ret;
        """,
        "0",
        "20",
        ("error signal-for-lanes: 'part' + 20 (4 bytes): lane 0 signals in line ", "no bar.warp.sync between line "),
        expected="7",
        size=1,
        grid=2,
        block=32,
        **PART_AND_FLAG,
    ),
    "lane 0 hands over its own word alone, to another CTA": Case(
        """
        ld.param.u64 %rd2, [part]; ld.param.u64 %rd3, [flag]; add.s64 %rd4, %rd2, %rd9; setp.ne.u32 %p1, %r0, 0;
        setp.eq.u32 %p0, %r22, 1; @%p0 bra TAKE;
        st.global.b32 [%rd4], 7; @%p1 exit; fence.acq_rel.FAULT; st.relaxed.gpu.global.b32 [%rd3], 1; exit;
        TAKE: @%p1 exit; SPIN: ld.acquire.gpu.global.b32 %r5, [%rd3]; setp.eq.u32 %p2, %r5, 0; @%p2 bra SPIN;
        ld.global.b32 %r1, [%rd2]; st.global.b32 [%rd0], %r1; ret;
        """,
        "gpu",
        "cta",
        ("error scope: 'part' + 0 (4 bytes): the write may not be visible in another CTA",),
        expected="7",
        size=1,
        grid=2,
        block=32,
        **PART_AND_FLAG,
    ),
    "a bulk reduction into what threads have stored": Case(
        """
        ld.param.u64 %rd2, [part]; add.s64 %rd4, %rd2, %rd9; setp.ne.u32 %p1, %r0, 0;
        st.shared.b32 [%r3], %r0; st.global.b32 [%rd4], 0; FAULT bar.sync 0; @%p1 bra OVER;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd2], [%r4], 256;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        OVER: bar.sync 0; ld.global.b32 %r1, [%rd4];
        """
        + OUT,
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        ("error proxy-global: 'part' + 0 ", "the bulk store reads through the async proxy what", "cp.reduce"),
        buffers='part = { dtype = "u32", shape = 64, init = "zeros" }\n',
        parameters=("u64 part",),
    ),
    "a phase that ends before the st.async of the other CTA have landed": Case(
        """
        mov.u32 %r23, %cluster_ctarank; setp.eq.u32 %p0, %r23, 0; setp.eq.u32 %p1, %r0, 0; add.u32 %r5, %r4, 2048;
        @%p1 mbarrier.init.shared.b64 [%r5], 1; @%p1 fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @!%p0 bra SENDS;
        @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], FAULT;
        W: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra W; ld.shared.b32 %r1, [%r3];
        """
        + OUT
        + """
        SENDS: mapa.shared::cluster.u32 %r11, %r3, 0; mapa.shared::cluster.u32 %r8, %r5, 0;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r11], %r0, [%r8]; ret;
        """,
        "256",
        "128",
        ("error bytes: ", "of CTA 0"),
        grid=2,
        cluster=2,
    ),
    "a flag whose scope is that of the CTA": Case(
        """
        ld.param.u64 %rd2, [part]; setp.ne.u32 %p1, %r0, 0; @%p1 exit;
        atom.relaxed.FAULT.global.add.u32 %r5, [%rd2], 1; st.global.b32 [%rd0], 7; ret;
        """,
        "gpu",
        "cta",
        ("error race-global: 'part' + 0 ", "has the scope .cta, which does not hold both", "fix .gpu in PTX line "),
        expected="7",
        size=1,
        grid=2,
        buffers='part = { dtype = "u32", shape = 64, init = "zeros" }\n',
        parameters=("u64 part",),
    ),
    "a wait for the wrong phase, behind which nobody sends": Case(
        """
        ld.param.u64 %rd2, [part]; add.u32 %r5, %r4, 2048; setp.eq.u32 %p1, %r0, 0; mov.b32 %r6, 256;
        @%p1 mbarrier.init.shared.b64 [%r5], 1; @%p1 mbarrier.init.shared.b64 [%r5+8], 1; bar.sync 0; @!%p1 bra FULL;
        mbarrier.arrive.shared.b64 _, [%r5]; mbarrier.arrive.expect_tx.shared.b64 _, [%r5+8], 256;
        EMPTY: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], FAULT; @!%p3 bra EMPTY;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%rd2], 256, [%r5+8];
        FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r5+8], 0; @!%p3 bra FULL; ld.shared.b32 %r1, [%r3];
        """
        + OUT,
        "0",
        "1",
        ("error phase-lapped: phase 0 of shared memory at 0xc00 of CTA 0 ended before this wait looked",),
        buffers='part = { dtype = "u32", shape = 64, init = "index" }\n',
        parameters=("u64 part",),
    ),
    "an element that no thread stores": Case(
        "FAULT st.global.b32 [%rd8], %r0; ret;",
        "",
        "setp.ge.u32 %p0, %r0, 60; @%p0 exit;",
        ("a result is wrong: out[60] was never written",),
    ),
    "an element that is made of unwritten shared memory": Case(
        "FAULT st.shared.b32 [%r3], %r0; bar.sync 0; ld.shared.b32 %r1, [%r3]; add.u32 %r1, %r1, 0;" + OUT,
        "",
        "setp.eq.u32 %p0, %r0, 37; @!%p0",
        (
            "out[37] is undefined: PTX line ",
            "in CTA (0, 0, 0), warp 1, lane 5 stores what PTX line ",
            "loads (shared memory byte 0x494 is read but was never written",
        ),
    ),
    "the origin of what goes through shared memory twice": Case(
        "FAULT st.shared.b32 [%r3], %r0; bar.sync 0; ld.shared.b32 %r1, [%r3]; st.shared.b32 [%r3+1024], %r1;"
        "bar.sync 0; ld.shared.b32 %r1, [%r3+1024];" + OUT,
        "",
        "setp.eq.u32 %p0, %r0, 37; @!%p0",
        ("out[37] is undefined: ", "loads (shared memory byte 0x494 is read but was never written"),
    ),
    "an element that was never computed": Case(
        "setp.eq.u32 %p0, %r0, 9; @!%p0 mov.b32 %r9, %r0; FAULT st.global.b32 [%rd8], %r9; ret;",
        "@%p0 mov.b32 %r9, 9;",
        "",
        ("out[9] is undefined: PTX line ", "stores register %r9, which was never written"),
    ),
    "a wrong element": Case(
        "mov.b32 %r1, %r0; setp.eq.u32 %p0, %r0, 17; FAULT" + OUT,
        "",
        "@%p0 mov.b32 %r1, 3;",
        ("a result is wrong: out in 1 of 64 elements; out[17] is 3, and must be 17",),
    ),
}  # fmt: skip


def verify(case: Case, fault: str, folder: Path, schedules: int = 8) -> tuple[int, str]:
    names = ["out", *(parameter.split()[1] for parameter in case.parameters)]
    arguments = ", ".join(f'"{name}"' for name in names)
    body = START + case.body.replace("FAULT", fault)
    (folder / "kernel.ptx").write_text(source(body, WORDS, parameters=list(case.parameters)))
    (folder / "launch.toml").write_text(
        f'ptx = "kernel.ptx"\nexpect.out = "{case.expected}"\n'
        f"launch = {{ grid = {case.grid}, cluster = {case.cluster}, block = {case.block}, arguments = [{arguments}] }}"
        f'\n[buffers]\nout = {{ dtype = "u32", shape = {case.size}, init = "uninitialised" }}\n{case.buffers}'
    )
    words = ["verify", str(folder / "launch.toml"), "--schedules", str(schedules)]
    done = CliRunner().invoke(main, words, env={"COLUMNS": "10000"})
    return done.exit_code, done.output


def first_finding(output: str) -> str:
    """Returns the first line of a report and the indented lines that belong to it."""
    lines = output.splitlines()
    end = next((n for n, line in enumerate(lines) if n and not line.startswith(" ")), len(lines))
    return "\n".join(lines[:end])


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding_names_the_cause(name, tmp_path):
    case = CASES[name]
    code, output = verify(case, case.wrong, tmp_path, case.schedules)
    assert code in (1, 3, 4), output
    found = re.sub(r"\s+", " ", first_finding(output))
    for text in case.said:
        assert text in found, output


@pytest.mark.parametrize("name", CASES)
def test_its_right_twin_is_clean(name, tmp_path):
    case = CASES[name]
    code, output = verify(case, case.right, tmp_path)
    assert code == 0, output


def test_a_harmless_repeated_wait_hides_no_race(tmp_path):
    """Warp 0 waits twice for a phase that warp 1 ends, which then reads what warp 0 writes."""
    case = Case(
        """
        setp.eq.u32 %p0, %r0, 0; mov.b32 %r5, words; add.u32 %r5, %r5, 512; @%p0 mbarrier.init.shared.b64 [%r5], 32;
        bar.sync 0; setp.ge.u32 %p1, %r0, 32; @%p1 bra GIVES;
        W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W;
        V: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra V;
        st.shared.b32 [%r3], %r0; FAULT st.global.b32 [%rd8], %r0; ret;
        GIVES: mbarrier.arrive.shared.b64 _, [%r5]; LATER ld.shared.b32 %r1, [%r3+-128];
        """
        + OUT,
        "bar.sync 1;",
        "",
        (),
        expected="arange(64) % 32",
    )
    right = replace(case, body=case.body.replace("LATER", "bar.sync 1;"))
    assert verify(right, right.right, tmp_path)[0] == 0
    code, output = verify(replace(case, body=case.body.replace("LATER", "")), case.wrong, tmp_path, case.schedules)
    assert code != 0
    assert output.index("error phase-repeated") < output.index("error race-shared")
