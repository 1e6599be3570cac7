"""Launching other compilers' kernels from Python: symbols, structs by value, tensor maps in memory, names, defaults."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import source

from harness.emulator import Device, LaunchError, Module

VARIABLES = """
.global .align 4 .u32 _ZN3lab5countE = 40;
.global .align 16 .b8 lab_table[64];
.const .align 4 .b8 lab_small[2] = {1, 2};
.const .align 8 .u64 lab_scales[4] = {3, 5, 7};
.extern .global .align 4 .b8 elsewhere[];
"""

READS = """
mov.u64 %rd2, _ZN3lab5countE;
ld.global.u32 %r1, [%rd2];
ld.global.u32 %r2, [lab_table + 12];
ld.const.u32 %r3, [lab_scales + 8];
cvta.const.u64 %rd3, lab_scales;
mul.wide.u32 %rd4, %r0, 8;
add.s64 %rd3, %rd3, %rd4;
ld.u32 %r4, [%rd3];
mad.lo.u32 %r1, %r1, 1000000, %r2;
mad.lo.u32 %r3, %r3, 1000, %r4;
add.u32 %r1, %r1, %r3;
atom.global.add.u32 %r5, [%rd2], 1;
"""
"""Thread t: (count + how often it was added to) * 10^6 + table[3] + 1000 * scales[1] + scales[t]."""
STORE = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r1; ret;"


@pytest.fixture(scope="module")
def with_variables() -> Module:
    return Module.from_text(source(READS + STORE, VARIABLES))


def words(device: Device, module: Module, out: int, threads: int = 1) -> list[int]:
    device.launch(module, grid=1, block=threads, arguments=[out])
    return device.download(out, np.uint32, threads).tolist()


def test_variables_start_as_the_module_says_and_zero_elsewhere(with_variables):
    device = Device()
    assert words(device, with_variables, device.alloc(16), 4) == [40_005_003, 40_005_005, 40_005_007, 40_005_000]


def test_symbols_are_set_and_read_by_name(with_variables):
    device = Device()
    count = device.symbol("lab::count", with_variables)
    assert device.symbol("count") == device.symbol("_ZN3lab5countE") == count
    assert device.symbol_bytes("table") == 64 and device.symbol_bytes("lab_small") == 2
    device.write(count, np.uint32(7))
    device.write(device.symbol("table") + 12, np.array([9, 8], np.uint32))
    device.write(device.symbol("scales"), np.array([100, 200], np.uint64))
    assert words(device, with_variables, device.alloc(4)) == [7_000_000 + 9 + 200_000 + 100]
    assert device.download(count, np.uint32, 1) == [8]
    device.memset(device.symbol("table"), 0, 64)
    assert words(device, with_variables, device.alloc(4)) == [8_000_000 + 200_000 + 100]


def test_every_device_has_its_own_variables(with_variables):
    first, second = Device(), Device()
    first.write(first.symbol("count", with_variables), np.uint32(1))
    assert second.download(second.symbol("count", with_variables), np.uint32, 1) == [40]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lab", "variable 'lab' is not clear: it may be lab::count, lab_table, lab_small, lab_scales; write more"),
        ("nothing", "no variable 'nothing' in the module; it has lab::count, lab_table"),
        ("elsewhere", "no variable 'elsewhere'"),
    ],
)
def test_symbols_that_are_not_there_or_not_clear(with_variables, name, message):
    device = Device()
    with pytest.raises(LaunchError, match="no module is loaded yet"):
        device.symbol(name)
    device.load(with_variables)
    with pytest.raises(LaunchError, match=message):
        device.symbol(name)


def test_an_unwritten_constant_bank_is_an_error():
    text = source("mov.b32 %r2, 0; ld.const.u32 %r1, [%r2];" + STORE)
    device = Device()
    with pytest.raises(Exception, match=r"the module has no \.const variables"):
        device.launch(Module.from_text(text), grid=1, block=1, arguments=[device.alloc(4)])
