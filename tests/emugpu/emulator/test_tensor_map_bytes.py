"""The 128 bytes of tensor maps, against what the driver of an H200 wrote for the same arguments."""

import json
from pathlib import Path

import pytest

from conformance import tensor_map_encoding as probe
from emugpu.emulator import Fault, Swizzle, TensorMap
from emugpu.emulator.memory.tensor_map_bytes import Fields, Im2colFields, decode, encode, is_tensor_map, replace

RECORDED = json.loads((Path(__file__).parents[2] / "data/hardware/h200_tensor_maps.json").read_text())
MAPS = {entry["arguments"]["name"]: entry for entry in RECORDED["maps"]}
MADE = {name: entry for name, entry in MAPS.items() if entry["result"] == 0}
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz")
"""As cuda.h numbers them."""


def fields_of(arguments) -> Fields:
    """What the driver was given."""
    given = {name: tuple(arguments[name]) for name in ("dims", "strides", "element_strides")}
    modes = {name: arguments[name] for name in ("address", "interleave", "swizzle", "l2_promotion")}
    im2col = None
    if "pixels" in arguments:
        im2col = Im2colFields(tuple(arguments["lower"]), tuple(arguments["upper"]), arguments["pixels"])
    return Fields(
        element=TYPES[arguments["type"]],
        box=(arguments["channels"],) if im2col else tuple(arguments["box"]),
        fill_nan=bool(arguments["fill"]),
        im2col=im2col,
        **given,
        **modes,
    )


def test_the_recording_is_of_the_probe_as_it_is():
    asked = [dict(arguments) for arguments in probe.maps()]
    assert [entry["arguments"] for entry in RECORDED["maps"]] == asked
    assert len(MADE) > 500
    assert len({entry["bytes"] for entry in MADE.values()}) > 400


def test_every_map_is_as_the_driver_writes_it():
    wide = [name for name in MADE if "mode" in MADE[name]["arguments"]]
    assert wide and all(name.startswith("im2col wide") for name in wide)
    for name, entry in MADE.items():
        if name in wide:
            continue
        fields = fields_of(entry["arguments"])
        assert fields.pack().hex() == entry["bytes"], name
        assert Fields.unpack(bytes.fromhex(entry["bytes"])) == fields, name


def test_maps_that_can_be_copied_with_survive_both_ways():
    """Through what the emulator makes of them, too, but for what it does not keep: types that differ in flushing."""
    checked = 0
    for name, entry in MADE.items():
        arguments, data = entry["arguments"], bytes.fromhex(entry["bytes"])
        if "mode" in arguments or arguments["interleave"] or arguments["type"] in (10, 12):
            continue
        try:
            tensor_map = decode(data)
        except Fault as fault:
            # What the driver lets through and the emulator refuses when it is used.
            assert arguments["address"] == 0 or "swizzle" in str(fault), (name, fault)
            continue
        assert encode(tensor_map, arguments["l2_promotion"]) == data, name
        checked += 1
    assert checked > 400


@pytest.mark.parametrize("number", range(len(RECORDED["replacements"])))
def test_replacements_change_the_bits_that_the_hardware_changes(number):
    one = RECORDED["replacements"][number]
    before = bytes.fromhex(RECORDED["replaced_map"]["bytes"])
    assert replace(before, one["field"], one["ordinal"] or 0, one["value"]).hex() == one["bytes"]


def test_what_is_no_map():
    data = bytearray.fromhex(MADE["rank 5"]["bytes"])
    assert is_tensor_map(bytes(data))
    assert is_tensor_map(bytes(data[:64]) + bytes(range(64)))  # what CuTe DSL leaves there
    for byte in (8, 31, 54, 60):
        damaged = bytearray(data)
        damaged[byte] |= 8
        assert not is_tensor_map(bytes(damaged)), byte
        with pytest.raises(Fault, match="not those of a tensor map"):
            decode(bytes(damaged))
    assert not is_tensor_map(bytes(128)) and not is_tensor_map(bytes(64))
    with pytest.raises(Fault, match="must not be null"):
        decode(bytes.fromhex(MADE["address 0x0"]["bytes"]))
    with pytest.raises(Fault, match="interleave 1 is not implemented"):
        decode(bytes.fromhex(MADE["interleave 1, rank 3, swizzle 0"]["bytes"]))


def test_atoms_of_32_bytes_are_told_from_those_of_16():
    """Bit 19 of word 1, as CuTe DSL sets it (beside bit 1); rows of 128 bytes change their places in fours."""
    tensor_map = TensorMap(0x1000, "f32", (64, 64), (256,), (32, 8), swizzle="128B_ATOM_32B")
    data = encode(tensor_map)
    assert data[8:12].hex() == "90630800"
    assert decode(data) == tensor_map
    assert [Swizzle.B128_ATOM_32B.apply(a) for a in (0, 128 + 16, 256 + 32, 384 + 96, 512)] == [0, 176, 352, 384, 512]
    with pytest.raises(Fault, match="swizzle 6 is not implemented"):
        decode(data[:10] + bytes([data[10] | 0x18]) + data[11:])
