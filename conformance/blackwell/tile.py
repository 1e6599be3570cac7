"""A probe of a whole tile, computed by one CTA or a pair: TMA loads, MMAs along K, a commit, loads from tensor
memory.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.blackwell.multiply import beside_commits, f32, instruction_descriptor, matrix_descriptor, mma
from conformance.blackwell.ptx import (
    DATA,
    LANES,
    THREADS,
    TO_EVEN,
    allocate,
    by_thread_0,
    commit,
    kernel,
    map_address,
    pointer,
    release,
)
from conformance.comparison import Difference, by_element
from conformance.probe import MapArgument, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, poll

N, K = 128, 128
STAGE = 64
"""Elements along K of a stage: a row is as long as the 128-byte swizzle."""
STAGES, STEP = K // STAGE, 16
DONE = 8 * STAGES
"""The offset of the last mbarrier in shared memory; those of the stages lie before it."""
WIDE = 32
"""Columns of D that a warp loads at once, with two loads of 16 lanes."""
REGISTERS = 16
"""Registers of each of these loads."""


def _bytes(rows: int) -> int:
    return 2 * STAGE * rows


def _load(group: int, map_name: str, at: str, rows: int, stage: int) -> str:
    """Returns code that loads this CTA's rows of an operand, and signals the even CTA of a pair. A pair's loads name
    their CTA by a mask.
    """
    pair, last = (".multicast::cluster.cta_group::2", ", %h0") if group == 2 else ("", "")
    return f"""{map_address("%rd2", map_name)}add.u32 %r5, %base, {at};
mov.u32 %r6, {STAGE * stage};
mul.lo.u32 %r7, %r1, {rows};
add.u32 %r8, %base, {8 * stage};
and.b32 %r8, %r8, {TO_EVEN};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{pair} \
[%r5], [%rd2, {{%r6, %r7}}], [%r8]{last};
"""


def _multiply(group: int, a_at: int, b_at: int) -> str:
    """Returns code for the steps along K of a stage whose operands have arrived. %p2 says whether D is added."""
    text = ""
    for step in range(STAGE // STEP):
        for address, register in ((a_at, "%a"), (b_at, "%b")):
            text += f"""add.u32 %r5, %base, {address + 2 * STEP * step};
shr.u32 %r5, %r5, 4;
and.b32 %r5, %r5, 16383;
cvt.u64.u32 {register}, %r5;
or.b64 {register}, {register}, {matrix_descriptor(16, 1024, "128B")};
"""
        text += mma("f16", group) + "setp.eq.u32 %adds, %r1, %r1;\n"
    return text


def _text(group: int) -> str:
    rows = N // group
    a_at = [DATA + _bytes(LANES) * stage for stage in range(STAGES)]
    b_at = [DATA + _bytes(LANES) * STAGES + _bytes(rows) * stage for stage in range(STAGES)]
    expected = group * (_bytes(LANES) + _bytes(rows))
    loads = "mov.u32 %r2, 1;\nshl.b32 %r2, %r2, %r1;\ncvt.u16.u32 %h0, %r2;\nsetp.ne.u32 %p3, %r1, 0;\n"
    for stage in range(STAGES):
        loads += f"@!%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+{8 * stage}], {expected};\n"
        loads += _load(group, "a", f"{a_at[stage]}", LANES, stage) + _load(group, "b", f"{b_at[stage]}", rows, stage)
    multiply = "@%p3 bra ISSUED;\nsetp.ne.u32 %adds, %r1, %r1;\nmov.b32 %d, %tmem;\n"
    multiply += f"mov.b32 %idesc, {instruction_descriptor(LANES * group, N)};\n"
    for stage in range(STAGES):
        multiply += poll(f"%base+{8 * stage}", 0, "%p1") + "@!%p1 bra ISSUED;\n"
        multiply += _multiply(group, a_at[stage], b_at[stage])
    mask = "%h1" if group == 2 else ""
    multiply += "mov.u16 %h1, 3;\n" + commit(group, f"%base+{DONE}", mask) + "ISSUED:\n"
    registers = [f"%v{n}" for n in range(REGISTERS)]
    store = "".join(
        f"""add.u32 %r9, %r10, {(16 * half << 16) + WIDE * chunk};
tcgen05.ld.sync.aligned.16x256b.x4.b32 {{{", ".join(registers)}}}, [%r9];
tcgen05.wait::ld.sync.aligned;
"""
        + "".join(
            f"st.global.b32 [%rd1+{4 * THREADS * (REGISTERS * (2 * chunk + half) + n)}], {register};\n"
            for n, register in enumerate(registers)
        )
        for chunk in range(N // WIDE)
        for half in range(2)
    )
    return kernel(
        ["map a", "map b", "u64 found", "u64 done"],
        f".reg .b32 %d, %idesc, %v<{REGISTERS}>;\n.reg .b64 %a, %b;\n.reg .pred %adds;\n"
        + "mov.u32 %r1, %cluster_ctarank;\n"
        + pointer("%rd1", "found", "%r1", 4 * LANES * N)
        + "mad.wide.u32 %rd1, %thread, 4, %rd1;\n"
        + pointer("%rd3", "done", "%r1", 4)
        + by_thread_0(
            "".join(f"mbarrier.init.shared::cta.b64 [%base+{8 * n}], 1;\n" for n in range(STAGES + 1))
            + "fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n"
        )
        + allocate(N, group)
        + CLUSTER_SYNC
        + by_thread_0(loads + multiply)
        + poll(f"%base+{DONE}", 0, "%p1")
        + "bar.warp.sync -1;\ntcgen05.fence::after_thread_sync;\n"
        + "and.b32 %r10, %thread, 96;\nshl.b32 %r10, %r10, 16;\nadd.u32 %r10, %r10, %tmem;\n"
        + store
        + by_thread_0("selp.u32 %r9, 1, 0, %p1;\nst.global.u32 [%rd3], %r9;\n")
        + release(N, group)
        + CLUSTER_SYNC,
    )


def product(found: np.ndarray) -> np.ndarray:
    """Returns D from the registers that each CTA's threads have written (PTX ISA 9.7.16.2.3)."""
    ctas = len(found)
    d = np.empty((ctas, LANES, N), np.float32)
    registers = found.view(np.float32).reshape(ctas, N // WIDE, 2, REGISTERS, THREADS)
    chunk, half, i, thread = np.indices(registers.shape[1:])
    warp, t = thread // 32, thread % 32
    d[:, 32 * warp + 16 * half + t // 4 + 8 * (i // 2 % 2), WIDE * chunk + 2 * (t % 4) + i % 2 + 8 * (i // 4)] = (
        registers
    )
    return d.reshape(-1, N)


def _tile(name: str, group: int) -> Probe:
    rng = np.random.default_rng(95)
    a, b = (rng.integers(-4, 5, (rows, K)) for rows in (LANES * group, N))
    exact = (a @ b.T).astype(np.float32)

    def describe(d: Difference) -> str:
        row, thread = divmod(d.place[1], THREADS)
        chunk, i = divmod(row, REGISTERS)
        where = f"register {i} of thread {thread % 32} of warp {thread // 32}, load {chunk}"
        return f"CTA {d.place[0]}, {where} has {f32(d.theirs):g}; the emulator: {f32(d.ours):g}"

    def read(outputs: Outputs) -> dict[str, Any]:
        found = product(outputs["integers"]["found"])
        wrong = np.argwhere(found != exact)
        return {
            "exact": not len(wrong),
            **({"first wrong element": wrong[0].tolist(), "wrong elements": len(wrong)} if len(wrong) else {}),
        }

    buffers: dict[str, np.ndarray] = {
        "a": a.astype(ml_dtypes.bfloat16).view(np.uint16),
        "b": b.astype(ml_dtypes.bfloat16).view(np.uint16),
        "found": np.zeros((group, LANES * N), np.uint32),
        "done": np.full(group, 9, np.uint32),
    }
    return Probe(
        name=name,
        question=f"Is a {LANES * group} x {N} x {K} product of integers exact, loaded and computed as kernels do"
        f"{', by a pair' if group == 2 else ''}?",
        ptx=_text(group),
        cases=(
            ProbeCase(
                name="integers",
                buffers=buffers,
                arguments=(
                    MapArgument("a", "bf16", a.shape, (LANES, STAGE), "128B"),
                    MapArgument("b", "bf16", b.shape, (N // group, STAGE), "128B"),
                    Pointer("found"),
                    Pointer("done"),
                ),
                outputs=("found", "done"),
                block=THREADS,
                grid=(group, 1),
                cluster=(group, 1),
                shared=DATA + STAGES * (_bytes(LANES) + _bytes(N // group)),
            ),
        ),
        read=read,
        explain=by_element(beside_commits(describe)),
    )


PROBES = (_tile("mma_tile", 1), _tile("mma_tile_pair", 2))
