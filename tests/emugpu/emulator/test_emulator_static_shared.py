"""Static shared memory: a kernel has the variables it refers to, whatever else the module declares."""

from __future__ import annotations

import numpy as np
import pytest

from emugpu.emulator import Device, LaunchError, Module

KERNEL = """
.visible .entry {name}(.param .u64 out)
{{
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
{local}
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd1, %rd0;
shl.b32 %r1, %r0, 2;
mov.b32 %r2, {variable};
add.u32 %r1, %r1, %r2;
add.u32 %r3, %r0, 10;
st.shared.b32 [%r1], %r3;
ld.shared.b32 %r4, [%r1];
st.global.b32 [%rd1], %r4;
ret;
}}
"""
"""Every thread passes tid + 10 through a variable in shared memory."""

SIZE = 49152
"""The most that one kernel may declare."""
DYNAMIC = ".extern .shared .align 128 .b8 dynamic[];\n"
HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
MANY = (
    HEADER
    + DYNAMIC
    + "".join(f".shared .align 128 .b8 own{n}[{SIZE}];\n" for n in range(6))
    + "".join(KERNEL.format(name=f"kernel{n}", local="", variable=f"own{n}") for n in range(6))
    + KERNEL.format(name="dynamic_only", local="", variable="dynamic")
    + KERNEL.format(name="with_local", local=".shared .align 128 .b8 mine[4096];", variable="mine")
)
"""Seven kernels with module-scope variables of 48 KiB each, one with one of its own; 288 KiB in all."""
LIMIT = 232448


def run(text: str, entry: str, dynamic_smem: int) -> np.ndarray:
    device = Device()
    out = device.alloc(128)
    device.launch(Module.from_text(text), entry, grid=1, block=32, dynamic_smem=dynamic_smem, arguments=[out])
    return device.download(out, np.uint32, 32)


@pytest.mark.parametrize(
    ("entry", "static"), [("kernel0", SIZE), ("kernel5", SIZE), ("dynamic_only", 0), ("with_local", 4096)]
)
def test_a_kernel_pays_for_the_variables_it_refers_to(entry, static):
    for dynamic in (1024, LIMIT - static):
        assert (run(MANY, entry, dynamic) == np.arange(32) + 10).all()
    with pytest.raises(LaunchError, match="shared memory"):
        run(MANY, entry, LIMIT - static + 16)


def test_two_variables_of_one_kernel_are_both_paid_for():
    both = MANY + KERNEL.format(name="both", local="", variable="own0").replace(
        "add.u32 %r3, %r0, 10;", "mov.b32 %r5, own1; st.shared.b32 [%r5], %r0; add.u32 %r3, %r0, 10;"
    )
    assert (run(both, "both", LIMIT - 2 * SIZE) == np.arange(32) + 10).all()
    with pytest.raises(LaunchError, match="shared memory"):
        run(both, "both", LIMIT - 2 * SIZE + 16)


def test_a_variable_that_is_only_addressed_by_name_is_paid_for():
    direct = MANY + KERNEL.format(name="direct", local="", variable="own2").replace(
        "add.u32 %r3, %r0, 10;", "st.shared.b32 [own3+4], %r0; ld.shared.b32 %r5, [own3+4]; add.u32 %r3, %r0, 10;"
    )
    assert (run(direct, "direct", LIMIT - 2 * SIZE) == np.arange(32) + 10).all()
    with pytest.raises(LaunchError, match="shared memory"):
        run(direct, "direct", LIMIT - 2 * SIZE + 16)


def test_kernels_of_one_module_do_not_share_their_variables():
    """Two launches of different kernels, each with all the dynamic memory there is."""
    device = Device()
    module = Module.from_text(MANY)
    for entry in ("kernel1", "kernel4", "with_local"):
        out = device.alloc(128)
        device.launch(module, entry, grid=2, block=32, dynamic_smem=LIMIT - SIZE, arguments=[out])
        assert (device.download(out, np.uint32, 32) == np.arange(32) + 10).all()
