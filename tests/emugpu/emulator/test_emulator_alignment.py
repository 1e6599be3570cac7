"""Accesses must be aligned to all the bytes they move: a vector to the whole vector (PTX ISA 6.4.1, 9.7.9)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Fault

SHAPES = {"b16": 2, "b32": 4, "b64": 8, "v2.b32": 8, "v4.b32": 16, "v2.b64": 16, "v4.b16": 8, "v2.b16": 4, "v4.b8": 4}
VECTORS = {shape: size for shape, size in SHAPES.items() if shape[0] == "v"}


def registers(shape: str) -> str:
    count = int(shape[1]) if shape[0] == "v" else 1
    width = int(shape.split("b")[1])
    kind = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}[width]
    names = [f"{kind}{10 + n}" for n in range(count)]
    return "{" + ", ".join(names) + "}" if count > 1 else names[0]


def access(space: str, verb: str, shape: str, pointer: str, offset: int) -> str:
    where = f"[{pointer}+{offset}]"
    state = "" if space == "generic" else f".{space}"
    return f"{verb}{state}.{shape} " + (
        f"{registers(shape)}, {where};" if verb == "ld" else f"{where}, {registers(shape)};"
    )


PREPARE = """
mov.b32 %r3, words;
cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5;
shl.b32 %r4, %r0, 5; add.u32 %r6, %r4, %r3;
mul.wide.u32 %rd4, %r0, 32; add.u64 %rd6, %rd0, %rd4;
add.u64 %rd7, %rd5, %rd4;
mov.b32 %r5, 0;
st.shared.v4.b32 [%r6], {%r5, %r5, %r5, %r5};
st.shared.v4.b32 [%r6+16], {%r5, %r5, %r5, %r5};
bar.warp.sync -1;
""" + "".join(f"mov.b32 %r{n}, {n}; mov.b64 %rd{n}, {n}; mov.b16 %rs{n}, {n};\n" for n in range(10, 14))
"""%r3, %r6: shared memory, the latter 32 bytes for each lane; %rd5, %rd7 the same, generic; %rd0, %rd6: global."""

POINTERS = {
    ("shared", "all lanes"): "%r3", ("shared", "each lane"): "%r6", ("shared::cluster", "each lane"): "%r6",
    ("global", "all lanes"): "%rd0", ("global", "each lane"): "%rd6", ("generic", "all lanes"): "%rd5",
    ("generic", "each lane"): "%rd7", ("param", "all lanes"): "%rd8",
}  # fmt: skip


def attempt(body: str) -> None:
    launch(
        PREPARE + "mov.b64 %rd8, map;\n" + body + "ret;",
        module_scope=WORDS,
        parameters=["map map"],
        arguments=[bytes(128)],
        initial=np.arange(256),
    )


@pytest.mark.parametrize("verb", ["ld", "st"])
@pytest.mark.parametrize(("space", "lanes"), POINTERS)
def test_an_access_off_its_alignment_is_reported(space, lanes, verb):
    if (space, verb) == ("param", "st"):
        pytest.skip("parameters are read-only")
    pointer = POINTERS[space, lanes]
    for shape, size in SHAPES.items():
        attempt(access(space, verb, shape, pointer, 16))
        for offset in (size // 2, 16 - size // 2):
            with pytest.raises(Fault, match=r"align|multiple"):
                attempt(access(space, verb, shape, pointer, offset))


@pytest.mark.parametrize("verb", ["ld", "st"])
@pytest.mark.parametrize("space", ["shared", "global", "generic"])
def test_one_lane_off_the_alignment_of_a_vector_is_reported(space, verb):
    pointer = POINTERS[space, "each lane"]
    add = "add.u64" if pointer.startswith("%rd") else "add.u32"
    for shape, size in VECTORS.items():
        shift = f"setp.eq.u32 %p1, %r0, 13;\n@%p1 {add} {pointer}, {pointer}, {size // 2};\n"
        instruction = access(space, verb, shape, pointer, 0)
        attempt(shift + "@!%p1 " + instruction)
        with pytest.raises(Fault, match=r"align|multiple"):
            attempt(shift + instruction)


@pytest.mark.parametrize("space", ["shared", "global", "generic"])
def test_an_atomic_off_its_alignment_is_reported(space):
    state = "" if space == "generic" else f".{space}"
    for shape in ("add.u32", "exch.b32", "add.u64", "exch.b64"):
        size = int(shape[-2:]) // 8
        register = "%r10" if size == 4 else "%rd10"
        text = f"atom{state}.{shape} {register}, [{POINTERS[space, 'each lane']}+{{}}], {register};"
        attempt(text.format(8))
        with pytest.raises(Fault, match=r"align|multiple"):
            attempt(text.format(size // 2))
