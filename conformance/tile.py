"""A kernel that multiplies one 64 x N x 64 tile with wgmma and loads its operands by TMA: for probes and tests."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from conformance.probe import Argument, MapArgument, Pointer, ProbeCase
from conformance.ptx import CTA_SYNC, ONLY_THREAD_0, descriptor, kernel, poll, tma_load, wgmma, with_start
from emugpu.emulator import Swizzle

THREADS = 128
M = 64
STEP = 16
"""K of one instruction."""
OPERANDS = 1024
"""The offset of A in shared memory; the mbarrier is at 0. B follows A."""


@dataclass(frozen=True)
class TileProduct:
    """D [64, n] = A [64, k] . B [n, k]^T. Operands are 16-bit; an MN-major one is stored transposed in global memory.

    An operand is loaded in boxes as wide as the swizzle's span, one behind the other in shared memory.
    """

    n: int
    element: str
    swizzle: str
    a_major: str = "K"
    b_major: str = "K"
    a_in_registers: bool = False
    k: int = 64

    @property
    def name(self) -> str:
        a = "registers" if self.a_in_registers else self.a_major
        return f"{self.element}_n{self.n}_{self.swizzle}_{a}_{self.b_major}".lower()

    @property
    def description(self) -> str:
        a = "A from registers" if self.a_in_registers else f"A {self.a_major}-major"
        return f"{self.element}, swizzle {self.swizzle}, {a}, B {self.b_major}-major"

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(ml_dtypes.bfloat16 if self.element == "bf16" else np.float16)

    @property
    def mode(self) -> Swizzle:
        return Swizzle.from_name(self.swizzle)

    @property
    def b_offset(self) -> int:
        return OPERANDS + 2 * M * self.k

    @property
    def shared_bytes(self) -> int:
        return self.b_offset + 2 * self.n * self.k

    def _boxes(self, rows: int, major: str) -> list[tuple[int, int, int]]:
        """Returns (column, row, byte offset) of each box of an operand, in the coordinates of its tensor map."""
        width = self.mode.span_bytes // 2
        depth, extent = (rows, self.k) if major == "K" else (self.k, rows)
        return [(at, 0, 2 * at * depth) for at in range(0, extent, width)]

    def _descriptor(self, rows: int, major: str) -> int:
        span = self.mode.span_bytes
        if major == "K":
            # Without swizzle LBO is the step to the next 16 bytes of K; otherwise it is not used.
            leading, stride = (16 * rows, 128) if self.mode is Swizzle.NONE else (16, 8 * span)
        elif self.mode is Swizzle.NONE:
            leading, stride = 128, 16 * self.k
        else:
            leading, stride = span * self.k, 8 * span
        return descriptor(leading, stride, self.mode)

    def _step_offset(self, step: int, rows: int, major: str) -> int:
        """Returns the bytes from an operand's first element to the first one of a K step."""
        span = self.mode.span_bytes
        if major == "MN":
            return span * STEP * step
        box, inside = divmod(2 * STEP * step, span)
        return box * span * rows + inside

    def ptx(self, wait: bool = True) -> str:
        """Returns the kernel. Without ``wait`` it has no wgmma.wait_group and reads its accumulators too early."""
        d = [f"%d{j}" for j in range(self.n // 2)]
        parameters = ["map b", "u64 d"] + (["u64 a"] if self.a_in_registers else ["map a"])
        return kernel(
            parameters,
            f".reg .b32 %d<{self.n // 2}>;\n"
            + self._load()
            + "wgmma.fence.sync.aligned;\n"
            + "".join(self._step(step, d) for step in range(self.k // STEP))
            + "wgmma.commit_group.sync.aligned;\n"
            + ("wgmma.wait_group.sync.aligned 0;\n" if wait else "")
            + self._store(d),
        )

    def _load(self) -> str:
        operands = [("b", self.b_offset, self.n, self.b_major)]
        if not self.a_in_registers:
            operands.append(("a", OPERANDS, M, self.a_major))
        loads, nbytes = "", 0
        for name, offset, rows, major in operands:
            loads += f"mov.b64 %rd0, {name};\ncvta.param.u64 %rd0, %rd0;\n"
            for column, row, at in self._boxes(rows, major):
                loads += f"add.u32 %r0, %base, {offset + at};\nmov.u32 %r1, {column};\nmov.u32 %r2, {row};\n"
                loads += tma_load("%r0", "%rd0", "%r1", "%r2", "%base")
            nbytes += 2 * rows * self.k
        return (
            ONLY_THREAD_0
            + """@%p0 bra READY;
mbarrier.init.shared::cta.b64 [%base], 1;
fence.mbarrier_init.release.cluster;
READY:
"""
            + CTA_SYNC
            + "@%p0 bra ISSUED;\n"
            + f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {nbytes};\n"
            + loads
            + "ISSUED:\n"
            + poll("%base", 0, "%p1")
            + CTA_SYNC
        )

    def _step(self, step: int, d: list[str]) -> str:
        text = f"setp.ne.u32 %p2, 0, {min(step, 1)};\n"
        flags = f"1, 1, {int(self.b_major == 'MN')}"
        if self.a_in_registers:
            a = [f"%r{10 + 4 * step + j}" for j in range(4)]
            text += "" if step else self._load_registers()
            a_operand = f"{{{', '.join(a)}}}"
        else:
            flags = f"1, 1, {int(self.a_major == 'MN')}, {int(self.b_major == 'MN')}"
            a_operand = "%rd4"
            text += f"add.u32 %r0, %base, {OPERANDS + self._step_offset(step, M, self.a_major)};\n"
            text += with_start(self._descriptor(M, self.a_major), "%r0", "%rd4")
        text += f"add.u32 %r0, %base, {self.b_offset + self._step_offset(step, self.n, self.b_major)};\n"
        text += with_start(self._descriptor(self.n, self.b_major), "%r0", "%rd5")
        return text + wgmma(self.n, self.element, d, a_operand, "%rd5", "%p2", flags)

    def _load_registers(self) -> str:
        count = 4 * self.k // STEP
        text = "ld.param.u64 %rd1, [a];\nmul.wide.u32 %rd2, %thread, 4;\nadd.u64 %rd1, %rd1, %rd2;\n"
        text += "".join(f"ld.global.b32 %r{10 + j}, [%rd1+{4 * THREADS * j}];\n" for j in range(count))
        return text + "wgmma.fence.sync.aligned;\n"

    def _store(self, d: list[str]) -> str:
        text = "ld.param.u64 %rd1, [d];\nmul.wide.u32 %rd2, %thread, 4;\nadd.u64 %rd1, %rd1, %rd2;\n"
        text += "".join(f"st.global.b32 [%rd1+{4 * THREADS * j}], {r};\n" for j, r in enumerate(d))
        return text + "@%p0 bra LEFT;\nmbarrier.inval.shared::cta.b64 [%base];\nLEFT:\n"

    # ---- data ----

    def _operand(self, name: str, values: np.ndarray, major: str) -> tuple[np.ndarray, MapArgument]:
        stored = np.ascontiguousarray(values if major == "K" else values.T)
        box = (stored.shape[0], self.mode.span_bytes // 2)
        return stored.view(np.uint16), MapArgument(name, self.element, stored.shape, box, self.swizzle)

    def case(self, name: str, a: np.ndarray, b: np.ndarray) -> ProbeCase:
        """Returns the launch for A [64, k] and B [n, k] of the tile's type."""
        b_stored, b_map = self._operand("b", b, self.b_major)
        a_argument: Argument
        if self.a_in_registers:
            # Register j of a thread: row t / 4 + 8 (j % 2) of its warp, k = 2 (t % 4) and one more, + 8 (j / 2).
            words = a.view(np.uint32).reshape(4, 2, 8, -1, 2, 4)  # warp, row half, row, step, k half, pair
            stored = words.transpose(3, 4, 1, 0, 2, 5).reshape(-1, THREADS).copy()
            a_argument = Pointer("a")
        else:
            stored, a_argument = self._operand("a", a, self.a_major)
        return ProbeCase(
            name=name,
            buffers={"a": stored, "b": b_stored, "d": np.zeros((self.n // 2, THREADS), np.uint32)},
            arguments=(b_map, Pointer("d"), a_argument),
            outputs=("d",),
            block=THREADS,
            shared=self.shared_bytes,
        )

    def product(self, registers: np.ndarray) -> np.ndarray:
        """Returns D [64, n] in f32 from the kernel's output: register i of thread t of warp w (PTX ISA 9.7.15.5.1.1).

        Row 16 w + t / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2.
        """
        i, thread = np.meshgrid(np.arange(self.n // 2), np.arange(THREADS), indexing="ij")
        warp, lane = thread // 32, thread % 32
        d = np.empty((M, self.n), np.float32)
        d[16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2] = registers.view(np.float32)
        return d
