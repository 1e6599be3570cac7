"""Launching other compilers' kernels from Python: symbols, structs by value, tensor maps in memory, names, defaults."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from ptx_programs import source

from emugpu.emulator import Device, Fault, LaunchError, Module, TensorMap
from emugpu.emulator.names import LONGEST, brief, find_name, readable_name, short_name
from emugpu.launch.expectation import compare
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import run
from emugpu.launch.memory import PIECE, index_operand, make_values
from emugpu.launch.spec import DATA_TYPES, Fill

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


def test_constant_memory_that_is_not_there_is_an_error():
    text = source("mov.b32 %r2, 0; ld.const.u32 %r1, [%r2];" + STORE)
    device = Device()
    with pytest.raises(Fault, match="outside every allocation; nothing is allocated"):
        device.launch(Module.from_text(text), grid=1, block=1, arguments=[device.alloc(4)])


# ---- structs by value and tensor maps ----

PARAMETERS = ".param .u64 out, .param .u32 first, .param .align 128 .b8 args[384], .param .u64 map_pointer"
LOAD_A_BOX = """.version 8.8
.target sm_100a
.address_size 64
.shared .align 128 .b8 box[1024];
.shared .align 8 .b64 full;
.visible .entry load_a_box({parameters})
.reqntid 64
{{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<16>;
mov.u32 %r0, %tid.x;
mov.b32 %r1, box;
mov.b32 %r2, full;
setp.ne.u32 %p1, %r0, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r2], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
{address}
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {{0, 8}}], [%r2];
READY:
bar.sync 0;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra WAIT;
ld.param.u64 %d2, [out];
shl.b32 %r3, %r0, 4;
add.u32 %r4, %r1, %r3;
cvt.u64.u32 %d3, %r3;
add.s64 %d2, %d2, %d3;
ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%r4];
st.global.v4.b32 [%d2], {{%r5, %r6, %r7, %r8}};
ret;
}}
"""
INSIDE = "mov.b64 %d4, args; cvta.param.u64 %d5, %d4; add.s64 %d1, %d5, {offset};"
POINTER = "ld.param.u64 %d1, [map_pointer];"
ROWS = np.arange(32 * 32, dtype=np.uint32).reshape(32, 32)


def load_box(address: str, make_arguments) -> np.ndarray:
    """Rows 8 to 15 of a matrix of 32 rows, if the kernel finds the tensor map."""
    module = Module.from_text(LOAD_A_BOX.format(parameters=PARAMETERS, address=address))
    device = Device()
    out = device.alloc(1024)
    tmap = TensorMap.tiled(device.upload(ROWS, "rows"), "u32", (32, 32), (8, 32))
    other = TensorMap.tiled(device.upload(ROWS[::-1], "other"), "u32", (32, 32), (8, 32))
    result = device.launch(module, grid=1, arguments=make_arguments(device, out, tmap, other))
    assert result.counters.tma_loads == 1
    return device.download(out, np.uint32, (8, 32))


STRUCTS = [
    # A CUtensorMap is aligned to 64: the maps lie at 64 and 192, behind them an int and a pointer at 320 and 328.
    (64, lambda tmap, other: {"head": 7, "a": tmap, "b": other, "n": np.int32(3), "null": None, "tail": bytes(48)}),
    (192, lambda tmap, other: (7, other, (tmap, 3.5, None))),
    (0, lambda tmap, other: [tmap, other, np.zeros(32, np.float32)]),
    (256, lambda tmap, other: {"x": {"y": [np.zeros(64, np.uint8), other], "z": True}, "map": tmap}),
]


@pytest.mark.parametrize(("offset", "struct"), STRUCTS)
def test_a_tensor_map_inside_a_struct_is_found_where_c_puts_it(offset, struct):
    address = INSIDE.format(offset=offset)
    loaded = load_box(address, lambda device, out, tmap, other: [out, 1, struct(tmap, other), None])
    assert np.array_equal(loaded, ROWS[8:16])


def test_a_tensor_map_in_global_memory():
    def arguments(device, out, tmap, other):
        device.upload_tensor_map(other)
        return {"out": out, "first": 1, "args": None, "map_pointer": device.upload_tensor_map(tmap, "rows' map")}

    assert np.array_equal(load_box(POINTER, arguments), ROWS[8:16])
    with pytest.raises(Fault, match="is not that of a tensor map"):
        load_box(POINTER, lambda device, out, tmap, other: [out, 1, None, device.upload(np.zeros(128, np.uint8))])


COPY_STRUCT = """
mul.wide.u32 %rd1, %r0, 4; mov.b64 %rd2, args; add.s64 %rd3, %rd2, %rd1; ld.param.u32 %r1, [%rd3];
add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r1; ret;
"""


def laid_out(value, size: int, align: int = 8) -> bytes:
    """The bytes of a struct parameter, as a kernel sees them."""
    text = source(COPY_STRUCT).replace("(.param .u64 out", f"(.param .u64 out, .param .align {align} .b8 args[{size}]")
    device = Device()
    out = device.alloc(size)
    device.launch(Module.from_text(text), grid=1, block=size // 4, arguments=[out, value])
    return device.download(out, np.uint8, size).tobytes()


def test_structs_are_laid_out_as_c_does():
    record = np.dtype([("a", "u1"), ("b", "<i4"), ("c", "<f8")], align=True)
    fields = np.int32(-2).tobytes() + np.float64(3.5).tobytes()
    value = np.frombuffer(b"\x01\7\7\7" + fields, record)[0]  # with something between the fields
    assert laid_out(value, 16) == b"\x01\0\0\0" + fields
    assert laid_out((value, True), 24)[:17] == b"\x01\0\0\0" + fields + b"\x01"
    nested = np.dtype([("x", record), ("y", "<i8")], align=True)
    both = np.frombuffer(b"\x01\7\7\7" + fields + bytes(8), nested)[0]
    assert laid_out(both, 24) == b"\x01\0\0\0" + fields + bytes(8)
    assert laid_out((np.uint8(1), np.uint64(2), np.uint16(3)), 24) == (
        b"\x01" + bytes(7) + b"\x02" + bytes(7) + b"\x03" + bytes(7)
    )
    assert laid_out({"f": 1.5, "i": -1, "p": 0x7F00_0000_0100, "n": None}, 24) == (
        np.float32(1.5).tobytes() + b"\xff" * 4 + np.uint64(0x7F00_0000_0100).tobytes() + bytes(8)
    )
    assert laid_out({"f": np.float16(1), "inner": {"a": np.uint8(9), "b": 5}}, 12, 4) == (
        b"\0\x3c\0\0" + b"\x09\0\0\0" + b"\x05\0\0\0"
    )
    assert laid_out((np.array([1, 2], np.uint16), b"\x07\0\0"), 8) == b"\x01\0\x02\0\x07\0\0\0"
    assert laid_out(None, 8) == bytes(8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2, 3), r"the fields take 12 bytes, parameter 'args' has 8 .*\[1\] at 4 to 8; .*an int is 4 bytes"),
        ({"a": 1}, r"the fields take 4 bytes, parameter 'args' has 8 \(\.a at 0 to 4\)"),
        ({"a": 1 << 33}, r"argument 1\.a = 8589934592 fits no int of 4 bytes; write np\.int64"),
        ({"a": {"b": "x"}}, r"argument 1\.a\.b has type str; a field is a NumPy value, int"),
        (({}, TensorMap.tiled(256, "u8", (32, 32), (8, 16))), "the fields take 128 bytes"),
    ],
)
def test_structs_that_do_not_fit_say_where_their_fields_are(value, message):
    with pytest.raises(LaunchError, match=message):
        laid_out(value, 8)


def test_a_tensor_map_in_a_struct_that_is_not_aligned_for_it():
    with pytest.raises(LaunchError, match=r"argument 1\[0\] is a tensor map, but parameter 'args' is aligned to 8"):
        laid_out((TensorMap.tiled(256, "u8", (32, 32), (8, 16)),), 128)


# ---- names and defaults ----


def test_whole_numbers_become_floats_where_the_parameter_is_one():
    text = source("ld.param.f32 %r1, [x];" + STORE, parameters=["f32 x"])
    device = Device()
    out = device.alloc(4)
    device.launch(Module.from_text(text), grid=1, block=1, arguments=[out, 3])
    assert device.download(out, np.float32, 1) == [3.0]


NAMES = ["_ZN3lab4gemmIfEEvPT_", "_ZN3lab9gemm_coreEPf", "plain_gemm", "other"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("other", "other"), ("plain", "plain_gemm"), ("lab::gemm", NAMES[0]), ("lab::gemm_core", NAMES[1]),
        ("void lab::gemm<float>(float*)", NAMES[0]), ("gemm", NAMES[0]),
        ("gemm<float>", NAMES[0]), ("core", NAMES[1]), (NAMES[0], NAMES[0]),
    ],
)  # fmt: skip
def test_a_part_of_a_name_is_enough_if_no_other_has_it(wanted, found):
    assert find_name(wanted, NAMES, "kernel") == found


def test_instances_of_a_template_are_told_apart_by_a_part_or_by_number():
    names = ["_Z4gemmILi64EfEvPT0_", "_Z4gemmILi128EfEvPT0_", "_Z4gemmILi128EdEvPT0_"]
    assert [find_name(f"gemm#{n}", names, "kernel") for n in (1, 2, 3)] == names
    assert find_name("<64", names, "kernel") == names[0] and find_name("128, d", names, "kernel") == names[2]
    said = "it may be gemm<64, float>, gemm<128, float>, gemm<128, double>; write more of the name, or one of gemm#1 to"
    for wanted in ("gemm", "gemm#4"):
        with pytest.raises(LaunchError, match=said):
            find_name(wanted, names, "kernel")


def test_long_names_and_long_vectors_are_shortened_in_messages():
    name = "_ZN3lab4gemmI" + "Li128E" * 40 + "EEvPf"
    assert short_name(name).startswith("lab::gemm<128, 128") and len(short_name(name)) <= LONGEST + 2
    assert short_name("plain_gemm") == "plain_gemm" and short_name("_ZN3lab9gemm_coreEPf") == "lab::gemm_core"
    assert short_name(f"void lab::gemm<{'int, ' * 40}1>(float*, int)") == short_name(f"lab::gemm<{'int, ' * 40}1>")
    array = "5ArrayIfLi1E1C7mutable7alignedE"
    numba = f"_ZN6cudapy8__main__4axpyB2v1B96{'cw51cXTLSUw_' * 8}E{array}{array}f"
    assert len(numba) > 170 and short_name(numba) == short_name(readable_name(numba)) == "cudapy::__main__::axpy"
    vector = ", ".join(f"%r{n}" for n in range(128))
    assert brief(f"tcgen05.ld.x128 {{{vector}}}, [%r200]") == "tcgen05.ld.x128 {%r0, %r1, .. 126 more}, [%r200]"
    assert brief("ld.v4 {%r1, %r2, %r3, %r4}, [%rd1]") == "ld.v4 {%r1, %r2, %r3, %r4}, [%rd1]"


@pytest.mark.parametrize("wanted", ["gem", "lab", "", "axpy"])
def test_names_that_are_not_clear_are_shown_demangled(wanted):
    with pytest.raises(LaunchError, match=r"kernel '.*lab::gemm<float>, lab::gemm_core"):
        find_name(wanted, NAMES, "kernel")


def test_cluster_and_block_come_from_the_ptx_where_it_requires_them():
    text = source(
        "mov.u32 %r1, %cluster_nctarank; mov.u32 %r0, %ctaid.x;" + STORE, "", ".reqntid 32\n.reqnctapercluster 4, 1, 1"
    )
    device = Device()
    out = device.alloc(32)
    device.launch(Module.from_text(text), grid=8, arguments=[out])
    assert device.download(out, np.uint32, 8).tolist() == [4] * 8


def test_write_and_memset_reach_a_part_of_a_buffer():
    device = Device()
    buffer = device.alloc(16, "buffer")
    device.memset(buffer, 0xAB, 8)
    device.write(buffer + 4, np.array([1, 2], np.uint16))
    assert device.download(buffer, np.uint8, 8).tolist() == [0xAB] * 4 + [1, 0, 2, 0]
    with pytest.raises(Fault, match="never written"):
        device.download(buffer, np.uint8, 9)
    with pytest.raises(Fault, match="outside every allocation"):
        device.write(buffer + 12, np.zeros(2, np.uint32))
    with pytest.raises(LaunchError, match="memset 256: a byte is 0 to 255"):
        device.memset(buffer, 256, 1)


# ---- element types smaller than a byte ----


def load_small(tmap_of, x: int, nbytes: int) -> np.ndarray:
    """8 rows of 128 bytes of shared memory, after a load at coordinates (x, 8) that signals so many bytes."""
    text = LOAD_A_BOX.format(parameters=PARAMETERS, address=POINTER).replace("{0, 8}", f"{{{x}, 8}}")
    module = Module.from_text(text.replace("[%r2], 1024;", f"[%r2], {nbytes};"))
    device = Device()
    out = device.alloc(1024)
    pointer = device.upload_tensor_map(tmap_of(device))
    device.launch(module, grid=1, arguments=[out, 1, None, pointer])
    return device.download(out, np.uint8, (8, 128))


BYTES = np.random.default_rng(5).integers(0, 256, (32, 384), dtype=np.uint8)


def test_four_bits_packed_are_copied_as_bytes():
    """256 elements are the 128 bytes of a box's row; x counts elements."""
    for x in (0, 64, -32, 512):
        loaded = load_small(lambda d: TensorMap.tiled(d.upload(BYTES), "b4x16", (32, 768), (8, 256)), x, 1024)
        wide = np.pad(BYTES[8:16], ((0, 0), (16, 128)))
        assert np.array_equal(loaded, wide[:, 16 + x // 2 : 16 + x // 2 + 128])


@pytest.mark.parametrize(("name", "unit"), [("b4x16_p64", 8), ("b6x16_p32", 12)])
def test_padded_types_leave_room_behind_16_elements(name, unit):
    """128 elements are 8 units, each of which takes 16 bytes of shared memory and signals only its own."""
    columns = 384 // unit * 16
    for x in (0, 128):
        loaded = load_small(lambda d: TensorMap.tiled(d.upload(BYTES), name, (32, columns), (8, 128)), x, 64 * unit)
        first = x // 16 * unit
        units = BYTES[8:16, first : first + 8 * unit].reshape(8, 8, unit)
        assert np.array_equal(loaded.reshape(8, 8, 16)[:, :, :unit], units)
    with pytest.raises(Fault, match=f"coordinate 64 of {name} is not a multiple of 128"):
        load_small(lambda d: TensorMap.tiled(d.upload(BYTES), name, (32, columns), (8, 128)), 64, 64 * unit)


@pytest.mark.parametrize(
    ("name", "shape", "box", "more", "message"),
    [
        ("b4x16", (63,), (32,), {}, r"dims\[0\] = 63: must be a multiple of 2 for b4x16"),
        ("b4x16", (32, 64), (8, 16), {}, r"box\[0\] = 8 x 1 bytes = 8 bytes: must be a multiple of 16 bytes"),
        ("b4x16_p64", (32, 192), (8, 128), {}, r"dims\[0\] = 192: must be a multiple of 128"),
        ("b6x16_p32", (32, 256), (8, 64), {}, r"box\[0\] = 64: must be 128 for b6x16_p32"),
        ("b6x16_p32", (32, 256), (8, 128), {"swizzle": "64B"}, "swizzle = B64: must be none or 128B"),
        ("b4x16", (32, 64), (8, 32), {"fill_nan": True}, "b4x16 is no float type"),
        ("e4m3", (32, 64), (8, 8), {}, r"box\[0\] = 8 x 1 bytes"),
    ],
)
def test_what_the_driver_refuses_of_small_types(name, shape, box, more, message):
    with pytest.raises(ValueError, match=message):
        TensorMap.tiled(4096, name, shape, box, **more)


def test_a_launch_file_makes_maps_over_small_types(tmp_path):
    text = LOAD_A_BOX.format(parameters=PARAMETERS, address=POINTER)
    (tmp_path / "load.ptx").write_text(text)
    for dtype, columns in (("e2m1", 256), ("e4m3", 128), ("ue8m0", 128), ("tf32", 32), ("s8", 128)):
        (tmp_path / "launch.toml").write_text(
            f'ptx = "load.ptx"\n[buffers]\nX = {{ dtype = "{dtype}", shape = [32, {columns}], init = "normal" }}\n'
            f'Y = {{ dtype = "{dtype}", shape = [8, {columns}], init = 1 }}\n'
            f'[maps]\nx = {{ buffer = "X", tile = [8, {columns}] }}\n'
            '[launch]\ngrid = 1\narguments = ["Y", 1, "null", "x"]\n[expect]\nY = { value = "X[8:16]", exact = true }\n'
        )
        assert run(read_launch_file(tmp_path / "launch.toml")).passed, dtype


# ---- the first values of buffers ----

LARGE = (1500, 1432)
"""More elements than are drawn at a time."""


@pytest.mark.parametrize(
    ("dtype", "kind", "drawn"),
    [
        ("f32", "integer", lambda rng: rng.integers(-4, 5, LARGE)),
        ("s8", "integer", lambda rng: rng.integers(-4, 5, LARGE)),
        ("u64", "integer", lambda rng: rng.integers(0, 9, LARGE)),
        ("f16", "normal", lambda rng: rng.standard_normal(LARGE, np.float32)),
        ("f32", "uniform", lambda rng: 2 * rng.random(LARGE, np.float32) - 1),
        ("u8", "uniform", lambda rng: rng.integers(0, 255, LARGE, np.uint8, endpoint=True)),
        ("s16", "index", lambda rng: np.arange(LARGE[0] * LARGE[1]).reshape(LARGE)),
        ("bf16", "index", lambda rng: index_operand(*LARGE, rng)),
    ],
)
def test_values_that_are_drawn_in_pieces_are_those_that_are_drawn_at_once(dtype, kind, drawn):
    made = make_values(Fill(kind, seed=7), DATA_TYPES[dtype], LARGE, number=3)
    assert made.size > 2 * PIECE
    np.testing.assert_array_equal(made, drawn(np.random.default_rng((7, 3))).astype(DATA_TYPES[dtype].numpy))


@pytest.mark.parametrize("kind", ["integer", "index", "normal", "uniform", "zeros"])
@pytest.mark.parametrize("dtype", ["f32", "s32"])
def test_values_take_little_more_memory_than_their_buffer(dtype, kind):
    tracemalloc.start()
    try:
        made = make_values(Fill(kind), DATA_TYPES[dtype], (1 << 15, 1 << 9), number=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * made.nbytes


@pytest.mark.parametrize(
    ("dtype", "expected", "got", "wrong"),
    [
        ("s32", [np.nan, np.inf, -np.inf, 4.0], [0, 0, 0, 4], 3),
        ("u8", [np.nan, 255.0], [0, 255], 1),
        ("s32", [2.0**32 + 1, -1.0, 7.0, -0.5], [1, -1, 7, 0], 0),  # sums wrap around
        ("u64", [3 * 2.0**62, -1.0, 17 * 2.0**60], [3 << 62, (1 << 64) - 1, 1 << 60], 0),
        ("s64", [2.0**63, -(2.0**63) - 2**12], [-(1 << 63), (1 << 63) - (1 << 12)], 0),
        ("u8", np.array([(1 << 64) - 1], np.uint64), [255], 0),
        ("s32", [True, False], [1, 0], 0),
    ],
)
def test_no_whole_number_meets_an_expectation_that_is_none(dtype, expected, got, wrong):
    kind = DATA_TYPES[dtype]
    compared = compare("out", "x", np.array(got, kind.numpy), np.array(expected), kind)
    assert compared.mismatches == wrong


@pytest.mark.parametrize(("got", "wrong"), [([np.inf, -np.inf, 5.0], 0), ([-np.inf, 5.0, np.inf], 3)])
def test_a_tolerance_is_none_of_an_infinity(got, wrong):
    """A part of infinity is infinite: any value was within it."""
    kind = DATA_TYPES["f32"]
    values = np.array(got, kind.numpy)
    assert compare("out", "x", values, np.array([np.inf, -np.inf, 5.0]), kind, (0.0, 1e-2)).mismatches == wrong
