"""mma.sp and wgmma.mma_async.sp: elements of A that metadata places. Every type is compared with an H200 as a probe."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import launch

from emugpu.emulator import Fault
from emugpu.emulator.units.sparsity import kept_positions, selectors

K = 32
BODY = """
.reg .b32 %x<4>;
mad.wide.u32 %rd2, %r0, 52, %rd0;
ld.global.b32 %r1, [%rd2]; ld.global.b32 %r2, [%rd2+4]; ld.global.b32 %r3, [%rd2+8]; ld.global.b32 %r4, [%rd2+12];
ld.global.b32 %r5, [%rd2+16]; ld.global.b32 %r6, [%rd2+20]; ld.global.b32 %r7, [%rd2+24]; ld.global.b32 %r8, [%rd2+28];
ld.global.b32 %r9, [%rd2+32];
mov.b32 %x0, 0; mov.b32 %x1, 0; mov.b32 %x2, 0; mov.b32 %x3, 0;
mma.{name}.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {{%x0, %x1, %x2, %x3}}, {{%r1, %r2, %r3, %r4}},
  {{%r5, %r6, %r7, %r8}}, {{%x0, %x1, %x2, %x3}}, %r9, {selector};
st.global.b32 [%rd2+36], %x0; st.global.b32 [%rd2+40], %x1; st.global.b32 [%rd2+44], %x2; st.global.b32 [%rd2+48], %x3;
ret;
"""


def multiply(dense: np.ndarray, b: np.ndarray, selector: int, name: str = "sp::ordered_metadata", spoil: int = 0):
    """D [16, 8] of A [16, 32], at most two of whose every four elements are not zero, and B [8, 32].

    The places of the figures in PTX ISA 9.7.14.6.2, one register after the other.
    """
    words = np.zeros((32, 13), np.uint32)
    kept, codes = np.zeros((16, K // 2)), np.zeros((16, K // 4), int)
    for row in range(16):
        for group in range(K // 4):
            places = [p for p in range(4) if dense[row, 4 * group + p]][:2]
            first, second = {0: (0, 1), 1: (places[0], 3) if places and places[0] < 3 else (0, 3)}.get(
                len(places), tuple(places)
            )
            kept[row, 2 * group], kept[row, 2 * group + 1] = (
                dense[row, 4 * group + first],
                dense[row, 4 * group + second],
            )
            codes[row, group] = first | second << 2
    halves = kept.astype(np.float16).view(np.uint16).astype(int)
    of_b = b.astype(np.float16).view(np.uint16).astype(int)
    for t in range(32):
        g, c = t // 4, t % 4
        for r in range(4):
            row, column = g + 8 * (r % 2), 2 * c + 8 * (r // 2)
            words[t, r] = halves[row, column] | halves[row, column + 1] << 16
            at = 2 * c + 8 * r
            words[t, 4 + r] = of_b[g, at] | of_b[g, at + 1] << 16
        if c // 2 == selector:
            block = c % 2
            for upper in range(2):
                for j in range(4):
                    words[t, 8] |= codes[g + 8 * upper, 4 * block + j] << (4 * j + 16 * upper)
    words[4 * 3 + 2 * selector, 8] ^= spoil
    run = launch(BODY.format(name=name, selector=selector), target="sm_90a", initial=words.ravel())
    found = run.words(words.size).reshape(32, 13)[:, 9:].view(np.float32)
    d = np.zeros((16, 8))
    for t in range(32):
        for i in range(4):
            d[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2] = found[t, i]
    return d


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """No row, column or group of A like another."""
    rng = np.random.default_rng(9)
    dense = np.zeros((16, K))
    for row in range(16):
        for group in range(K // 4):
            places = rng.choice(4, 2, replace=False)
            dense[row, 4 * group + places] = rng.integers(1, 9, 2)
    return dense, rng.integers(-8, 9, (8, K)).astype(float)


@pytest.mark.parametrize("selector", [0, 1])
@pytest.mark.parametrize("name", ["sp", "sp::ordered_metadata"])
def test_a_sparse_product_is_that_of_the_dense_matrix(selector, name):
    dense, b = matrices()
    np.testing.assert_array_equal(multiply(dense, b, selector, name), dense @ b.T)


def test_metadata_without_meaning_is_reported():
    dense, b = matrices()
    dense[3, 0:4] = [1, 2, 0, 0]
    with pytest.raises(
        Fault, match=r"metadata 0x[0-9a-f]+ keeps elements [0-3] and [0-3] of four; they must differ and"
    ):
        multiply(dense, b, 0, spoil=0b0100)
    with pytest.raises(Fault, match="metadata 0x5 of tf32; it is 0x4 or 0xe"):
        kept_positions(np.array([[4, 5]]), "tf32")


def test_a_selector_beyond_the_last_is_refused():
    assert [selectors("f16", 32), selectors("bf16", 16), selectors("tf32", 8), selectors("s8", 64)] == [2, 4, 4, 1]
    assert selectors("u8", 32) == 2
    with pytest.raises(Fault, match="not implemented"):
        launch(BODY.format(name="sp::ordered_metadata", selector=2), target="sm_90a", initial=np.zeros(416, np.uint32))
