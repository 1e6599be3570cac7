"""tcgen05.ld.red of sm_103a: a load, and the minimum or maximum of each thread's registers (PTX ISA 9.7.18.8.3)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, WORDS, launch, source

from emugpu.emulator import Device, Fault, PtxSyntaxError
from emugpu.emulator.device import Module

NAN, CANONICAL = 0x7FC12345, 0x7FFFFFFF
WAIT = "tcgen05.wait::ld.sync.aligned;\n"
STORE = """
ld.param.u64 %rd1, [out];
mul.wide.u32 %rd2, %r0, 12; add.s64 %rd1, %rd1, %rd2;
st.global.b32 [%rd1], %r6; st.global.b32 [%rd1+4], %r7; st.global.b32 [%rd1+8], %r8;
"""


def loaded(load: str, first: np.ndarray, second: np.ndarray, *, wait: str = WAIT, schedule="fifo", seed=0):
    """What each thread has after a load of two registers, %r6 and %r7, with the result %r8, of given columns."""
    body = (
        ALLOCATE
        + """
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r0, 12; add.s64 %rd1, %rd1, %rd2;
    ld.global.b32 %r4, [%rd1]; ld.global.b32 %r5, [%rd1+4];
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r4, %r5};
    tcgen05.wait::st.sync.aligned;
    """
        + load
        + wait
        + STORE
        + FREE
        + "ret;"
    )
    given = np.stack([first, second, np.zeros(32)], 1).astype(np.uint32).ravel()
    options = {"module_scope": WORDS, "target": "sm_103a", "schedule": schedule, "seed": seed}
    return launch(body, initial=given, **options).words(96).reshape(32, 3).T


def bits(*values: float) -> np.ndarray:
    return np.resize(np.array(values, np.float32), 32).view(np.uint32)


def form(rest: str) -> str:
    return f"tcgen05.ld.red.sync.aligned.32x32b.x2.{rest} {{%r6, %r7}}, %r8, [%r2];\n"


@pytest.mark.parametrize("seed", range(4))
def test_the_registers_hold_what_is_loaded_and_the_last_one_the_greatest(seed):
    rng = np.random.default_rng(5)
    first, second = rng.standard_normal((2, 32)).astype(np.float32)
    found = loaded(form("max.f32"), first.view(np.uint32), second.view(np.uint32), schedule="random", seed=seed)
    assert (found[0] == first.view(np.uint32)).all() and (found[1] == second.view(np.uint32)).all()
    assert (found[2].view(np.float32) == np.where(first > second, first, second)).all()


@pytest.mark.parametrize(
    ("rest", "pair", "result"),
    [
        ("min.f32", (3.0, -4.0), -4.0), ("max.f32", (3.0, -4.0), 3.0), ("max.abs.f32", (3.0, -4.0), 4.0),
        ("min.abs.f32", (-3.0, 4.0), 3.0), ("min.f32", (0.0, -0.0), -0.0), ("max.f32", (-0.0, 0.0), 0.0),
        ("f32.max", (1.0, 2.0), 2.0), ("max.f32", (0.0, 1e-40), 1e-40),
    ],
)  # fmt: skip
def test_floats_follow_the_rules_of_min_and_max(rest, pair, result):
    found = loaded(form(rest), bits(pair[0]), bits(pair[1]))
    assert (found[2] == bits(result)).all()


def test_nan_is_passed_on_only_if_asked_for():
    one, nan = bits(1.0), np.full(32, NAN)
    for pair in ((one, nan), (nan, one)):
        assert (loaded(form("max.f32"), *pair)[2] == one).all()
        assert (loaded(form("max.NaN.f32"), *pair)[2] == CANONICAL).all()
    assert (loaded(form("min.f32"), nan, nan)[2] == CANONICAL).all()


@pytest.mark.parametrize(("rest", "result"), [("min.s32", -5), ("max.s32", 7), ("min.u32", 7), ("u32.max", -5)])
def test_integers_are_signed_or_not(rest, result):
    found = loaded(form(rest), np.full(32, 7), np.full(32, -5, np.int32).view(np.uint32))
    assert (found[2].view(np.int32) == result).all()


def test_each_half_of_the_warp_has_the_columns_of_its_own_part():
    """.16x32bx2: lanes 0 to 15 have the columns from the address on, lanes 16 to 31 those that are further."""
    lanes = np.arange(32, dtype=np.uint32)
    third = "mul.lo.u32 %r4, %r0, 100; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+2], {%r4};\n"
    third += "tcgen05.wait::st.sync.aligned;\n"
    split = third + "tcgen05.ld.red.sync.aligned.16x32bx2.x2.max.u32 {%r6, %r7}, %r8, [%r2], 1;\n"
    found = loaded(split, lanes * 10, 500 - lanes * 10)
    row = lanes % 16
    first = np.where(lanes < 16, row * 10, 500 - row * 10)
    second = np.where(lanes < 16, 500 - row * 10, row * 100)
    assert (found == [first, second, np.maximum(first, second)]).all()


def test_the_result_may_be_read_after_the_wait_only():
    late = launch_strictly(WAIT)
    assert (late == 2).all()
    with pytest.raises(Fault, match=r"reads register %r8 of the tcgen05.ld"):
        launch_strictly("")


def launch_strictly(wait: str) -> np.ndarray:
    body = ALLOCATE + "mov.b32 %r4, 1; mov.b32 %r5, 2; tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r4, %r5};"
    body += "tcgen05.wait::st.sync.aligned;" + form("max.u32") + wait + "mov.b32 %r1, %r8;"
    body += "ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd1, %rd1, %rd2; st.global.b32 [%rd1], %r1;"
    run = launch(body + WAIT + FREE + "ret;", module_scope=WORDS, target="sm_103a", strict=True)
    return run.words(32)


def test_what_was_never_stored_has_no_greatest_element():
    body = ALLOCATE + form("max.f32") + WAIT + "setp.gt.f32 %p1, %r8, 0f00000000; @%p1 bra END; END:" + FREE + "ret;"
    with pytest.raises(Fault, match="tensor memory"):
        launch(body, module_scope=WORDS, target="sm_103a")


@pytest.mark.parametrize("kind", ["max.f32", "max.u32"])
def test_if_one_column_was_never_stored_only_its_register_and_the_result_are_undefined(kind):
    body = ALLOCATE + "mov.b32 %r4, 5; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r4};"
    body += "tcgen05.wait::st.sync.aligned;" + form(kind) + WAIT

    def branch(register: str) -> None:
        options = {"module_scope": WORDS, "target": "sm_103a", "device": Device(uninitialised="poison")}
        launch(body + FREE + f"setp.eq.u32 %p1, {register}, 5; @%p1 exit; ret;", **options)

    branch("%r6")
    for register in ("%r7", "%r8"):
        with pytest.raises(Fault, match="column 1, which was never written"):
            branch(register)


def test_a_b200_has_no_such_load():
    with pytest.raises(PtxSyntaxError, match=r"it needs sm_103a, sm_103f, sm_110a, sm_110f"):
        Module.from_text(source(ALLOCATE + form("max.f32") + "ret;", WORDS)).code("kernel")


@pytest.mark.parametrize(
    "load",
    [
        "tcgen05.ld.red.sync.aligned.32x32b.x1.max.f32 {%r6}, %r8, [%r2];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.add.f32 {%r6, %r7}, %r8, [%r2];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.f32 {%r6, %r7}, %r8, [%r2];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.s32 {%r6, %r7}, %r8, [%r2];",
        "tcgen05.ld.red.sync.aligned.16x64b.x2.max.f32 {%r6, %r7}, %r8, [%r2];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.pack::16b.max.f32 {%r6, %r7}, %r8, [%r2];",
    ],
)
def test_other_forms_are_refused(load):
    with pytest.raises(Fault, match="not implemented"):
        launch(ALLOCATE + load + "ret;", module_scope=WORDS, target="sm_103a")
