"""The driver API as a table: what it says agrees with itself, with CUDA's header, and with what answers the calls."""

from __future__ import annotations

import inspect
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from emugpu.driver import session  # noqa: F401  the handlers register themselves
from emugpu.driver.api import HANDLERS, OF_TENSORS, OWN, functions
from emugpu.driver.library import SOURCES, header, runtime_stubs, stubs
from emugpu.driver.protocol import BadMessage, decode, encode_reply

BY_NAME = {function.name: function for function in functions()}
HEADER = Path("/usr/local/cuda-13.0/include/cuda.h")


def test_every_function_is_answered_with_as_much_as_it_is_given():
    asked = {function.name: function for function in functions() if function.is_asked}
    assert set(HANDLERS) == set(asked)
    for name, function in asked.items():
        inputs = [p for p in function.parameters if p.kind != "out"]
        takes = inspect.signature(HANDLERS[name])
        takes.bind(None, *inputs)  # TypeError if it does not take them


@pytest.mark.skipif(not HEADER.exists(), reason="needs cuda.h of CUDA 13.0")
def test_functions_have_as_many_parameters_as_in_the_header_and_none_is_missing():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    declared = re.findall(r"^CUresult CUDAAPI (\w+)\s*\((.*?)\);", text, re.M | re.S)
    renamed = dict(re.findall(r"#define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu\w+)\)?", text))
    bases = {function.base for function in functions()}
    compared = 0
    for name, parameters in declared:
        assert re.sub(r"_v\d+$", "", name) in bases, name
        function = BY_NAME.get(renamed.get(name, name))
        if function is not None and function.disposition != "refused":
            count = 0 if parameters.strip() in ("", "void") else parameters.count(",") + 1
            given = [p for p in function.parameters if p.kind != "image"]
            images = len(function.parameters) - len(given)
            assert len(given) + images == count, name
            compared += 1
    assert compared > 150


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_sources_compile_without_a_warning(compiler, tmp_path):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    (tmp_path / "stubs.h").write_text(header())
    (tmp_path / "stubs.c").write_text(stubs())
    (tmp_path / "cudart_stubs.c").write_text(runtime_stubs())
    sources = [*tmp_path.glob("*.c"), *SOURCES.glob("*.c")]
    flags = ["-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", f"-I{tmp_path}"]
    done = subprocess.run([compiler, *flags, *map(str, sources)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_call_is_read_as_it_was_written():
    function = BY_NAME["cuModuleGetFunction"]
    payload = struct.pack("=QQQ", 8, 0x1000, 3) + b"add"
    request = decode(function, payload)
    assert (request.inputs, request.room) == ((0x1000, "add"), (8,))
    assert encode_reply(request, 0, (0x2000,)) == struct.pack("=iIIIQQ", 0, 0, 16, 0, 8, 0x2000)
    signed = decode(BY_NAME["cuDeviceGetAttribute"], struct.pack("=QqQ", 4, -3, 0))
    assert signed.inputs == (-3, 0)


@pytest.mark.parametrize(
    "name, payload",
    [
        ("cuModuleGetFunction", b""),
        ("cuModuleGetFunction", struct.pack("=QQQ", 8, 0, 1 << 40) + b"add"),
        ("cuMemAlloc_v2", struct.pack("=Q", 8) + b"123"),
        ("cuLaunchKernel", b""),
    ],
)
def test_messages_that_are_none_are_refused(name, payload):
    with pytest.raises(BadMessage, match=name):
        decode(BY_NAME[name], payload)


def test_only_the_functions_for_tensors_are_exported_of_the_librarys_own():
    lines = header().splitlines()
    exported = [line for line in lines if line.startswith("API") and f" {OWN}" in line]
    assert exported and all(f" {OF_TENSORS}" in line for line in exported)
    assert [line for line in lines if line.startswith(f"Result {OWN}Launch(")]
