"""A kernel in a string on NumPy arrays: `emugpu.run_ptx`."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import source

import emugpu
from emugpu.errors import UsageProblem

AXPY = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %rd<5>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r1, %r4;
    @%p ret;
    mul.wide.u32 %rd1, %r1, 4;
    ld.param.u64 %rd2, [x]; add.s64 %rd2, %rd2, %rd1;
    ld.param.u64 %rd3, [y]; add.s64 %rd3, %rd3, %rd1;
    ld.global.f32 %f1, [%rd2]; ld.global.f32 %f2, [%rd3]; ld.param.f32 %f3, [a];
    fma.rn.f32 %f1, %f1, %f3, %f2;
    st.global.f32 [%rd3], %f1;
    ret;
}
"""
X = np.arange(100, dtype=np.float32)


def axpy(expected, **options):
    y = np.full(100, 7, np.float32)
    verdict = emugpu.run_ptx(AXPY, [X, y, 3.0, 90], grid=4, block=32, expect={1: expected}, **options)
    return verdict, y


def test_a_right_kernel_is_clean_and_its_result_is_in_the_array():
    expected = np.where(X < 90, 3 * X + 7, 7).astype(np.float32)
    verdict, y = axpy(expected)
    assert (verdict.word, verdict.schedules, verdict.compared) == ("clean", 4, ("argument_1",))
    assert (y == expected).all()


def test_a_wrong_result_is_wrong_unless_the_tolerance_allows_it():
    off = np.where(X < 90, 3 * X + 7, 7).astype(np.float32) * np.float32(1.001)
    assert axpy(off)[0].word == "wrong"
    verdict, _ = axpy(off, tolerance=0.01)
    assert (verdict.word, verdict.compared) == ("clean", ("argument_1 within 0.01 + 0.01 |x|",))
    assert "compared: argument_1 within 0.01 + 0.01 |x|" in "\n".join(verdict.lines())


@pytest.mark.parametrize("tolerance", [np.inf, np.nan, 1e308, 1.5, -1])
def test_a_tolerance_that_allows_everything_is_refused(tolerance):
    with pytest.raises(UsageProblem, match=r"^tolerance = .*: must be a number from 0 to 1; 0: equal$"):
        axpy(X, tolerance=tolerance)


def test_without_an_expectation_it_is_incomplete():
    out = np.zeros(64, np.uint32)
    text = source("mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [out]; st.global.b32 [%rd0], %r0; ret;")
    verdict = emugpu.run_ptx(text, [out], block=1)
    assert verdict.word == "incomplete" and "no result is expected" in verdict.reasons[0][1]


def test_a_fault_leaves_the_arrays_as_they_were():
    y = np.full(10, 7, np.float32)
    verdict = emugpu.run_ptx(AXPY, [X, y, 3.0, 90], grid=4, block=32, expect={1: y})
    assert verdict.word == "wrong" and (y == 7).all()
    assert "outside every allocation" in verdict.reasons[0][1]


@pytest.mark.parametrize(
    ("arguments", "expect", "said"),
    [
        ([X[::2], X, 1.0, 5], {}, "argument_0: an array of float32 and shape [50]; it must be contiguous"),
        ([X, "x", 1.0, 5], {}, "argument_1 = 'x': must be an array, a number or None"),
        ([X, X, 1.0, 5], {2: X}, "expect[2] of shape [100]: argument 2 is not an array"),
        ([X, X, 1.0, 5], {1: X[:3]}, "expect[1] of shape [3]: argument 1 has shape [100]"),
        ([X, X, 1.0, 5], {1: X + 0j}, "expect[1] holds complex64; give numbers"),
        ([X, X, 1.0], {}, "launch: kernel 'axpy' takes 4 arguments (x, y, a, n), 3 given"),
        ([X, X, 1.0, 5, 6], {}, "launch: kernel 'axpy' takes 4 arguments (x, y, a, n), 5 given"),
        ([X, X, 1.0, 0.5], {}, "launch: argument 3 = 0.5: 'n' is an integer (.u32); give a whole number"),
        ([X, X.tolist(), 1.0, 5], {}, "argument_1 = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, ...]: must be an array, a number"),
    ],
)
def test_what_cannot_be_launched_is_refused(arguments, expect, said):
    with pytest.raises(UsageProblem) as error:
        emugpu.run_ptx(AXPY, arguments, block=32, expect=expect)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_read_only_array_is_an_input():
    x, y = X.copy(), np.zeros(100, np.float32)
    x.flags.writeable = y.flags.writeable = False
    result = X.copy()
    assert emugpu.run_ptx(AXPY, [x, result, 3.0, 100], grid=4, block=32, expect={1: 4 * X}).word == "clean"
    assert (result == 4 * X).all()
    with pytest.raises(UsageProblem, match="argument_1: the kernel writes to it, and the array is read-only"):
        emugpu.run_ptx(AXPY, [x, y, 3.0, 100], grid=4, block=32)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (None, {}, "ptx = None: must be the text of the PTX"),
        (AXPY, {"schedules": 0}, "schedules = 0: must be a number of schedules, 1 or more"),
        (AXPY, {"schedules": "fifo"}, "schedules = 'fifo': must be a number of schedules"),
        (AXPY, {"dynamic_shared": -1}, "launch: dynamic shared memory -1 bytes: must be 0 or more"),
        (AXPY, {"dynamic_shared": 1.5}, "dynamic_shared = 1.5: must be a whole number of bytes"),
        (AXPY, {"grid": 4.0}, "grid = 4.0: must be a whole number, or up to three, x first"),
        (AXPY, {"cluster": [1, "2"]}, "cluster = [1, '2']: must be a whole number, or up to three"),
        (AXPY, {"grid": (1, 1 << 16)}, "launch: grid.y = 65536: the limit is 65535"),
        (AXPY, {"expect": [X]}, "must be arrays by position, such as {2: a + b}"),
        (AXPY, {"kernel": 3}, "kernel = 3: must be the name of a kernel, or a part of it"),
        (AXPY, {"tolerance": "0"}, "tolerance = '0': must be a number from 0 to 1; 0: equal"),
        (AXPY, {"timeout": -1}, "timeout = -1: must be a finite number of seconds above 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(text, options, said):
    with pytest.raises(UsageProblem) as error:
        emugpu.run_ptx(text, [X, X.copy(), 3.0, 100], block=32, **options)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_of_several_kernels_one_is_to_be_named():
    text = AXPY + AXPY[AXPY.index(".visible") :].replace(".entry ", ".entry other_", 1)
    with pytest.raises(UsageProblem, match=r"^kernel is missing: kernel.ptx has (\w+), other_\1; name one$"):
        emugpu.run_ptx(text, [X, X.copy(), 3.0, 100], block=32)
