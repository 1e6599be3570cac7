"""The MMA unit: every shape, layout and major-ness against a plain matrix product; the order of events."""

from __future__ import annotations

import itertools
from functools import cache
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from emulator_reference import SPAN_BYTES, accumulator_place, operand_byte, swizzled

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import TensorMemory, place
from emugpu.emulator.units import sums
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.units.mma_instruction import Mma
from emugpu.emulator.units.operands import PANEL_SLICES

SWIZZLE_CODE = {"none": 0, "128B": 2, "64B": 4, "32B": 6}
A_BASE, B_BASE = 0x2000, 0x20000
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def instruction(m, n, a_type="bf16", b_type="bf16", d_type="f32", a_major="K", b_major="K", negate=0):
    codes = {"f16": 0, "bf16": 1}
    return (
        (d_type == "f32") << 4
        | codes[a_type] << 7
        | codes[b_type] << 10
        | negate << 13
        | (a_major == "MN") << 15
        | (b_major == "MN") << 16
        | n >> 3 << 17
        | m >> 4 << 24
    )


class Tile:
    """An operand of `rows` x `k` elements in a canonical layout, and its descriptor for each K step."""

    def __init__(self, base: int, rows: int, k: int, major: str, swizzle: str) -> None:
        self.base, self.rows, self.k, self.major, self.swizzle = base, rows, k, major, swizzle
        span = SPAN_BYTES[swizzle]
        if major == "K":
            # Groups of 8 rows behind one another; for the swizzled layouts K fits the span.
            self.stride, self.leading = 8 * span, rows * 16 if swizzle == "none" else 0
            self.step = 2 * self.leading if swizzle == "none" else 32
        else:
            blocks = -(-rows * 2 // span)
            group = 8 * span * blocks
            self.stride, self.leading = (8 * span, group) if swizzle == "none" else (group, 8 * span)
            self.step = 2 * group

    def write(self, shared: SharedMemory, values: np.ndarray, dtype: str = "bf16") -> None:
        bits = values.astype(TYPES[dtype]).view(np.uint16)
        offsets = [
            swizzled(self.base + operand_byte(r, k, self.major, self.swizzle, self.leading, self.stride), self.swizzle)
            for r, k in itertools.product(range(self.rows), range(self.k))
        ]
        assert len(set(offsets)) == bits.size
        shared.scatter(np.array(offsets), 2, bits.ravel())

    def descriptor(self, step: int = 0) -> int:
        start = self.base + step * self.step
        code = SWIZZLE_CODE[self.swizzle]
        return start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | 1 << 46 | code << 61


def new_pair(count: int, columns: int = 512) -> list[SimpleNamespace]:
    pair = [SimpleNamespace(shared=SharedMemory(0x40000), tmem=TensorMemory()) for _ in range(count)]
    for cta in pair:
        cta.tmem.allocate(columns)
    return pair


def mma(unit, pair, d_address, a, b, idesc, accumulate, cta_group, lane_mask=None) -> int:
    """One kind::f16 instruction with both operands in shared memory; it breaks no rule that is only warned of."""
    mask = None if lane_mask is None else tuple(lane_mask)
    what = Mma("f16", d_address, a, False, b, idesc, accumulate, cta_group, mask)
    return unit.mma(pair, what, lambda rule, message: pytest.fail(message))


@pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
@pytest.mark.parametrize(("a_major", "b_major"), [("K", "MN"), ("MN", "K")])
@pytest.mark.parametrize(("cta_group", "m", "n"), [(1, 64, 16), (1, 128, 16), (2, 128, 32), (2, 256, 32)])
def test_undefined_operands_make_rows_and_columns_of_d_undefined(cta_group, m, n, a_major, b_major, accumulation):
    """Row 3 of the last CTA's A and column 5 of its B. The next product leaves these undefined, a new one does not."""
    a_tile = Tile(A_BASE, m // cta_group, 16, a_major, "32B")
    b_tile = Tile(B_BASE, n // cta_group, 16, b_major, "32B")
    rng = np.random.default_rng(n)
    a, b = integers(rng, (m, 16)), integers(rng, (n, 16))
    pair, row, column = new_pair(cta_group), m - m // cta_group + 3, n - n // cta_group + 5
    put_operands(pair, m, n, a, b, a_tile, b_tile)
    for tile, line in ((a_tile, 3), (b_tile, 5)):
        place = tile.base + operand_byte(line, 9, tile.major, tile.swizzle, tile.leading, tile.stride)
        pair[-1].shared.poison(swizzled(place, tile.swizzle), 2)
    unit, told = MmaUnit(accumulation), []
    for accumulate in (False, True):
        what = (a_tile.descriptor(), False, b_tile.descriptor(), instruction(m, n, a_major=a_major, b_major=b_major))
        what = Mma("f16", 32, *what, accumulate, cta_group, None)
        unit.mma(pair, what, pytest.fail, lambda fault: told.append(str(fault)) or "nothing")
        put_operands(pair, m, n, a, b, a_tile, b_tile)
    assert len(told) == 2
    ctas, lanes, columns = places_of_d(m, n, cta_group)
    for cta in pair:
        cta.tmem.settle()
    defined = np.ones((m, n), bool)
    defined[row] = defined[:, column] = False
    valid, data = (np.array([getattr(cta.tmem, name) for cta in pair]) for name in ("valid", "data"))
    assert (valid[ctas, lanes, 32 + columns] == defined).all()
    assert (data[ctas, lanes, 32 + columns].view(np.float32)[defined] == (2 * a @ b.T)[defined]).all()
    mma(unit, pair, 32, a_tile.descriptor(), b_tile.descriptor(), what.idesc, False, cta_group)
    assert (read_d(pair, m, n, column=32).view(np.float32) == a @ b.T).all()


@cache
def places_of_d(m: int, n: int, count: int) -> tuple[np.ndarray, ...]:
    """The CTAs, lanes and columns of the elements of D, row by row."""
    places = itertools.product(range(m), range(n))
    return tuple(np.array([accumulator_place(*place, m, n, count) for place in places]).T.reshape(3, m, n))


def read_d(pair, m, n, column=0, lane=0) -> np.ndarray:
    """The bits of D as the tensor memories hold them."""
    for cta in pair:
        cta.tmem.settle()
    ctas, lanes, columns = places_of_d(m, n, len(pair))
    assert np.array([cta.tmem.valid for cta in pair])[ctas, lane + lanes, column + columns].all()
    return np.array([cta.tmem.data for cta in pair])[ctas, lane + lanes, column + columns]


def integers(rng, shape) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(np.float32)


def put_operands(pair, m, n, a, b, a_tile, b_tile, a_type="bf16", b_type="bf16") -> None:
    """Split A by rows and B by columns over the pair."""
    count = len(pair)
    for i, cta in enumerate(pair):
        a_tile.write(cta.shared, a[i * m // count : (i + 1) * m // count], a_type)
        b_tile.write(cta.shared, b[i * n // count : (i + 1) * n // count], b_type)


SHAPES = [
    (1, 64, 8), (1, 64, 256), (1, 128, 24), (1, 128, 256), (2, 128, 16), (2, 128, 192), (2, 256, 48), (2, 256, 256),
]  # fmt: skip


@pytest.mark.parametrize(("cta_group", "m", "n"), SHAPES)
@pytest.mark.parametrize(("a_major", "b_major"), [("K", "K"), ("K", "MN"), ("MN", "K"), ("MN", "MN")])
@pytest.mark.parametrize("swizzle", list(SPAN_BYTES))
def test_product_for_every_layout(cta_group, m, n, a_major, b_major, swizzle):
    """Two K steps where the layout has two, A and B with different swizzles, D at a column of its own."""
    names = list(SPAN_BYTES)
    b_swizzle = names[(names.index(swizzle) + 1) % 4]
    k = 16 if "32B" in (swizzle, b_swizzle) else 32
    a_tile = Tile(A_BASE, m // cta_group, k, a_major, swizzle)
    b_tile = Tile(B_BASE, n // cta_group, k, b_major, b_swizzle)
    rng = np.random.default_rng(m + n)
    a, b = integers(rng, (m, k)), integers(rng, (n, k))
    pair = new_pair(cta_group)
    put_operands(pair, m, n, a, b, a_tile, b_tile)
    unit = MmaUnit()
    idesc = instruction(m, n, a_major=a_major, b_major=b_major)
    for step in range(k // 16):
        flops = mma(unit, pair, 64, a_tile.descriptor(step), b_tile.descriptor(step), idesc, step > 0, cta_group)
        assert flops == 2 * m * n * 16
    got = read_d(pair, m, n, column=64).view(np.float32)
    assert (got == a @ b.T).all()
    width = n // 2 if (m, cta_group) == (128, 2) else n
    assert all(cta.tmem.valid[:, 64 : 64 + width].sum() == m * n // cta_group for cta in pair)
    assert all(cta.tmem.valid.sum() == m * n // cta_group for cta in pair)


@pytest.mark.parametrize(("cta_group", "m", "n"), SHAPES[::2])
def test_one_hot_rows_find_their_place(cta_group, m, n):
    """B is an identity block: D's column j is A's column j, so a permuted K would show too."""
    a_tile = Tile(A_BASE, m // cta_group, 16, "K", "32B")
    b_tile = Tile(B_BASE, n // cta_group, 16, "MN", "128B")
    a = (np.arange(m)[:, None] % 128 + 128 * (np.arange(16)[None, :] % 2)).astype(np.float32)
    a[:, ::3] *= -1
    b = np.zeros((n, 16), np.float32)
    b[np.arange(n), np.arange(n) % 16] = 1
    pair = new_pair(cta_group)
    put_operands(pair, m, n, a, b, a_tile, b_tile)
    idesc = instruction(m, n, b_major="MN")
    mma(MmaUnit(), pair, 0, a_tile.descriptor(), b_tile.descriptor(), idesc, False, cta_group)
    assert (read_d(pair, m, n).view(np.float32) == a[:, np.arange(n) % 16]).all()


@pytest.fixture
def simple():
    """128 x 64 with one CTA: the operands' tiles (K = 64), values, CTAs and instruction descriptor."""
    rng = np.random.default_rng(5)
    a_tile, b_tile = Tile(A_BASE, 128, 64, "K", "128B"), Tile(B_BASE, 64, 64, "K", "128B")
    a, b = integers(rng, (128, 64)), integers(rng, (64, 64))
    pair = new_pair(1, 256)
    put_operands(pair, 128, 64, a, b, a_tile, b_tile)
    return SimpleNamespace(a=a, b=b, a_tile=a_tile, b_tile=b_tile, pair=pair, idesc=instruction(128, 64))


def step(unit, case, k, accumulate, d_address=0, **options):
    a, b = case.a_tile.descriptor(k), case.b_tile.descriptor(k)
    return mma(unit, case.pair, d_address, a, b, options.pop("idesc", case.idesc), accumulate, 1, **options)


def put_a(case, k: int, column: int) -> None:
    """Stores a slice of A in tensor memory."""
    words = case.a[:, 16 * k : 16 * k + 16].astype(TYPES["bf16"]).view(np.uint32)
    for warp in range(4):
        case.pair[0].tmem.store(place("32x32b", 8, column, warp), words[32 * warp : 32 * warp + 32].T)


def step_from_tmem(unit, case, k, accumulate, column: int) -> int:
    what = Mma("f16", 0, column, True, case.b_tile.descriptor(k), case.idesc, accumulate, 1, None)
    return unit.mma(case.pair, what, lambda rule, message: pytest.fail(message))


def slices(case, *ks) -> np.ndarray:
    return sum(case.a[:, 16 * k : 16 * k + 16] @ case.b[:, 16 * k : 16 * k + 16].T for k in ks)


class TestOrderOfEvents:
    def test_operands_are_read_at_the_call(self, simple):
        unit = MmaUnit()
        step(unit, simple, 0, False)
        simple.a_tile.write(simple.pair[0].shared, np.zeros((128, 64)))
        assert (read_d(simple.pair, 128, 64).view(np.float32) == slices(simple, 0)).all()

    @pytest.mark.parametrize("column", [128, 129])
    def test_a_in_tensor_memory_is_read_at_the_call(self, simple, column):
        unit = MmaUnit()
        for k in range(3):
            put_a(simple, k, column)
            step_from_tmem(unit, simple, k, k > 0, column)
        put_a(simple, 0, column)
        step(unit, simple, 3, True)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == slices(simple, 0, 1, 2, 3)).all()

    @pytest.mark.parametrize("column", [64, 65])
    def test_a_product_that_is_pending_can_be_the_next_a(self, simple, column):
        unit = MmaUnit()
        step(unit, simple, 0, False, d_address=64)
        step_from_tmem(unit, simple, 1, False, column)
        words = np.ascontiguousarray(slices(simple, 0)[:, column - 64 : column - 56]).view(np.uint16)
        a = (words.astype(np.uint32) << 16).view(np.float32)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == a @ simple.b[:, 16:32].T).all()

    def test_long_chains_are_multiplied_in_several_panels(self, simple):
        unit = MmaUnit()
        for i in range(2 * PANEL_SLICES + 3):
            step(unit, simple, i % 4, i > 0)
        expected = slices(simple, *(i % 4 for i in range(2 * PANEL_SLICES + 3)))
        assert (read_d(simple.pair, 128, 64).view(np.float32) == expected).all()

    def test_a_load_sees_the_product_and_more_can_follow(self, simple):
        unit, tmem = MmaUnit(), simple.pair[0].tmem
        step(unit, simple, 0, False)
        assert (tmem.load(place("32x32b", 64, 0, 1)).T.view(np.float32) == slices(simple, 0)[32:64]).all()
        step(unit, simple, 1, True)
        assert (tmem.load(place("32x32b", 64, 0, 1)).T.view(np.float32) == slices(simple, 0, 1)[32:64]).all()

    def test_overwriting_forgets_what_was_pending(self, simple):
        unit = MmaUnit()
        for k in (0, 1):
            step(unit, simple, k, k > 0)
        step(unit, simple, 2, False)
        step(unit, simple, 3, True)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == slices(simple, 2, 3)).all()

    def test_a_store_between_two_steps_counts(self, simple):
        unit, tmem = MmaUnit(), simple.pair[0].tmem
        step(unit, simple, 0, False)
        tmem.store(place("32x32b", 64, 0, 0), np.full((64, 32), 1000, np.float32).view(np.uint32))
        step(unit, simple, 1, True)
        expected = slices(simple, 0, 1)
        expected[:32] = 1000 + slices(simple, 1)[:32]
        assert (read_d(simple.pair, 128, 64).view(np.float32) == expected).all()

    def test_two_accumulators_in_turn(self, simple):
        unit = MmaUnit()
        for k in range(4):
            step(unit, simple, k, k > 0, d_address=0)
            step(unit, simple, 3 - k, k > 1, d_address=64)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == slices(simple, 0, 1, 2, 3)).all()
        assert (read_d(simple.pair, 128, 64, column=64).view(np.float32) == slices(simple, 2, 1, 0)).all()

    def test_overlapping_accumulators_keep_program_order(self, simple):
        unit = MmaUnit()
        step(unit, simple, 0, False, d_address=0)
        step(unit, simple, 1, False, d_address=32)
        step(unit, simple, 2, True, d_address=32)
        step(unit, simple, 3, True, d_address=0)
        expected = slices(simple, 0)
        expected[:, 32:] = slices(simple, 1, 2)[:, :32]
        expected += slices(simple, 3)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == expected).all()

    def test_overwriting_an_accumulator_that_another_one_overlapped(self, simple):
        unit = MmaUnit()
        step(unit, simple, 0, False, d_address=0)
        step(unit, simple, 1, False, d_address=32)
        step(unit, simple, 2, False, d_address=0)
        assert (read_d(simple.pair, 128, 64).view(np.float32) == slices(simple, 2)).all()
        tail = read_d(simple.pair, 128, 32, column=64).view(np.float32)
        assert (tail == slices(simple, 1)[:, 32:]).all()

    def test_another_shape_on_the_same_address(self, simple):
        unit = MmaUnit()
        step(unit, simple, 0, False)
        step(unit, simple, 1, True, idesc=instruction(128, 32))
        expected = slices(simple, 0)
        expected[:, :32] += slices(simple, 1)[:, :32]
        assert (read_d(simple.pair, 128, 64).view(np.float32) == expected).all()

    def test_two_m64_accumulators_share_columns(self):
        a_tile, b_tile = Tile(A_BASE, 64, 16, "K", "32B"), Tile(B_BASE, 32, 16, "K", "32B")
        rng = np.random.default_rng(6)
        a, b = integers(rng, (64, 16)), integers(rng, (32, 16))
        pair, unit = new_pair(1), MmaUnit()
        put_operands(pair, 64, 32, a, b, a_tile, b_tile)
        for turn in range(3):
            for lane, negate in ((0, 0), (16, 1)):
                idesc = instruction(64, 32, negate=negate)
                mma(unit, pair, lane << 16, a_tile.descriptor(), b_tile.descriptor(), idesc, turn > 0, 1)
        assert (read_d(pair, 64, 32).view(np.float32) == 3 * (a @ b.T)).all()
        assert (read_d(pair, 64, 32, lane=16).view(np.float32) == -3 * (a @ b.T)).all()

    def test_the_peer_sees_the_product_and_dealloc_in_one_cta_keeps_the_other(self):
        a_tile, b_tile = Tile(A_BASE, 128, 16, "K", "32B"), Tile(B_BASE, 32, 16, "K", "32B")
        rng = np.random.default_rng(7)
        a, b = integers(rng, (256, 16)), integers(rng, (64, 16))
        pair, unit = new_pair(2), MmaUnit()
        put_operands(pair, 256, 64, a, b, a_tile, b_tile)
        mma(unit, pair, 0, a_tile.descriptor(), b_tile.descriptor(), instruction(256, 64), False, 2)
        pair[0].tmem.deallocate(0, 512)
        got = pair[1].tmem.load(place("32x32b", 64, 0, 3)).T.view(np.float32)
        assert (got == (a @ b.T)[224:256]).all()
        assert not pair[0].tmem.pending and not pair[1].tmem.pending


class TestOptions:
    @pytest.mark.parametrize("negate", [0, 1, 2, 3])
    def test_negation_of_a_and_b(self, simple, negate):
        step(MmaUnit(), simple, 0, False, idesc=instruction(128, 64, negate=negate))
        sign = -1 if negate in (1, 2) else 1
        assert (read_d(simple.pair, 128, 64).view(np.float32) == sign * slices(simple, 0)).all()

    @pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
    def test_lane_mask_keeps_old_rows(self, simple, accumulation):
        unit = MmaUnit(accumulation)
        step(unit, simple, 0, False)
        step(unit, simple, 1, True, lane_mask=[0x5, 0, 0, 1 << 31])
        expected = slices(simple, 0, 1)
        kept = [0, 2, 127]
        expected[kept] = slices(simple, 0)[kept]
        assert (read_d(simple.pair, 128, 64).view(np.float32) == expected).all()

    def test_lane_mask_words_of_the_odd_cta_come_last(self):
        a_tile, b_tile = Tile(A_BASE, 128, 16, "K", "32B"), Tile(B_BASE, 8, 16, "K", "32B")
        pair, unit = new_pair(2), MmaUnit()
        put_operands(pair, 256, 16, np.ones((256, 16)), np.ones((16, 16)), a_tile, b_tile)
        arguments = (pair, 0, a_tile.descriptor(), b_tile.descriptor(), instruction(256, 16))
        mma(unit, *arguments, False, 2)
        mma(unit, *arguments, True, 2, lane_mask=[0, 0, 0, 0, 0, 1, 0, 0])
        got = read_d(pair, 256, 16).view(np.float32)
        assert np.flatnonzero(got[:, 0] == 16).tolist() == [128 + 32]
        assert (np.delete(got, 160, axis=0) == 32).all()

    @pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
    def test_f16_result_is_rounded_after_each_instruction(self, accumulation):
        a_tile, b_tile = Tile(A_BASE, 64, 16, "K", "32B"), Tile(B_BASE, 8, 16, "K", "32B")
        a, b = np.zeros((64, 16)), np.zeros((8, 16))
        a[:, 0], b[:, 0] = np.arange(64) * 33, 1
        a[:, 1], b[:, 1] = 2048, 1
        pair, unit = new_pair(1), MmaUnit(accumulation)
        put_operands(pair, 64, 8, a, b, a_tile, b_tile, "f16", "f16")
        idesc = instruction(64, 8, "f16", "f16", "f16")
        expected = np.zeros(64, np.float16)
        for turn in range(3):
            mma(unit, pair, 0, a_tile.descriptor(), b_tile.descriptor(), idesc, turn > 0, 1)
            expected = (expected.astype(np.float64) + np.arange(64) * 33 + 2048).astype(np.float16)
        assert (read_d(pair, 64, 8) == expected.view(np.uint16)[:, None]).all()

    @pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
    def test_mixed_input_types(self, accumulation):
        a_tile, b_tile = Tile(A_BASE, 64, 16, "K", "32B"), Tile(B_BASE, 8, 16, "K", "32B")
        rng = np.random.default_rng(8)
        a, b = rng.integers(-1000, 1000, (64, 16)), integers(rng, (8, 16))
        pair = new_pair(1)
        put_operands(pair, 64, 8, a, b, a_tile, b_tile, "f16", "bf16")
        idesc = instruction(64, 8, "f16", "bf16")
        mma(MmaUnit(accumulation), pair, 0, a_tile.descriptor(), b_tile.descriptor(), idesc, False, 1)
        assert (read_d(pair, 64, 8).view(np.float32) == a @ b.T).all()

    def test_unknown_accumulation(self):
        with pytest.raises(ValueError, match="must be f32 or tensor_core"):
            MmaUnit("f64")


class TestFaults:
    def test_unwritten_operand(self, simple):
        simple.pair[0].shared.poison(A_BASE + 2 * 128, 1)
        with pytest.raises(Fault, match="0x2100 is read but was never written"):
            step(MmaUnit(), simple, 1, False)  # row 2 keeps its k = 16.. chunks 2 and 3 in places 0 and 1

    @pytest.mark.parametrize("column", [128, 129])
    def test_unwritten_a_in_tensor_memory(self, simple, column):
        put_a(simple, 0, column)
        simple.pair[0].tmem.valid[5, column + 7] = False
        with pytest.raises(Fault, match=f"lane 5, column {column + 7}, which was never written"):
            step_from_tmem(MmaUnit(), simple, 0, False, column)

    @pytest.mark.parametrize("column", [252, 253])
    def test_a_outside_the_allocation(self, simple, column):
        simple.pair[0].tmem.valid[:] = True  # as after a deallocation
        with pytest.raises(Fault, match=f"A of tcgen05.mma touches .* columns {column}..{column + 7}: not allocated"):
            step_from_tmem(MmaUnit(), simple, 0, False, column)

    def test_operand_beyond_shared_memory(self, simple):
        far = Tile(0x3F000, 128, 16, "K", "128B")
        with pytest.raises(Fault, match="beyond the CTA's"):
            mma(MmaUnit(), simple.pair, 0, far.descriptor(), simple.b_tile.descriptor(), simple.idesc, False, 1)

    def test_adding_to_nothing(self, simple):
        with pytest.raises(Fault, match="lane 0, column 0, which was never written"):
            step(MmaUnit(), simple, 0, True)

    def test_adding_to_half_an_accumulator(self, simple):
        unit = MmaUnit()
        step(unit, simple, 0, False, idesc=instruction(128, 32))
        with pytest.raises(Fault, match="lane 0, column 32, which was never written"):
            step(unit, simple, 1, True)

    def test_accumulator_outside_the_allocation(self, simple):
        with pytest.raises(Fault, match=r"columns 224\.\.287: not allocated; allocated columns: 0\.\.255"):
            step(MmaUnit(), simple, 0, False, d_address=224)
        with pytest.raises(Fault, match="reaches tensor memory column 523"):
            step(MmaUnit(), simple, 0, False, d_address=460)

    def test_accumulator_lane(self, simple):
        with pytest.raises(Fault, match="lane 16 must be 0 for M = 128"):
            step(MmaUnit(), simple, 0, False, d_address=16 << 16)

    def test_wrong_number_of_ctas(self, simple):
        with pytest.raises(Fault, match="needs 2 CTAs, got 1"):
            mma(MmaUnit(), simple.pair, 0, 0, 0, simple.idesc, False, 2)


def test_tensor_core_mode_differs_from_f32_only_in_rounding():
    a_tile, b_tile = Tile(A_BASE, 128, 64, "K", "128B"), Tile(B_BASE, 32, 64, "K", "128B")
    rng = np.random.default_rng(9)
    a = rng.standard_normal((128, 64)).astype(TYPES["bf16"]).astype(np.float32)
    b = rng.standard_normal((32, 64)).astype(TYPES["bf16"]).astype(np.float32)
    results = {}
    for accumulation in ("f32", "tensor_core"):
        pair, unit = new_pair(1), MmaUnit(accumulation)
        put_operands(pair, 128, 32, a, b, a_tile, b_tile)
        for k in range(4):
            mma(unit, pair, 0, a_tile.descriptor(k), b_tile.descriptor(k), instruction(128, 32), k > 0, 1)
        results[accumulation] = read_d(pair, 128, 32).view(np.float32)
    expected = np.zeros((128, 32), np.float32)
    for k in range(0, 64, 16):
        bits = sums.tensor_core_dot(a[:, k : k + 16], b[:, k : k + 16], expected, "bf16", "bf16", "f32", sums.BLACKWELL)
        expected = bits.view(np.float32)
    assert (results["tensor_core"] == expected).all()
    assert (results["f32"] != expected).any()
    assert np.abs(results["f32"] - expected).max() < 1e-4
