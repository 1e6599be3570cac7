"""What buffers and their comparison take of this machine's memory, and the refusal of what it cannot hold."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from ptx_programs import source

from emugpu.emulator.memory.global_memory import Allocation
from emugpu.errors import CannotRun
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import run
from emugpu.launch.memory import COMPARING, host_bytes


def test_buffers_that_this_machine_cannot_hold_are_refused_before_they_are_drawn(tmp_path, monkeypatch):
    (tmp_path / "kernel.ptx").write_text(source("ret;", parameters=["u64 large"]))
    path = tmp_path / "launch.toml"
    path.write_text(
        'ptx = "kernel.ptx"\nlaunch = { grid = 1, block = 32, arguments = ["small", "large"] }\n[buffers]\n'
        'small = { dtype = "f32", shape = 64, init = "integer" }\n'
        'large = { dtype = "f32", shape = [400000000], init = "integer" }\n'
    )
    monkeypatch.setattr("emugpu.launch.memory.free_bytes", lambda: 2 << 30)
    with pytest.raises(CannotRun) as error:
        run(read_launch_file(path))
    assert str(error.value) == (
        f"{path}: buffers.large: the buffers need 3.0 GiB of this machine's memory, and 1.8 GiB are free; make them "
        "smaller"
    )
    path.write_text(path.read_text().replace('[400000000], init = "integer"', '[400000000], init = "uninitialised"'))
    monkeypatch.setattr("emugpu.launch.memory.free_bytes", lambda: 0)  # while others take it all for a moment
    assert run(read_launch_file(path), keep=()).passed


def test_a_large_launch_does_not_wait_for_the_memory_of_the_one_before(tmp_path, monkeypatch):
    (tmp_path / "kernel.ptx").write_text(source("ret;", parameters=["u64 b"]))
    path = tmp_path / "launch.toml"
    path.write_text(MEMORY_LAUNCH.format(dtype="f32", size=64, init='"integer"', more=""))
    monkeypatch.setattr("emugpu.launch.memory.LARGE", 4 * 4 * 64 - 1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            run(read_launch_file(path))
        held = [each for each in gc.get_objects() if isinstance(each, Allocation) and each.name in ("a", "b")]
    finally:
        gc.enable()
    assert len(held) <= 2


MEMORY_LAUNCH = """ptx = "kernel.ptx"
launch = {{ grid = 1, block = 32, arguments = ["a", "b"] }}
[buffers]
a = {{ dtype = "{dtype}", shape = {size}, init = {init} }}
b = {{ dtype = "{dtype}", shape = {size}, init = "integer" }}
{more}
"""


def test_a_comparison_counts_for_a_buffer_that_has_the_shape_of_its_file(tmp_path):
    (tmp_path / "kernel.ptx").write_text(source("ret;", parameters=["u64 b"]))
    np.save(tmp_path / "a.npy", np.ones((20, 50), np.float64))
    text = MEMORY_LAUNCH.format(
        dtype="f32", size=1000, init='"a.npy"', more="[expect]\na = { value = 'a', absolute = 1 }"
    )
    counted = []
    for number, shape in enumerate(("shape = [20, 50], ", "")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text.replace("shape = 1000, ", shape, 1))
        counted.append(host_bytes(read_launch_file(path)))
    assert counted[0] == counted[1] > 40 * 1000


def test_elements_that_are_not_compared_do_not_count(tmp_path):
    """Of a workspace only the counters at its start are compared."""
    (tmp_path / "kernel.ptx").write_text(source("ret;", parameters=["u64 b"]))
    path = tmp_path / "launch.toml"
    path.write_text(MEMORY_LAUNCH.format(dtype="u32", size=1000, init="0", more="[expect]\na = '0'"))
    what = read_launch_file(path)
    [all_of_it] = what.expectations
    fewer = replace(what, expectations=(replace(all_of_it, size=10),))
    assert host_bytes(what) - host_bytes(fewer) == COMPARING * (1000 - 10)


MEASURE = """
import re, sys
from pathlib import Path
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import run

path = Path(sys.argv[1])
run(read_launch_file(path.with_name("small.toml")), keep=())
kilobytes = lambda name: int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = kilobytes("VmRSS")
run(read_launch_file(path), keep=())
print((kilobytes("VmHWM") - before) << 10)  # getrusage counts the process that started this one, too
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "init", "more"),
    [
        ("f32", '"integer"', "[expect]\na = { value = 'a', absolute = 0.5 }"),
        ("u64", '"uniform"', "[expect]\na = 'a'"),
        ("e4m3", '"normal"', "[expect]\na = { value = 'a + b', absolute = 1 }"),
        ("e3m2", '"integer"', "[expect]\na = 'a'"),
        ("f32", '"a.npy"', ""),
    ],
)
def test_the_memory_that_buffers_need_is_what_they_take(tmp_path, dtype, init, more):
    """A run takes no more than what is counted, and not much less."""
    (tmp_path / "kernel.ptx").write_text(source("ret;", parameters=["u64 b"]))
    for name, size in (("small.toml", 1 << 14), ("launch.toml", 1 << 24)):
        np.save(tmp_path / f"{size}.npy", np.ones(size, np.float32))
        filled = init.replace("a.npy", f"{size}.npy")
        (tmp_path / name).write_text(MEMORY_LAUNCH.format(dtype=dtype, size=size, init=filled, more=more))
    words = [sys.executable, "-c", MEASURE, str(tmp_path / "launch.toml")]
    used = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    counted = host_bytes(read_launch_file(tmp_path / "launch.toml"))
    assert 0.7 * counted < used < 1.05 * counted + (64 << 20)
