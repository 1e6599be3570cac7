"""wgmma on the emulated machine: whole tiles, addresses, sums, and exactly how wrong programs are stopped."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulator_reference import operand_byte, swizzled

from conformance import emulator, matrix
from conformance.probe import Pointer, ProbeCase
from conformance.ptx import copy_in, descriptor, kernel, wgmma, with_start
from conformance.tile import TileProduct
from emugpu.emulator import Deadlock, Device, Fault, Module, Swizzle
from emugpu.emulator.units import sums
from emugpu.emulator.units.warp_mma import from_registers, to_registers
from emugpu.emulator.units.wgmma import d_fragment

WIDTHS = {"none": 8, "32B": 16, "64B": 32, "128B": 64}
"""Smallest N of an MN-major B: the span of the swizzle."""


def launch(ptx: str, case: ProbeCase, strict: bool = False, **device) -> dict[str, np.ndarray]:
    """Run one case on an emulated GPU; returns its outputs, the counters and the rules of its warnings."""
    gpu = Device(**device)
    addresses = {name: gpu.upload(content, name) for name, content in case.buffers.items()}
    arguments = [addresses[a.buffer] if isinstance(a, Pointer) else a.at(addresses[a.buffer]) for a in case.arguments]
    result = gpu.launch(
        Module.from_text(ptx),
        grid=case.grid,
        cluster=case.cluster,
        block=case.block,
        dynamic_smem=case.shared,
        arguments=arguments,
        strict=strict,
    )
    found = {n: gpu.download(addresses[n], case.buffers[n].dtype, case.buffers[n].shape) for n in case.outputs}
    return {**found, "counters": result.counters, "warnings": [warning.rule for warning in result.warnings]}


class TestTiles:
    @pytest.mark.parametrize("swizzle", WIDTHS)
    @pytest.mark.parametrize("a_major", ["K", "MN", "registers"])
    @pytest.mark.parametrize("b_major", ["K", "MN"])
    def test_every_layout_gives_the_product(self, swizzle, a_major, b_major):
        smallest = WIDTHS[swizzle] if b_major == "MN" else 8
        for n in (smallest, 24, 128, 256):
            if b_major == "MN" and n % smallest:
                continue
            in_registers = a_major == "registers"
            tile = TileProduct(
                n, "bf16" if n % 16 else "f16", swizzle, "K" if in_registers else a_major, b_major, in_registers
            )
            rng = np.random.default_rng(n)
            a, b = (rng.integers(-9, 10, (rows, tile.k)).astype(tile.dtype) for rows in (64, n))
            found = launch(tile.ptx(), tile.case("case", a, b), schedule="random", seed=n)
            assert (tile.product(found["d"]) == a.astype(np.float32) @ b.astype(np.float32).T).all()

    def test_one_hot_operands_show_every_row_column_and_k(self):
        tile = TileProduct(n=64, element="f16", swizzle="128B")
        values = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 2
        a = values.astype(np.float16)
        b = np.eye(64, dtype=np.float16)[::-1].copy()
        found = launch(tile.ptx(), tile.case("case", a, b))
        assert (tile.product(found["d"]) == a.astype(np.float32)[:, ::-1]).all()

    def test_the_bit_level_model_is_the_chain_of_its_steps(self):
        tile = TileProduct(n=16, element="bf16", swizzle="32B")
        rng = np.random.default_rng(5)
        a, b = (rng.standard_normal((rows, tile.k)).astype(ml_dtypes.bfloat16) for rows in (64, 16))
        found = launch(tile.ptx(), tile.case("case", a, b), accumulation="tensor_core")
        expected = np.zeros((64, 16), np.float32)
        for k in range(0, tile.k, 16):
            slices = (x[:, k : k + 16].astype(np.float32) for x in (a, b))
            expected = sums.tensor_core_dot(*slices, expected, "bf16", "bf16", "f32", sums.HOPPER).view(np.float32)
        assert (tile.product(found["d"]).view(np.uint32) == expected.view(np.uint32)).all()
        plain = a.astype(np.float32) @ b.astype(np.float32).T
        assert (tile.product(found["d"]) != plain).any()

    def test_counters_count_warpgroup_instructions(self):
        tile = TileProduct(n=64, element="bf16", swizzle="128B")
        case = tile.case("case", np.ones((64, 64), tile.dtype), np.ones((64, 64), tile.dtype))
        counters = launch(tile.ptx(), case)["counters"]
        assert counters.mma_instructions == 4
        assert counters.mma_flops == 2 * 64 * 64 * 64
        assert counters.instructions["mma"] == 4 * 4


def test_descriptors_name_the_bytes_of_the_canonical_layouts():
    report = emulator.run(matrix.OPERANDS)["all"]["report"]
    assert len(matrix.REQUESTS) == len(report) == 100
    for (mode, major, start, base), fragment in zip(matrix.REQUESTS, report, strict=True):
        name = "none" if mode is Swizzle.NONE else f"{mode.span_bytes}B"
        span = mode.span_bytes
        leading, stride = (1024, 128) if mode is Swizzle.NONE else (16 * span, 8 * span)
        warps = fragment.reshape(8, 4, 32).astype(np.uint32)
        found = 2 * np.concatenate([from_registers(warps[:, w], d_fragment(16)) for w in range(4)])
        for mn in (0, 1, 7, 8, 31, 32, 63):
            for k in (0, 1, 7, 8, 15):
                plain = start + operand_byte(mn, k, major, name, leading, stride)
                expected = swizzled(plain + 1024 - 128 * base, name) - 1024 + 128 * base
                assert found[mn, k] == expected, (mode, major, start, base, mn, k)


def test_registers_hold_the_fragment_of_the_isa():
    rows = np.arange(16 * 24, dtype=np.uint32).reshape(16, 24)
    registers = to_registers(rows, d_fragment(24))
    for i in range(12):
        for t in range(32):
            assert registers[i, t] == rows[t // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2]
    assert (from_registers(registers, d_fragment(24)) == rows).all()


# ---- small programs: one 64 x 8 x 16 product of f16, registers %d0 .. %d3 ----

A_BYTES, B_BYTES = 2 * 64 * 16, 2 * 8 * 16
D = [f"%d{j}" for j in range(4)]
ZERO = "".join(f"mov.b32 {d}, 0;\n" for d in D)
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"
STORE = "".join(f"st.global.b32 [%rd2+{512 * j}], {d};\n" for j, d in enumerate(D))
MULTIPLY = wgmma(8, "f16", D, "%rd4", "%rd5", "1", "1, 1, 0, 0")
RNG = np.random.default_rng(3)
A, B = RNG.integers(-8, 9, (64, 16)), RNG.integers(-8, 9, (8, 16))
PRODUCT = A @ B.T


def program(body: str, *, words: int = 512, warnings: tuple[str, ...] = (), **device) -> np.ndarray:
    """A and B in shared memory, descriptors in %rd4 and %rd5, %rd2 = out + 4 * tid. Returns out as f32. warnings: rules
    of those that there must be.
    """
    ptx = kernel(
        ["u64 a", "u64 b", "u64 out"],
        ".reg .b32 %d<8>;\nld.param.u64 %rd0, [a];\nld.param.u64 %rd1, [b];\nld.param.u64 %rd2, [out];\n"
        "mul.wide.u32 %rd3, %thread, 4;\nadd.u64 %rd2, %rd2, %rd3;\nshr.u32 %r9, %thread, 5;\n"
        + copy_in("%rd0", 0, A_BYTES, 128)
        + copy_in("%rd1", A_BYTES, B_BYTES, 128)
        + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
        + with_start(descriptor(1024, 128, Swizzle.NONE), "%base", "%rd4")
        + f"add.u32 %r0, %base, {A_BYTES};\n"
        + with_start(descriptor(128, 128, Swizzle.NONE), "%r0", "%rd5")
        + body,
    )

    def chunks(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float16).reshape(len(x), 2, 8).transpose(1, 0, 2).copy().view(np.uint16)

    case = ProbeCase(
        name="case",
        buffers={"a": chunks(A), "b": chunks(B), "out": np.zeros(words, np.float32)},
        arguments=(Pointer("a"), Pointer("b"), Pointer("out")),
        outputs=("out",),
        block=128,
        shared=A_BYTES + B_BYTES + 4096,
    )
    found = launch(ptx, case, **device)
    assert found["warnings"] == [*warnings]
    return found["out"]


def matrix_of(out: np.ndarray) -> np.ndarray:
    """What STORE wrote, as a matrix."""
    return TileProduct(8, "f16", "none").product(out.reshape(4, 128).view(np.uint32))


class TestAccumulators:
    def test_start_from_registers_or_from_zero(self):
        start = "".join(f"mov.b32 {d}, 0f41200000;\n" for d in D)  # 10
        added = matrix_of(program(start + FENCE + MULTIPLY + COMMIT + WAIT + STORE))
        assert (added == PRODUCT + 10).all()
        replaced = MULTIPLY.replace(", 1, 1, 1, 0, 0", ", 0, 1, 1, 0, 0")
        assert (matrix_of(program(start + FENCE + replaced + COMMIT + WAIT + STORE)) == PRODUCT).all()

    def test_start_from_values_that_differ_by_lane(self):
        start = "".join(f"cvt.rn.f32.u32 {d}, %thread;\n" for d in D)
        found = matrix_of(program(start + FENCE + MULTIPLY + COMMIT + WAIT + STORE))
        threads = np.arange(128, dtype=np.float32)
        assert (found - PRODUCT == matrix_of(np.tile(threads, 4))).all()

    @pytest.mark.parametrize(("flags", "sign"), [("1, 1", 1), ("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)])
    @pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
    def test_inputs_can_be_negated(self, flags, sign, accumulation):
        both = MULTIPLY + MULTIPLY.replace("1, 1, 0, 0", f"{flags}, 0, 0")
        found = program(ZERO + FENCE + both + COMMIT + WAIT + STORE, accumulation=accumulation)
        assert (matrix_of(found) == PRODUCT + sign * PRODUCT).all()

    def test_stay_in_the_tensor_core_through_waits(self):
        step = FENCE + MULTIPLY + COMMIT + WAIT
        assert (matrix_of(program(ZERO + 3 * step + STORE)) == 3 * PRODUCT).all()

    def test_can_be_read_and_added_to_again(self):
        step = FENCE + MULTIPLY + COMMIT + WAIT
        body = ZERO + step + "add.rn.f32 %d0, %d0, 0f3F800000;\n" + step + STORE
        extra = matrix_of(np.repeat(np.array([1, 0, 0, 0], np.float32), 128))
        assert (matrix_of(program(body)) == 2 * PRODUCT + extra).all()

    def test_some_may_be_overwritten_between_waits(self):
        step = FENCE + MULTIPLY + COMMIT + WAIT
        found = matrix_of(program(ZERO + step + "mov.b32 %d2, 0;\n" + step + STORE))
        kept = matrix_of(np.repeat(np.array([1, 1, 0, 1], np.float32), 128))
        assert (found == PRODUCT + kept * PRODUCT).all()

    def test_may_be_read_by_diverged_lanes(self):
        """Lane 5 of each warp reads alone, the others later; then all of them add once more."""
        step = FENCE + MULTIPLY + COMMIT + WAIT
        body = (
            ZERO
            + step
            + """and.b32 %r1, %thread, 31;
setp.ne.u32 %p1, %r1, 5; @%p1 bra OTHERS;
st.global.b32 [%rd2+2048], %d1;
OTHERS: bar.warp.sync -1;
@!%p1 bra MET;
st.global.b32 [%rd2+2048], %d3;
MET: bar.warp.sync -1;
"""
            + step
            + STORE
        )
        out = program(body, words=640)
        assert (matrix_of(out[:512]) == 2 * PRODUCT).all()
        first = out[:512].reshape(4, 128) / 2
        assert (out[512:] == np.where(np.arange(128) % 32 == 5, first[1], first[3])).all()

    def test_groups_are_waited_for_in_order(self):
        """After wait_group 1 the older of two accumulators can be read, the younger cannot."""
        younger = wgmma(8, "f16", ["%d4", "%d5", "%d6", "%d7"], "%rd4", "%rd5", "0", "1, 1, 0, 0")
        body = ZERO + FENCE + MULTIPLY + COMMIT + younger + COMMIT + "wgmma.wait_group.sync.aligned 1;\n"
        assert (matrix_of(program(body + STORE + WAIT)) == PRODUCT).all()
        with pytest.raises(Fault, match=r"%d4, which holds nothing yet \(a wgmma accumulates in it"):
            program(body + "add.rn.f32 %d4, %d4, %d4;\n" + WAIT)


NOTHING = f"ld.shared.b32 %r20, [%base+{A_BYTES + B_BYTES}];\n"
"""Nobody has written this word."""
SHOWN = "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
FROM_REGISTERS = wgmma(8, "f16", D, "{%r21, %r22, %r23, %r24}", "%rd5", "1", "1, 1, 0")
ONES = "".join(f"mov.b32 %r{n}, 0x3c003c00;\n" for n in (21, 22, 23, 24))
UNDEFINED = {
    "a row of A": ("setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.b32 [%base+80], %r20;" + SHOWN, MULTIPLY, 5, None),
    "a column of B": (
        f"setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.b8 [%base+{A_BYTES + 128 + 16 * 3 + 9}], %r20;" + SHOWN,
        MULTIPLY, None, 3,
    ),
    "a row of A in registers": (
        ONES + "setp.eq.u32 %p1, %thread, 21; @%p1 mov.b32 %r23, %r20;", FROM_REGISTERS, 5, None,
    ),
    "an element of the old D": ("setp.eq.u32 %p1, %thread, 21; @%p1 mov.b32 %d1, %r20;", MULTIPLY, 5, 3),
}  # fmt: skip
"""How something of an operand becomes undefined, the product, and which row and column of D are undefined by it."""


def stores_but(row: int | None, column: int | None) -> str:
    """Stores D without the elements of a row and of a column; with both, without the element that they share."""
    text = "and.b32 %r10, %thread, 31; shr.u32 %r11, %r10, 2; and.b32 %r12, %r10, 3; shl.b32 %r12, %r12, 1;\n"
    text += "mad.lo.u32 %r11, %r9, 16, %r11;\n"
    for j, d in enumerate(D):
        text += f"add.u32 %r13, %r11, {8 * (j // 2)}; add.u32 %r14, %r12, {j % 2};\n"
        text += f"setp.eq.u32 %p1, %r13, {-1 if row is None else row};\n"
        text += f"setp.eq.u32 %p2, %r14, {-1 if column is None else column};\n"
        text += ("and" if row is not None and column is not None else "or") + ".pred %p1, %p1, %p2;\n"
        text += f"@!%p1 st.global.b32 [%rd2+{512 * j}], {d};\n"
    return text


@pytest.mark.parametrize("accumulation", ["f32", "tensor_core"])
@pytest.mark.parametrize("what", UNDEFINED)
def test_undefined_operands_make_rows_and_columns_undefined(what, accumulation):
    """The next product into the same registers leaves them so; one that starts from zero does not."""
    body, multiply, row, column = UNDEFINED[what]
    device = {"accumulation": accumulation, "uninitialised": "poison"}
    step = FENCE + multiply + FENCE + MULTIPLY + COMMIT + WAIT
    out = matrix_of(program(ZERO + NOTHING + body + step + stores_but(row, column), **device))
    expected = (np.ones_like(A) if "registers" in what else A) @ B.T + PRODUCT
    undefined = np.zeros_like(expected, bool)
    undefined[slice(None) if row is None else row, slice(None) if column is None else column] = True
    assert (out == np.where(undefined, 0, expected)).all()
    with pytest.raises(Fault, match=rf"shared memory byte {1024 + A_BYTES + B_BYTES:#x} is read but was never written"):
        program(ZERO + NOTHING + body + step + STORE, **device)
    if "A in" in what or "D" in what:
        again = MULTIPLY.replace(", 1, 1, 1, 0, 0", ", 0, 1, 1, 0, 0")
        again = matrix_of(program(ZERO + NOTHING + body + step + FENCE + again + COMMIT + WAIT + STORE, **device))
        assert (again == PRODUCT).all()


def test_an_undefined_product_names_its_own_origin():
    """An earlier product into the same registers, which have been set to zero since, does not matter."""
    again = f"setp.eq.u32 %p1, %thread, 21; @%p1 ld.shared.b32 %d1, [%base+{A_BYTES + B_BYTES + 4}];"
    step = "setp.eq.u32 %p1, %thread, 21; @%p1 mov.b32 %d1, %r20;" + FENCE + MULTIPLY + COMMIT + WAIT
    body = ZERO + NOTHING + step + ZERO + again + FENCE + MULTIPLY + COMMIT + WAIT + STORE
    with pytest.raises(Fault, match=rf"shared memory byte {1024 + A_BYTES + B_BYTES + 4:#x} is read but was never"):
        matrix_of(program(body, uninitialised="poison"))


def test_early_overwriting_of_operands_is_seen_by_some_schedule():
    clear = "shl.b32 %r3, %thread, 4;\nadd.u32 %r3, %r3, %base;\nmov.b32 %r4, 0;\n"
    clear += "st.shared.v4.b32 [%r3], {%r4, %r4, %r4, %r4};\n"
    body = ZERO + FENCE + MULTIPLY + COMMIT + "bar.sync 0;\n" + clear + "bar.sync 0;\n" + WAIT + STORE
    right = {bool((matrix_of(program(body, schedule="random", seed=s)) == PRODUCT).all()) for s in range(10)}
    assert right == {True, False}


class TestFaults:
    def test_reading_before_the_wait(self):
        tile = TileProduct(n=8, element="bf16", swizzle="none")
        case = tile.case("case", np.ones((64, 64), tile.dtype), np.ones((8, 64), tile.dtype))
        with pytest.raises(Fault, match=r"st.global.b32(.|\n)*register %d0 before the wait"):
            launch(tile.ptx(wait=False), case)

    def test_waiting_without_a_commit_covers_nothing(self):
        with pytest.raises(Fault, match=r"no wgmma\.wait_group has covered"):
            program(ZERO + FENCE + MULTIPLY + WAIT + "add.rn.f32 %d0, %d0, %d1;\n" + COMMIT + WAIT)

    def test_writing_an_accumulator_under_way(self):
        overwrite = "mov.b32 %d2, 0;\n"
        with pytest.raises(Fault, match="register %d2 was written while a wgmma"):
            program(ZERO + FENCE + MULTIPLY + overwrite + MULTIPLY + COMMIT + WAIT + STORE)
        with pytest.raises(Fault, match="register %d2 was written while a wgmma"):
            program(ZERO + FENCE + MULTIPLY + COMMIT + overwrite + WAIT + STORE)

    def test_accumulators_that_were_never_written(self):
        with pytest.raises(Fault, match="which hold nothing yet"):
            program(FENCE + MULTIPLY + COMMIT + WAIT)
        with pytest.raises(Fault, match="adds to register %d1, which holds nothing"):
            program("mov.b32 %d0, 0;\n" + FENCE + MULTIPLY + COMMIT + WAIT)

    @pytest.mark.parametrize("before", ["", FENCE + MULTIPLY + COMMIT + WAIT + STORE])
    def test_a_fence_that_is_missing_is_a_warning_as_ptxas_puts_it_there(self, before):
        body = ZERO + before + MULTIPLY + COMMIT + WAIT + STORE
        found = matrix_of(program(body, warnings=("wgmma-fence",)))
        assert (found == PRODUCT * (2 if before else 1)).all()
        with pytest.raises(Fault, match=r"no wgmma\.fence\.sync\.aligned stands between(.|\n)*ptxas injects one"):
            program(body, strict=True)

    def test_another_shape_on_registers_under_way(self):
        wide = wgmma(16, "f16", [f"%d{j}" for j in range(8)], "%rd4", "%rd4", "0", "1, 1, 0, 0")
        with pytest.raises(Fault, match="another shape or order of registers"):
            program(ZERO + FENCE + MULTIPLY + wide + COMMIT + WAIT)

    def test_warps_that_disagree(self):
        other = "shl.b32 %r1, %r9, 1;\ncvt.u64.u32 %rd6, %r1;\nadd.u64 %rd4, %rd4, %rd6;\n"
        with pytest.raises(Fault, match=r"descriptor of A is 0x.* in warp \d and 0x.* here"):
            program(ZERO + other + FENCE + MULTIPLY + COMMIT + WAIT)

    def test_lanes_that_disagree(self):
        other = "shl.b32 %r1, %thread, 1;\ncvt.u64.u32 %rd6, %r1;\nadd.u64 %rd5, %rd5, %rd6;\n"
        with pytest.raises(Fault, match="different values as the descriptor of B"):
            program(ZERO + other + FENCE + MULTIPLY + COMMIT + WAIT)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("or.b64 %rd4, %rd4, 70368744177664;", r"reserved bits 46\.\.48 must be 0"),
            ("add.u64 %rd5, %rd5, 8192;", "beyond the CTA's"),
            ("add.u64 %rd5, %rd5, 64;", "never written"),
            ("and.b64 %rd4, %rd4, -16384;", "the system reserves"),
        ],
    )
    def test_descriptors_that_name_nothing(self, change, message):
        with pytest.raises(Fault, match=message):
            program(ZERO + change + "\n" + FENCE + MULTIPLY + COMMIT + WAIT)

    def test_a_warp_that_stays_away(self):
        skip = "setp.eq.u32 %p1, %r9, 2;\n@%p1 bra OUT;\n"
        with pytest.raises(Deadlock, match=r"oldest wgmma was issued by warp\(s\) 0, 1, 3 of its 4 only"):
            program(ZERO + skip + FENCE + MULTIPLY + COMMIT + WAIT + "OUT:\n")

    def test_part_of_a_warp(self):
        skip = "and.b32 %r1, %thread, 31;\nsetp.eq.u32 %p1, %r1, 2;\n@%p1 bra OUT;\n"
        with pytest.raises(Fault, match="only lanes 0xfffffffb execute it"):
            program(ZERO + skip + FENCE + "OUT:\nbar.warp.sync -1;\n")

    def test_leaving_without_a_wait(self):
        with pytest.raises(Fault, match=r"exits while a wgmma of warpgroup 0(.|\n)*wait_group 0 is missing"):
            program(ZERO + FENCE + MULTIPLY + COMMIT)

    @pytest.mark.parametrize("change", ["m64n12k16", "m64n8k8", "f16.f16.f16"])
    def test_forms_that_are_not_there(self, change):
        text = MULTIPLY.replace("f32.f16.f16", change) if "f16" in change else MULTIPLY.replace("m64n8k16", change)
        with pytest.raises(Fault, match="not implemented"):
            program(ZERO + FENCE + text + COMMIT + WAIT)


def test_products_of_a_warpgroup_complete_in_order_whichever_warp_issues_them_last():
    """The first one overwrites the accumulator: after the second it would take that one's product away."""
    first = MULTIPLY.replace(", 1, 1, 1, 0, 0", ", 0, 1, 1, 0, 0")
    for seed in range(8):
        found = matrix_of(
            program(ZERO + FENCE + first + MULTIPLY + COMMIT + WAIT + STORE, schedule="random", seed=seed)
        )
        assert (found == 2 * PRODUCT).all(), seed


def test_accumulators_that_are_read_before_any_wgmma_hold_nothing():
    """A warp that has not executed a wgmma, and one that has, but with other registers."""
    early = "add.rn.f32 %d0, %d0, %d1;\n"
    with pytest.raises(Fault, match=r"%d0, which holds nothing yet \(a wgmma accumulates in it, but none has yet\)"):
        program(early + ZERO + FENCE + MULTIPLY + COMMIT + WAIT)
    other = wgmma(8, "f16", ["%d4", "%d5", "%d6", "%d7"], "%rd4", "%rd5", "0", "1, 1, 0, 0")
    with pytest.raises(Fault, match=r"%d0, which holds nothing yet \(a wgmma accumulates in it, but none has yet\)"):
        program(FENCE + other + COMMIT + WAIT + early + ZERO + FENCE + MULTIPLY + COMMIT + WAIT)


@pytest.mark.parametrize("operands", ["%r1, %d0", "%d0, %r1", "%d0, %d1"])
def test_converting_an_accumulator_that_was_not_waited_for(operands):
    convert = f"mov.b32 %r1, 0;\nbar.sync 0;\ncvt.rn.bf16x2.f32 %r2, {operands};\n"
    with pytest.raises(
        Fault, match=r"reads register %d\d, which holds nothing yet \(a wgmma accumulates in it, and no"
    ):
        program(ZERO + FENCE + MULTIPLY + COMMIT + convert + WAIT)
