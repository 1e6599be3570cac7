"""wgmma with A in registers: they must be left alone until a wgmma.wait_group covers the instruction (9.7.15.7.1)."""

from __future__ import annotations

import numpy as np
import pytest

from emugpu.emulator import Device, Fault, Module

KERNEL = """.version 8.3
.target sm_90a
.address_size 64
.shared .align 1024 .b8 b[256];
.visible .entry kernel(.param .u64 out)
{{
.reg .pred %p<4>;
.reg .b32 %r<16>, %a<8>, %d<8>;
.reg .b64 %rd<8>;
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 16; add.u64 %rd0, %rd0, %rd1;
mov.b32 %r1, b;
setp.ge.u32 %p1, %r0, 64; @%p1 bra FILLED;
shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1;
mov.b32 %r3, 0x3C003C00; st.shared.b32 [%r2], %r3;
FILLED: fence.proxy.async.shared::cta;
bar.warp.sync -1;
bar.sync 0;
shr.u32 %r4, %r1, 4;
and.b32 %r4, %r4, 16383;
cvt.u64.u32 %rd2, %r4;
or.b64 %rd2, %rd2, {descriptor};
shr.u32 %r5, %r0, 5;
{fill}
mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;
wgmma.fence.sync.aligned;
{body}
st.global.v4.b32 [%rd0], {{%d0, %d1, %d2, %d3}};
ret;
}}
"""
"""B is 16 x 8 of f16 ones; the rows of A hold 1, 2, 3 or 4 in warp 0 to 3, so that D holds 16, 32, 48 or 64."""

DESCRIPTOR = 128 >> 4 << 16 | 128 >> 4 << 32
"""No swizzle; 128 bytes from core matrix to core matrix."""
HALVES = [0x3C003C00, 0x40004000, 0x42004200, 0x44004400]
FILL = "".join(
    f"setp.eq.u32 %p2, %r5, {w};\n" + "".join(f"@%p2 mov.b32 %a{n}, {v};\n" for n in range(8))
    for w, v in enumerate(HALVES)
)
MULTIPLY = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, %rd2, 1, 1, 1, 0;\n"
)
SECOND = MULTIPLY.replace("%a0, %a1, %a2, %a3", "%a4, %a5, %a6, %a7")
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned {};\n"
PRODUCT = np.repeat([16.0, 32.0, 48.0, 64.0], 32)


def run(body: str, schedule: str = "fifo", seed: int = 0) -> np.ndarray:
    """D as [thread, register]."""
    device = Device(schedule=schedule, seed=seed)
    out = device.alloc(128 * 16)
    text = KERNEL.format(descriptor=DESCRIPTOR, fill=FILL, body=body)
    device.launch(Module.from_text(text), grid=1, block=128, arguments=[out])
    return device.download(out, np.float32, (128, 4))


def test_the_product_of_registers_and_shared_memory():
    for seed in range(3):
        assert (run(MULTIPLY + COMMIT + WAIT.format(0), "random", seed) == PRODUCT[:, None]).all()


@pytest.mark.parametrize(
    ("write", "register"),
    [
        ("mov.b32 %a1, 0;\n", "%a1"),
        ("add.u32 %a3, %a3, 1;\n", "%a3"),
        ("ld.shared.b32 %a0, [%r1];\n", "%a0"),
        ("setp.eq.u32 %p3, %r0, 37; @%p3 mov.b32 %a2, 0;\n", "%a2"),
        ("mov.b64 {%a2, %r9}, %rd0;\n", "%a2"),
    ],
)
@pytest.mark.parametrize("commit", ["before", "after"])
def test_overwriting_a_before_the_wait_is_reported(write, register, commit):
    body = MULTIPLY + (COMMIT + write if commit == "before" else write + COMMIT) + WAIT.format(0)
    with pytest.raises(Fault, match=rf"register {register}\b"):
        run(body)


@pytest.mark.parametrize("write", ["mov.b32 %a1, 0;\n", "add.u32 %a3, %a3, 1;\n", "ld.shared.b32 %a0, [%r1];\n"])
def test_overwriting_a_after_the_wait_is_legal(write):
    for seed in range(3):
        assert (run(MULTIPLY + COMMIT + WAIT.format(0) + write, "random", seed) == PRODUCT[:, None]).all()


def test_overwriting_a_under_a_guard_that_holds_nowhere_is_legal():
    write = "setp.eq.u32 %p3, %r0, 999; @%p3 mov.b32 %a1, 0;\n"
    assert (run(MULTIPLY + COMMIT + write + WAIT.format(0)) == PRODUCT[:, None]).all()


def test_a_wait_that_leaves_the_youngest_group_pending_frees_the_older_registers_only():
    body = MULTIPLY + COMMIT + SECOND + COMMIT + WAIT.format(1)
    free = body + "mov.b32 %a0, 0;\n" + WAIT.format(0)
    assert (run(free) == 2 * PRODUCT[:, None]).all()
    with pytest.raises(Fault, match=r"register %a5\b"):
        run(body + "mov.b32 %a5, 0;\n" + WAIT.format(0))


def test_the_same_registers_may_feed_several_products():
    assert (run(MULTIPLY + MULTIPLY + COMMIT + WAIT.format(0)) == 2 * PRODUCT[:, None]).all()


def test_no_blank_is_needed_before_the_registers():
    assert (run(MULTIPLY.replace("f16 {", "f16{") + COMMIT + WAIT.format(0)) == PRODUCT[:, None]).all()
