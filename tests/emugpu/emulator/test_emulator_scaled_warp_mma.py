"""mma.sync of the kinds that consumer Blackwell has: types of 8, 6 and 4 bits, with and without block scaling.

The places of elements and of scale factors are those that somebody else measured on an RTX 5060 Ti, by comparing random
data with a sum on the CPU and by changing one scale factor at a time.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Device, Fault
from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.units.mma import Accumulation

NUMBERS = {
    "e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
    "e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
    "e3m2": np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e3m2fn),
    "e2m3": np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e2m3fn),
    "e2m1": np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn),
}
SMALL = {t: [c for c, x in enumerate(n.astype(np.float64)) if 0.25 <= abs(x) <= 6] for t, n in NUMBERS.items()}
"""The codes of each type whose sums of products f32 holds exactly."""
RNG = np.random.default_rng(5)


def registers(codes: np.ndarray, element: str, which: str, narrow: bool) -> np.ndarray:
    """Registers [n, 32] of A [16, K] or B [8, K]: item j of register i of thread t, with g = t / 4 and l = t % 4."""
    rows, k = codes.shape
    bits = 4 if narrow else 8
    per = 32 // bits
    found = np.zeros((rows * k * bits // 1024, 32), np.uint32)
    for i in range(len(found)):
        for t in range(32):
            row = t // 4 + 8 * (i & 1) if which == "a" else t // 4
            along = (i >> 1 if which == "a" else i) * 4 * per
            for j in range(per):
                code = int(codes[row, t % 4 * per + along + j])
                found[i, t] |= (code << 2 if element == "e2m1" and not narrow else code) << bits * j
    return found


def scale_words(codes: np.ndarray, thread: int, byte: int) -> np.ndarray:
    """The register [32] with scale factors [16 or 8, vectors]. Bytes that do not count hold something else."""
    words = RNG.integers(0, 256, (32, 4)).astype(np.uint8)
    for row, factors in enumerate(codes):
        lane = (row & 7) * 4 + 2 * thread + (row >> 3) if len(codes) == 16 else row * 4 + thread
        words[lane, byte : byte + len(factors)] = factors
    return words.view("<u4")[:, 0]


def scale_numbers(codes: np.ndarray, kind: str) -> np.ndarray:
    if kind == "ue8m0":
        return np.exp2(codes.astype(np.float64) - 127)
    return (codes & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def run(
    form: str,
    blocks: list[np.ndarray],
    more: str = "",
    setup: str = "",
    target: str = "sm_120a",
    accumulation: Accumulation = "f32",
) -> np.ndarray:
    """The registers [4, 32] of D. ``blocks``: registers of A, B and C and what else a thread loads, from %r8 up."""
    body = f"{setup}ld.param.u64 %rd2, [from]; mad.wide.u32 %rd3, %r0, 4, %rd2; mad.wide.u32 %rd1, %r0, 4, %rd0;\n"
    used, names = 8, []
    for block in blocks:
        names.append([f"%r{used + n}" for n in range(len(block))])
        for name in names[-1]:
            body += f"ld.global.b32 {name}, [%rd3{f'+{128 * (used - 8)}' if used > 8 else ''}];\n"
            used += 1
    a, b, c = ("{" + ", ".join(group) + "}" for group in names[:3])
    body += f"mma.{form} {c}, {a}, {b}, {c}{more};\n"
    body += "".join(f"st.global.b32 [%rd1+{128 * n}], {name};\n" for n, name in enumerate(names[2]))
    device = Device(accumulation)
    source = device.upload(np.concatenate(blocks).astype(np.uint32))
    launched = launch(
        body + "ret;", words=128, parameters=["u64 from"], arguments=[source], device=device, target=target
    )
    return launched.words(32 * len(names[2])).reshape(-1, 32)


def c_places() -> tuple[np.ndarray, np.ndarray]:
    """The row and the column of C in each of four registers of 32 threads."""
    thread, register = np.meshgrid(np.arange(32), np.arange(4))
    return thread // 4 + 8 * (register // 2), 2 * (thread % 4) + register % 2


SCALED = [
    ("mxf8f6f4", "scale_vec::1X", "e4m3", "e2m1", "ue8m0"),
    ("mxf8f6f4", "", "e3m2", "e5m2", "ue8m0"),
    ("mxf8f6f4", "scale_vec::1X", "e2m3", "e2m3", "ue8m0"),
    ("mxf4", "scale_vec::2X", "e2m1", "e2m1", "ue8m0"),
    ("mxf4", "", "e2m1", "e2m1", "ue8m0"),
    ("mxf4nvf4", "scale_vec::2X", "e2m1", "e2m1", "ue8m0"),
    ("mxf4nvf4", "scale_vec::4X", "e2m1", "e2m1", "ue8m0"),
    ("mxf4nvf4", "scale_vec::4X", "e2m1", "e2m1", "ue4m3"),
]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("kind", "size", "a_type", "b_type", "scale"), SCALED)
def test_block_scaled_products_are_exact(kind, size, a_type, b_type, scale, sparse):
    narrow = kind != "mxf8f6f4"
    depth = 64 if narrow else 32  # the elements of a row of A that are not masked
    k = 2 * depth if sparse else depth
    vectors = int(size[-2]) if size else 2 if narrow else 1
    a, b = RNG.choice(SMALL[a_type], (16, depth)), RNG.choice(SMALL[b_type], (8, k))
    low, high = (125, 130) if scale == "ue8m0" else (0x30, 0x3D)
    of_a, of_b = (RNG.integers(low, high, (rows, vectors)).astype(np.uint8) for rows in (16, 8))
    threads = int(RNG.integers(2)), int(RNG.integers(4))
    chosen = [int(x) for x in RNG.choice(range(0, 4, vectors), 2)]
    c = RNG.integers(-50, 50, (16, 8)).astype(np.float32)

    whole, metadata, blocks = NUMBERS[a_type][a].astype(np.float64), "", []
    if sparse:
        codes = RNG.choice([0x4, 0x8, 0xC, 0x9, 0xD, 0xE], (16, 16))
        whole, group = np.zeros((16, k)), 2 if narrow else 1  # pairs of neighbours, or single elements
        for row in range(16):
            for n, code in enumerate(codes[row]):
                for kept, index in enumerate((code & 3, code >> 2)):
                    to, source = group * (4 * n + index), group * (2 * n + kept)
                    whole[row, to : to + group] = NUMBERS[a_type][a[row, source : source + group]]
        words = np.zeros((1, 32), np.uint32)
        for t in range(32):
            row, first = t // 4 + 8 * (t & 1), 8 * (t // 2 % 2)
            words[0, t] = sum(int(code) << 4 * n for n, code in enumerate(codes[row, first : first + 8]))
        blocks, metadata = [words], f", %r{8 + 4 + (4 if sparse else 2) + 4}, 0"
    used = 8 + 4 + (4 if sparse else 2) + 4 + len(blocks)
    rows, columns = c_places()
    found = run(
        f"{'sp::ordered_metadata.' if sparse else ''}sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale."
        + f"{size + '.' if size else ''}f32.{a_type}.{b_type}.f32.{scale}",
        [registers(a, a_type, "a", narrow), registers(b, b_type, "b", narrow), c[rows, columns].view(np.uint32),
         *blocks, *(scale_words(x, t, n)[None] for x, t, n in zip((of_a, of_b), threads, chosen, strict=True))],
        f"{metadata}, {{%r{used}}}, {{{chosen[0]}, %rs1}}, %r{used + 1}, {{%rs2, {threads[1]}}}",
        setup=f"mov.b16 %rs1, {threads[0]}; mov.b16 %rs2, {chosen[1]};\n",
    )  # fmt: skip
    scales = [np.repeat(scale_numbers(x, scale), k // vectors, axis=1) for x in (of_a, of_b)]
    expected = (whole * scales[0]) @ (NUMBERS[b_type][b].astype(np.float64) * scales[1]).T + c
    assert (found.view(np.float32) == expected[rows, columns]).all()


@pytest.mark.parametrize("d_type", ["f32", "f16"])
@pytest.mark.parametrize(("a_type", "b_type"), [("e3m2", "e2m3"), ("e2m1", "e4m3"), ("e5m2", "e2m1")])
def test_products_of_all_small_types_are_exact(a_type, b_type, d_type):
    codes = [[n for n in SMALL[t] if abs(float(NUMBERS[t][n])) <= 2] for t in (a_type, b_type)]
    a, b = RNG.choice(codes[0], (16, 32)), RNG.choice(codes[1], (8, 32))
    c = RNG.integers(-4, 4, (16, 8)).astype(np.float32 if d_type == "f32" else np.float16)
    rows, columns = c_places()
    of_c = c[rows, columns]
    if d_type == "f16":
        of_c = np.ascontiguousarray(np.stack([of_c[::2], of_c[1::2]], axis=-1))
    found = run(
        f"sync.aligned.kind::f8f6f4.m16n8k32.row.col.{d_type}.{a_type}.{b_type}.{d_type}",
        [registers(a, a_type, "a", False), registers(b, b_type, "b", False),
         of_c.view(np.uint32).reshape(-1, 32)],
    )  # fmt: skip
    expected = NUMBERS[a_type][a].astype(np.float64) @ NUMBERS[b_type][b].astype(np.float64).T + c
    if d_type == "f32":
        assert (found.view(np.float32) == expected[rows, columns]).all()
    else:
        halves = found.view(np.float16).reshape(2, 32, 2)
        got = np.stack([halves[0, :, 0], halves[0, :, 1], halves[1, :, 0], halves[1, :, 1]])
        assert (got == expected[rows, columns].astype(np.float16)).all()


ONES = [np.full((4, 32), 0x22222222), np.full((2, 32), 0x22222222), np.zeros((4, 32))]
"""A and B of e2m1, whose code 2 is 1."""
NVFP4 = "sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::{}X.f32.e2m1.e2m1.f32.{}"


@pytest.mark.parametrize(
    ("size", "selectors", "problem"),
    [
        (4, ((0, 1), (0, 3)), ""),
        (4, ((0, 2), (0, 3)), "thread-id-a is 2; it must be one of 0, 1"),
        (4, ((0, 1), (0, 4)), "thread-id-b is 4; it must be one of 0, 1, 2, 3"),
        (4, ((2, 1), (0, 3)), "byte-id-a is 2; it must be one of 0"),
        (2, ((2, 1), (1, 3)), "byte-id-b is 1; it must be one of 0, 2"),
    ],
)
def test_selectors_that_the_isa_leaves_undefined_are_faults(size, selectors, problem):
    scale = np.full((2, 32), 0x38383838 if size == 4 else 0x7F7F7F7F)
    (byte_a, thread_a), (byte_b, thread_b) = selectors
    more = f", %r18, {{{byte_a}, {thread_a}}}, %r19, {{{byte_b}, {thread_b}}}"
    form = NVFP4.format(size, "ue4m3" if size == 4 else "ue8m0")
    if problem:
        with pytest.raises(Fault, match=problem):
            run(form, [*ONES, scale], more)
    else:
        assert (run(form, [*ONES, scale], more).view(np.float32) == 64).all()


@pytest.mark.parametrize(
    ("size", "scale", "word", "result"),
    [
        (4, "ue4m3", 0x383838B8, 64),  # the upper bit of a factor means nothing
        (4, "ue4m3", 0x3838387F, np.nan),
        (4, "ue4m3", 0x383838FF, np.nan),
        (2, "ue8m0", 0x7F7F7FFF, np.nan),
        (2, "ue8m0", 0xFFFF7F7F, 64),  # these bytes are not selected
    ],
)
def test_factors_that_are_no_numbers_make_nan(size, scale, word, result):
    found = run(NVFP4.format(size, scale), [*ONES, np.full((1, 32), word)], ", %r18, {0, 0}, %r18, {0, 0}")
    np.testing.assert_array_equal(found.view(np.float32), np.full((4, 32), result, np.float32))


@pytest.mark.parametrize(("lanes", "undefined"), [((2, 3), False), ((1, 2, 3), True)])
def test_only_the_lanes_that_give_scale_factors_need_defined_ones(lanes, undefined):
    """thread-id-a is 0: lanes 0 and 1 of each quad give the factors of A."""
    setup = "and.b32 %r1, %r0, 3;\n" + "".join(f"setp.ne.u32 %p{lane}, %r1, {lane};\n" for lane in lanes)
    setup += "mov.pred %p0, %p" + f"{lanes[0]};\n" + "".join(f"and.pred %p0, %p0, %p{lane};\n" for lane in lanes[1:])
    setup += "@%p0 mov.b32 %r40, 0x38383838;\n"
    more = ", %r40, {0, 0}, %r18, {0, 0}"
    form, scale = NVFP4.format(4, "ue4m3"), np.full((1, 32), 0x38383838)
    if undefined:
        # Row g + 8 of D is undefined, so a branch on it stops the run.
        more += ";\nsetp.eq.f32 %p9, %r16, 0f42800000; @%p9 bra DONE; DONE: add.u32 %r1, %r1, 0"
        with pytest.raises(Fault, match="which was never written"):
            run(form, [*ONES, scale], more, setup)
    else:
        assert (run(form, [*ONES, scale], more, setup).view(np.float32) == 64).all()


@pytest.mark.parametrize(
    ("element", "one", "first", "bits", "undefined"),
    [("e2m1", 2, 2, 4, False), ("e2m1", 2, 2, 3, True), ("e3m2", 12, 0, 6, False), ("e2m3", 8, 0, 5, True)],
)
def test_bits_beside_small_elements_need_not_be_defined(element, one, first, bits, undefined):
    """Each byte of A and B has a 1 in some of its bits; its other bits were never written."""
    setup = "".join(f"bfi.b32 %r50, {one}, %r50, {8 * byte + first}, {bits};\n" for byte in range(4))
    zeros = "".join(f"mov.b32 %r{n}, 0;\n" for n in range(4, 8))
    multiply = f"""
    mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{element}.{element}.f32 {{%r4, %r5, %r6, %r7}},
        {{%r50, %r50, %r50, %r50}}, {{%r50, %r50}}, {{%r4, %r5, %r6, %r7}};
    setp.eq.f32 %p1, %r4, 0f42000000;
    selp.b32 %r1, 1, 0, %p1;
    @%p1 bra STORE;
    STORE:
    """
    if undefined:
        with pytest.raises(Fault, match="%r50, which was never written"):
            launch(setup + zeros + multiply + STORE_R1 + "ret;", target="sm_120a")
    else:
        launched = launch(setup + zeros + multiply + STORE_R1 + "ret;", target="sm_120a")
        assert (launched.words(32) == 1).all()


@pytest.mark.parametrize(
    ("form", "operands"),
    [
        ("sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue4m3", 2),
        ("sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue8m0", 2),
        ("sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3", 2),
        ("sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e4m3.f32.ue8m0", 2),
        ("sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.f32.e4m3.e4m3.f32", 0),
        (NVFP4.format(4, "ue4m3"), 0),
    ],
)
def test_forms_that_the_isa_does_not_have_are_not_implemented(form, operands):
    more = ", %r18, {0, 0}, %r18, {0, 0}" if operands else ""
    with pytest.raises((Fault, PtxSyntaxError), match="not implemented"):
        run(form, [*ONES, np.zeros((1, 32))], more)


@pytest.mark.parametrize("sparse", ["sp", "sp::ordered_metadata"])
@pytest.mark.parametrize("more", ["", ".kind::f8f6f4", ".scale_vec::1X"])
def test_a_kind_is_named_once_and_its_metadata_is_ordered(sparse, more):
    """ptxas 13.0 refuses all of these but one."""
    ones = [np.full((4, 32), 0x08080808), np.full((4, 32), 0x08080808), np.zeros((4, 32)), np.full((1, 32), 0x44444444)]
    form = f"{sparse}.sync.aligned.m16n8k64.row.col.kind::f8f6f4{more}.f32.e2m1.e2m1.f32"
    if sparse == "sp" or more:
        with pytest.raises((Fault, PtxSyntaxError), match="not implemented"):
            run(form, ones, ", %r20, 0")
    else:
        assert (run(form, ones, ", %r20, 0").view(np.float32) == 32).all()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_data_centre_gpus_have_no_kinds_of_mma(target):
    with pytest.raises(
        PtxSyntaxError, match=r"mma with \.kind::mxf4nvf4 does not exist on the module's target .*needs sm_120a"
    ):
        run(NVFP4.format(4, "ue4m3"), [*ONES, np.zeros((1, 32))], ", %r18, {0, 0}, %r18, {0, 0}", target=target)


@pytest.mark.parametrize("kind", ["mxf4nvf4", "f8f6f4"])
def test_no_rule_is_published_for_sums_of_kinds_in_the_tensor_core(kind):
    """With f32 accumulation the same instruction runs; a product without a kind runs with both."""
    form, blocks, more = {
        "mxf4nvf4": (NVFP4.format(4, "ue4m3"), [*ONES, np.zeros((1, 32))], ", %r18, {0, 0}, %r18, {0, 0}"),
        "f8f6f4": ("sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32", list(ONES), ""),
    }[kind]
    run(form, blocks, more)
    with pytest.raises(Fault, match=f"no rule is published for the sums of mma.sync of kind::{kind}") as error:
        run(form, blocks, more, accumulation="tensor_core")
    assert error.value.rule == "unsupported" and "run it with accumulation=f32" in str(error.value)
    run("sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", list(ONES), accumulation="tensor_core")


@pytest.mark.parametrize("instruction", ["wgmma.fence.sync.aligned", "tcgen05.wait::ld.sync.aligned"])
def test_consumer_gpus_have_neither_wgmma_nor_tcgen05(instruction):
    with pytest.raises(PtxSyntaxError, match="does not exist on the module's target sm_121a"):
        launch(instruction + "; ret;", target="sm_121a")
