"""The driver's calls for tensor maps, against what the driver of an H200 returned and wrote."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from emugpu.driver import tensor_map_calls as calls
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log
from emugpu.driver.results import CODES, DriverError
from emugpu.emulator.memory.tensor_map_bytes import decode

RECORDED = json.loads((Path(__file__).parents[2] / "data/hardware/h200_tensor_maps.json").read_text())
PACKING = {"dims": "Q", "strides": "Q", "box": "I", "lower": "i", "upper": "i", "element_strides": "I"}
ORDER = {
    "cuTensorMapEncodeTiled": "type rank address dims strides box element_strides interleave swizzle l2_promotion fill",
    "cuTensorMapEncodeIm2col": "type rank address dims strides lower upper channels pixels element_strides interleave "
    "swizzle l2_promotion fill",
}
CALLS = {"cuTensorMapEncodeTiled": calls.encode_tiled, "cuTensorMapEncodeIm2col": calls.encode_im2col}


def session(gpu):
    return SimpleNamespace(gpu=SimpleNamespace(model=gpu_model(gpu), log=Log(quiet=True)))


def ask(gpu, arguments):
    """The code and the bytes that the emulated driver has for a map of the probe."""
    given = {**arguments, "rank": len(arguments["dims"])}
    values = []
    for name in ORDER[arguments["call"]].split():
        value = given[name]
        if name in PACKING:
            value = struct.pack(f"={len(value)}{PACKING[name]}", *value)
        values.append(value)
    try:
        return 0, CALLS[arguments["call"]](session(gpu), *values)
    except DriverError as error:
        return CODES[error.name], b""


def test_every_map_is_made_or_refused_as_on_the_h200():
    checked = refused = 0
    for entry in RECORDED["maps"]:
        arguments = entry["arguments"]
        if arguments["call"] not in CALLS:
            continue  # im2col wide, which only newer GPUs have
        code, data = ask("h200", arguments)
        assert code == entry["result"], arguments
        assert code or data.hex() == entry["bytes"], arguments
        checked += 1
        refused += code != 0
    assert checked > 650 and refused > 100


def test_addresses_are_replaced_as_on_the_h200():
    before = bytes.fromhex(RECORDED["replaced_map"]["bytes"])
    for address, code, after in RECORDED["addresses"]:
        if code:
            with pytest.raises(DriverError):
                calls.replace_address(session("h200"), before, address)
        else:
            assert calls.replace_address(session("h200"), before, address).hex() == after


def test_types_of_newer_gpus():
    maps = {entry["arguments"]["name"]: entry["arguments"] for entry in RECORDED["maps"]}
    for number, name in ((13, "b4x16"), (14, "b4x16_p64"), (15, "b6x16_p32")):
        arguments = maps[f"type {number}"]
        assert ask("h200", arguments)[0] == CODES["INVALID_VALUE"]
        code, data = ask("b200", arguments)
        assert code == 0
        assert decode(data).element.name == name
    assert ask("b200", maps["swizzle 5"])[0] == CODES["NOT_SUPPORTED"]
    assert ask("b200", maps["swizzle 7"])[0] == CODES["INVALID_VALUE"]
