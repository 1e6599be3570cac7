"""Elements of a vector load that nobody uses: .pragma "used_bytes_mask" (PTX ISA 11.3), and the sink."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from native_engine import Listener
from ptx_programs import STORE_R1, WORDS, launch

from emugpu.check.checker import Checker
from emugpu.emulator import Device, Fault
from emugpu.emulator.native.library import Library, library_for


@pytest.fixture(params=["python", "native"])
def library(request) -> Library | None:
    found = library_for(request.param)
    if request.param == "native" and found is None:
        pytest.skip("no Mojo compiler")
    return found


GIVEN = "ld.param.u64 %rd2, [given];"


@pytest.mark.parametrize(
    ("mask", "elements", "wrong"),
    [
        ("4095", 3, ""),
        ("0x1ff", 3, ""),  # a byte of the third is used
        ("4095", 4, ""),
        ("255", 2, ""),
        ("65535", 3, "outside every allocation"),
        ("0xf0ff", 3, "outside every allocation"),
    ],
)
def test_elements_that_nobody_uses_may_lie_outside(library, mask, elements, wrong):
    """Of seven words or so the last ones are read as four."""
    device = Device(library=library)
    given = device.upload(10 * np.arange(4 + elements, dtype=np.uint32), "given")
    body = f"""{GIVEN}
    .pragma "used_bytes_mask {mask}";
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2+16];
    add.u32 %r1, %r4, %r5;
    """
    with pytest.raises(Fault, match=wrong) if wrong else nullcontext():
        made = launch(body + STORE_R1 + "ret;", device=device, threads=1, parameters=["u64 given"], arguments=[given])
        assert made.words(1)[0] == 90


@pytest.mark.parametrize("addresses", ["all lanes", "each lane"])
@pytest.mark.parametrize("vector", ["{%r4, %r5, _, %r7}", "{_, %r5, %r6, %r7}", "{%r4, %r5, %r6, _}"])
def test_the_elements_that_are_used_come_from_their_own_places(library, vector, addresses):
    device = Device(library=library)
    given = device.upload(np.arange(128, dtype=np.uint32) ** 2, "given")
    step = 16 if addresses == "each lane" else 0
    body = f"""{GIVEN} mul.wide.u32 %rd3, %r0, {step}; add.u64 %rd2, %rd2, %rd3;
    mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
    ld.global.v4.b32 {vector}, [%rd2];
    mad.lo.u32 %r1, %r5, 3, %r4; mad.lo.u32 %r1, %r6, 5, %r1; mad.lo.u32 %r1, %r7, 7, %r1;
    """
    made = launch(body + STORE_R1 + "ret;", device=device, parameters=["u64 given"], arguments=[given])
    weights = np.array(
        [0 if name == "_" else w for name, w in zip(vector[1:-1].split(", "), (1, 3, 5, 7), strict=True)]
    )
    words = np.arange(128).reshape(32, 4)[np.arange(32) * step // 16] ** 2
    np.testing.assert_array_equal(made.words(32), words @ weights)


def test_the_vector_is_aligned_to_all_of_it(library):
    body = '.pragma "used_bytes_mask 4095"; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd0+12]; ret;'
    with pytest.raises(Fault, match="not aligned to the 16 bytes of the vector access"):
        launch(body, device=Device(library=library))


LOADS_THREE = '.pragma "used_bytes_mask 4095"; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2];'


@pytest.mark.parametrize("between", ["", "bar.sync 0;"])
@pytest.mark.parametrize(("register", "wrong"), [("%r6", ""), ("%r7", r"register %r7, which was never written")])
def test_the_register_of_an_unused_element_is_not_written(library, between, register, wrong):
    """In the block of the load, and in one after it."""
    device = Device(library=library)
    given = device.upload(np.full(4, 7, np.uint32), "given")
    body = f"""{GIVEN} {LOADS_THREE} {between}
    mul.wide.u32 %rd1, {register}, 4; add.u64 %rd0, %rd0, %rd1; st.global.b32 [%rd0], %r4; ret;"""
    with pytest.raises(Fault, match=wrong) if wrong else nullcontext():
        launch(body, device=device, threads=64, parameters=["u64 given"], arguments=[given])


def test_a_register_with_an_unused_element_that_is_written_elsewhere_is_refused(library):
    """It would go on holding what was written there, which hardware need not do."""
    body = f"mov.b32 %r7, 5; mov.b64 %rd2, %rd0; {LOADS_THREE} mov.b32 %r1, %r7; ret;"
    with pytest.raises(Fault, match="not implemented"):
        launch(body, device=Device(library=library), initial=np.zeros(32))


def _findings(library: Library | None, space: str, write: str) -> Any:
    """Warp 0 loads three of each four words, warp 1 writes some words."""
    body = f"""
    mov.b32 %r1, 9; mov.b32 %r3, words; cvt.u64.u32 %rd2, %r3;
    setp.lt.u32 %p1, %r0, 32; and.b32 %r2, %r0, 31; mul.wide.u32 %rd3, %r2, 16;
    selp.b64 %rd2, %rd2, %rd0, {1 if space == "shared" else 0}; add.u64 %rd2, %rd2, %rd3; cvt.u32.u64 %r3, %rd2;
    @%p1 bra LOADS;
    {write}
    ret;
    LOADS:
    {LOADS_THREE.replace("global", space).replace("%rd2", "%r3" if space == "shared" else "%rd2")}
    ret;"""
    checker = Checker()
    start = np.zeros(1024)
    zeros = "mov.b32 %r10, 0; mov.b32 %r11, words; shl.b32 %r12, %r0, 4; add.u32 %r11, %r11, %r12;"
    zeros += "st.shared.v4.b32 [%r11], {%r10, %r10, %r10, %r10}; bar.sync 0;"
    options: dict[str, Any] = {"threads": 64, "initial": start, "module_scope": WORDS, "sinks": [checker]}
    launch(zeros + body, device=Device(library=library), **options)
    return [finding.rule for finding in checker.report().findings]


@pytest.mark.parametrize(("space", "rule"), [("shared", "race-shared"), ("global", "race-global")])
@pytest.mark.parametrize(
    ("offset", "races"),
    [
        (0, True),
        (8, True),
        (16 * 31 + 8, True),  # of the last lane
        (12, False),  # the element that nobody uses
        (16 * 5 + 12, False),
        (16 * 31 + 12, False),
    ],
)
def test_a_race_is_with_the_elements_that_are_used(library, space, rule, offset, races):
    base = "%r3" if space == "shared" else "%rd2"
    write = f"setp.eq.u32 %p2, %r0, 32; @%p2 st.{space}.b32 [{base}+{offset}], %r1;"
    assert _findings(library, space, write) == ([rule] if races else [])


@pytest.mark.parametrize("used", ["4095", "0xf0ff", "255", "0xf", "0xfff0"])
def test_the_native_engine_tells_of_the_same_accesses(used):
    if (native := library_for("native")) is None:
        pytest.skip("no Mojo compiler")
    body = f"""
    mul.wide.u32 %rd1, %r0, 16; add.u64 %rd2, %rd0, %rd1; mov.b32 %r1, 3; setp.lt.u32 %p1, %r0, 20;
    {LOADS_THREE.replace("4095", used)}
    @%p1 {LOADS_THREE.replace("4095", used).split(";")[1]};
    ret;"""
    body = body.replace("@%p1", f'.pragma "used_bytes_mask {used}"; @%p1')
    seen = []
    for library, is_deferred in ((None, False), (native, False), (native, True)):
        listener = Listener(is_deferred)
        launch(body, device=Device(library=library), initial=np.zeros(128), sinks=[listener])
        seen.append([event for event in listener.seen if event[0] == "Access" and event[4] == "global"])
    assert len(seen[0]) == 2 * sum(int(used, 0) >> 4 * n & 15 != 0 for n in range(4))
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


def test_a_mask_that_stands_before_no_load_says_nothing(library):
    device = Device(library=library)
    body = '.pragma "used_bytes_mask 0x0"; mov.u32 %r1, 7;'
    assert launch(body + STORE_R1 + "ret;", device=device, threads=1).words(1)[0] == 7
