"""ldmatrix and stmatrix of 8, 6 and 4 bits: places as CuTe DSL has them, written out element by element."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch

from emugpu.emulator import Device, Fault
from emugpu.emulator.native.library import library_for

ROW = "mov.b32 %r2, words; mul.lo.u32 %r3, %r0, 48; rem.u32 %r3, %r3, 2048; add.u32 %r2, %r2, %r3;"
"""Lane t names the row of 16 bytes at 48 t: rows are apart from each other."""
LOADED = np.random.default_rng(4).integers(0, 256, 2048, np.uint8)
FILL = """
mov.b32 %r4, words; mad.lo.u32 %r4, %r0, 64, %r4; mad.wide.u32 %rd2, %r0, 64, %rd0; mov.u32 %r5, 0;
FILL: ld.global.b32 %r6, [%rd2]; st.shared.b32 [%r4], %r6; add.s64 %rd2, %rd2, 4; add.u32 %r4, %r4, 4;
add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 16; @%p1 bra FILL; bar.sync 0;
"""


def element(row: int, column: int, bits: int) -> int:
    """Of the row that a lane names: number `column` of those packed from the lowest bit on."""
    chunk = int.from_bytes(LOADED[48 * row : 48 * row + 16].tobytes(), "little")
    return chunk >> bits * column & ((1 << bits) - 1)


def loaded(form: str, registers: int) -> np.ndarray:
    """The bytes of each register: [register, thread, byte]."""
    names = ", ".join(f"%r{10 + n}" for n in range(registers))
    stores = "".join(f"st.global.b32 [%rd3+{4 * n}], %r{10 + n};\n" for n in range(registers))
    body = (
        f"{FILL}{ROW}ldmatrix.sync.aligned.{form} {{{names}}}, [%r2];\nmad.wide.u32 %rd3, %r0, 16, %rd0;\n{stores}ret;"
    )
    run = launch(body, module_scope=WORDS, initial=LOADED.view(np.uint32))
    words = run.words(128).reshape(32, 4)[:, :registers]
    return np.ascontiguousarray(words.T).view(np.uint8).reshape(registers, 32, 4)


SQUARE = [
    ("m16n16.x1.trans.shared.b8", 1, 8),
    ("m16n16.x2.trans.shared::cta.b8", 2, 8),
    ("m16n16.x2.trans.shared.b8x16.b6x16_p32", 2, 6),
    ("m16n16.x1.trans.shared.b8x16.b4x16_p64", 1, 4),
]


@pytest.mark.parametrize(("form", "matrices", "bits"), SQUARE)
def test_a_square_of_bytes_is_transposed(form, matrices, bits):
    found = loaded(form, 2 * matrices)
    for m in range(matrices):
        for r in range(2):
            for t in range(32):
                wanted = [element(16 * m + 4 * (t % 4) + e, t // 4 + 8 * r, bits) for e in range(4)]
                assert found[2 * m + r, t].tolist() == wanted


@pytest.mark.parametrize(("matrices", "kind", "bits"), [(1, "b4x16_p64", 4), (2, "b6x16_p32", 6), (4, "b4x16_p64", 4)])
def test_fewer_bits_become_bytes(matrices, kind, bits):
    found = loaded(f"m8n16.x{matrices}.shared.b8x16.{kind}", matrices)
    for m in range(matrices):
        for t in range(32):
            assert found[m, t].tolist() == [element(8 * m + t // 4, 4 * (t % 4) + e, bits) for e in range(4)]


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_bytes_are_stored_transposed(matrices):
    names = ", ".join(f"%r{10 + n}" for n in range(matrices))
    loads = "".join(f"ld.global.b32 %r{10 + n}, [%rd2+{4 * n}];\n" for n in range(matrices))
    body = f"""mad.wide.u32 %rd2, %r0, 16, %rd0;
    {loads}{ROW}
    stmatrix.sync.aligned.m16n8.x{matrices}.trans.shared.b8 [%r2], {{{names}}};
    bar.sync 0;
    setp.lt.u32 %p2, %r0, {8 * matrices};
    @%p2 ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r2];
    @%p2 st.global.v4.b32 [%rd2], {{%r20, %r21, %r22, %r23}};
    ret;"""
    run = launch(body, module_scope=WORDS, initial=LOADED[:512].view(np.uint32))
    rows = run.words(128).view(np.uint8).reshape(32, 16)
    registers = LOADED[:512].reshape(32, 4, 4)
    for m in range(matrices):
        for t in range(32):
            for byte in range(4):
                row, column = 2 * (t % 4) + byte % 2, t // 4 + 8 * (byte // 2)
                assert rows[8 * m + row, column] == registers[t, m, byte]


@pytest.mark.parametrize(
    "form",
    [
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%r3];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64 {%r1}, [%r3];",
        "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r1, %r2}, [%r3];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r3], {%r1};",
    ],
)
def test_forms_that_do_not_exist_are_refused(form):
    with pytest.raises(Fault, match="not implemented"):
        launch(f"mov.b32 %r3, words; mov.b32 %r1, 0; mov.b32 %r2, 0; {form} ret;", module_scope=WORDS)


@pytest.mark.parametrize("engine", ["native", "python"])
def test_all_rows_may_be_read_from_one_place(engine):
    """Each row of the matrix is the same one then; rows that are written need a place each."""
    body = """
    mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; st.shared.b32 [%r4], %r0; bar.warp.sync -1;
    """
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r3+16];"
    device = Device(library=library_for(engine))
    done = launch(body + load + STORE_R1 + "ret;", module_scope=WORDS, device=device)
    assert done.words(32).tolist() == [4 + thread % 4 for thread in range(32)]
    with pytest.raises(Fault, match="every row needs its own"):
        launch(body + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r4}; ret;", module_scope=WORDS)
