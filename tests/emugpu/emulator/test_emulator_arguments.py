"""How arguments are laid out in the parameter block, and the exact limits of a launch."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import source

from emugpu.emulator import Device, LaunchError, Module, TensorMap

COPY = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 out, .param .u8 a, .param .u32 b, .param .u16 c, .param .f64 d, .param .f32 e,
    .param .align 8 .b8 f[12], .param .s32 g, .param .align 64 .b8 map[128], .param .u8 last)
{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<8>;
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
setp.ge.u32 %p1, %r0, 56; @%p1 bra END;
mov.b64 %d1, a;
cvt.u64.u32 %d2, %r0; add.s64 %d3, %d1, %d2;
ld.param.b8 %r1, [%d3];
add.s64 %d4, %d0, %d2;
st.global.b8 [%d4], %r1;
END: ret;
}
"""
"""Copies the 56 bytes from ``a``, at offset 8."""


def copied(*arguments) -> bytes:
    device = Device()
    out = device.alloc(64)
    device.launch(Module.from_text(COPY), grid=1, block=64, arguments=[out, *arguments, bytes(128), 1])
    return device.download(out, np.uint8, 56).tobytes()


def test_parameters_lie_at_multiples_of_their_sizes_little_endian():
    """Offsets from ``a``: b at 4, c at 8, d at 16, e at 24, f at 32 (aligned to 8), g at 44."""
    block = copied(200, 0x01020304, 0x0506, 1.5, 2.5, bytes(range(12)), -2)
    expected = bytearray(56)
    expected[0] = 200
    expected[4:8] = bytes([4, 3, 2, 1])
    expected[8:10] = bytes([6, 5])
    expected[16:24] = np.float64(1.5).tobytes()
    expected[24:28] = np.float32(2.5).tobytes()
    expected[32:44] = bytes(range(12))
    expected[44:48] = b"\xfe\xff\xff\xff"
    assert block == bytes(expected)


def test_a_number_above_the_largest_float_is_refused():
    arguments = [1, 2, 3, 1.5, 3.4028235e38, bytes(12), 4]
    assert copied(*arguments)[24:28] == np.finfo(np.float32).max.tobytes()
    for large in (1e39, -1e39, 10**400):
        arguments[4] = large
        with pytest.raises(LaunchError, match="is too large for 'e'"):
            copied(*arguments)
    arguments[4] = float("-inf")
    assert copied(*arguments)[24:28] == np.float32("-inf").tobytes()


def test_numpy_scalars_and_negative_numbers_keep_their_bits():
    block = copied(-128, np.float32(1.0), np.int16(-3), np.int64(-1), np.uint32(7), bytearray(12), np.int32(9))
    assert block[0] == 0x80 and block[4:8] == np.float32(1.0).tobytes() and block[8:10] == b"\xfd\xff"
    assert block[16:24] == b"\xff" * 8 and block[24:28] == bytes([7, 0, 0, 0]) and block[44:48] == bytes([9, 0, 0, 0])


def test_a_whole_number_for_a_float_is_that_number():
    block = copied(0, 0, 0, 3, -2, bytes(12), 0)
    assert block[16:24] == np.float64(3).tobytes() and block[24:28] == np.float32(-2).tobytes()


GOOD = [0, 0, 0, 0.0, 0.0, bytes(12), 0]


@pytest.mark.parametrize(("position", "least", "most"), [(0, -128, 255), (2, -(1 << 15), (1 << 16) - 1)])
def test_integers_must_fit_as_signed_or_unsigned(position, least, most):
    for value in (least, most):
        copied(*GOOD[:position], value, *GOOD[position + 1 :])
    for value in (least - 1, most + 1):
        with pytest.raises(LaunchError, match=rf"argument {position + 1} = {value} does not fit"):
            copied(*GOOD[:position], value, *GOOD[position + 1 :])


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 1.0, r"argument 1 = 1.0: 'a' is an integer \(.u8\); give a whole number"),
        (1, 2.5, r"argument 2 = 2.5: 'b' is an integer \(.u32\); give a whole number"),
        (6, -1.0, r"argument 7 = -1.0: 'g' is an integer \(.s32\)"),
        (1, np.int64(1), "argument 2 has 8 bytes; parameter 'b' has 4"),
        (3, b"1234", "argument 4 has 4 bytes; parameter 'd' has 8"),
        (5, 1, "argument 6 must be a TensorMap or 12 bytes"),
        (5, bytes(11), "argument 6 has 11 bytes; parameter 'f' has 12"),
        (6, "1", "argument 7 has type str"),
        (5, TensorMap.tiled(256, "u8", (32, 32), (8, 16)), "argument 6 is a tensor map, but parameter 'f' is 12 bytes"),
    ],
)
def test_arguments_of_other_sizes_and_types_are_refused(position, value, message):
    with pytest.raises(LaunchError, match=message):
        copied(*GOOD[:position], value, *GOOD[position + 1 :])


@pytest.mark.parametrize(("align", "size", "fits"), [(64, 128, True), (32, 128, False), (64, 64, False)])
def test_a_tensor_map_needs_128_bytes_aligned_to_64(align, size, fits):
    text = source("ret;").replace("(.param .u64 out", f"(.param .u64 out, .param .align {align} .b8 map[{size}]")
    device = Device()
    arguments = [device.alloc(4), TensorMap.tiled(256, "u8", (32, 32), (8, 16))]
    if fits:
        device.launch(Module.from_text(text), grid=1, block=32, arguments=arguments)
        return
    with pytest.raises(LaunchError, match=rf"is {size} bytes aligned to {align}"):
        device.launch(Module.from_text(text), grid=1, block=32, arguments=arguments)


def start(directives: str = "", **shape) -> None:
    device = Device()
    module = Module.from_text(source("ret;", ".shared .align 16 .b8 words[1024];", directives))
    named = Module.from_text(source("mov.b32 %r1, words; ret;", ".shared .align 16 .b8 words[1024];", directives))
    chosen = named if "dynamic_smem" in shape else module
    device.launch(chosen, arguments=[device.alloc(4)], **({"grid": 1, "block": 32} | shape))


@pytest.mark.parametrize(
    ("directives", "good", "bad", "message"),
    [
        ("", {"block": 1024}, {"block": 1025}, "1025 threads; the limit is 1024"),
        ("", {"block": (16, 8, 8)}, {"block": (17, 8, 8)}, "1088 threads; the limit is 1024"),
        (".maxntid 64", {"block": 64}, {"block": 65}, "65 threads; kernel 'kernel' says .maxntid 64"),
        (".maxntid 64", {"block": 1}, {"block": (8, 3, 3)}, "72 threads"),
        (".maxntid 8, 4, 2", {"block": (2, 32)}, {"block": 96}, "96 threads; kernel 'kernel' says .maxntid 64"),
        (".reqntid 64", {"block": 64}, {"block": 63}, "63 threads; kernel 'kernel' says .reqntid 64"),
        (".reqntid 64", {"block": 64}, {"block": 65}, "65 threads"),
        ("", {"grid": 16, "cluster": 16}, {"grid": 17, "cluster": 17}, "has 17 CTAs; the limit is 16"),
        ("", {"grid": (4, 2, 2), "cluster": (4, 2, 2)}, {"grid": (4, 4, 2), "cluster": (4, 4, 2)}, "has 32 CTAs"),
        ("", {"grid": (2, 4), "cluster": (1, 2)}, {"grid": (2, 3), "cluster": (1, 2)}, "grid.y = 3"),
        ("", {"grid": (1, 1, 4), "cluster": (1, 1, 2)}, {"grid": (1, 1, 3), "cluster": (1, 1, 2)}, "grid.z = 3"),
        ("", {"grid": (1, 1, 1)}, {"grid": (1, 1, 1, 1)}, "give 1 to 3 sizes"),
        ("", {"block": 1}, {"block": (1, 0)}, "at least 1"),
        ("", {"grid": (2.0, 1)}, {"grid": (1.5, 1)}, "at least 1"),
        ("", {"dynamic_smem": 226 * 1024}, {"dynamic_smem": 226 * 1024 + 1}, "232449 bytes .* limit of 232448"),
        (".reqnctapercluster 2", {"grid": 2, "cluster": 2}, {"grid": 2, "cluster": (1, 2)}, "compiled for cluster"),
        ("", {"workers": 1}, {"workers": 0}, "workers 0: must be above 0"),
        ("", {"max_steps": 5}, {"timeout": 0}, "timeout 0: must be above 0"),
        ("", {"max_steps": 5}, {"max_steps": -1}, "max_steps -1: must be above 0"),
        ("", {"limit": 60}, {"limit": 0}, "limit 0: must be above 0"),
        ("", {"resident_clusters": 1}, {"resident_clusters": 0}, "must be at least 1"),
        ("", {"allow": ["peer-exited"]}, {"allow": ["nothing"]}, "allow 'nothing': no such rule"),
    ],
)
def test_the_last_launch_that_fits_and_the_first_that_does_not(directives, good, bad, message):
    start(directives, **good)
    with pytest.raises(LaunchError, match=message):
        start(directives, **bad)


def test_a_cta_of_consumer_blackwell_has_99_kb_of_shared_memory():
    device, module = Device(), Module.from_text(source("ret;", target="sm_120a"))
    launch = {"grid": 1, "block": 32, "arguments": [device.alloc(4)]}
    device.launch(module, dynamic_smem=99 * 1024, **launch)
    with pytest.raises(LaunchError, match=r"101377 bytes .* limit of 101376"):
        device.launch(module, dynamic_smem=99 * 1024 + 1, **launch)


def test_the_entry_may_be_left_out_if_there_is_one_only():
    two = Module.from_text(
        source("ret;") + source("ret;").split(".address_size 64")[1].replace("entry kernel", "entry b")
    )
    assert two.entries == ("kernel", "b")
    device = Device()
    with pytest.raises(LaunchError, match=r"kernel.*b.*name one"):
        device.launch(two, grid=1, block=32, arguments=[device.alloc(4)])
    device.launch(two, "b", grid=1, block=32, arguments=[device.alloc(4)])
