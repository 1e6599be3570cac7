"""Kernels compile to PTX that ptxas accepts, and the programs say in one line what is wrong with their arguments."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from harness.compile.compiler import compiled, driver_source, require_mojo
from harness.compile.config import make_config
from harness.compile.planner import planner
from harness.paths import ROOT
from harness.problem import Shape

CONFIGS = {
    "kernel5 pair": make_config("kernel5", cluster=(4, 4)),
    "kernel5 one CTA": make_config("kernel5", cta_group=1, cluster=(4, 4)),
    "kernel6 pair": make_config("kernel6", cluster=(4, 4)),
    "kernel6 uneven slices": make_config("kernel6", cluster=(6, 2), dtype="fp16"),
    "kernel6 M=128 pair": make_config("kernel6", cluster=(2, 1), mma_shape=(128, 256), multicast=False),
    "kernel7": make_config("kernel7", cluster=(2, 2)),
    "kernel7 M=64": make_config("kernel7", cluster=(2, 1), cta_group=1, mma_shape=(64, 128), epilogue_width=16),
    "kernel5 Hopper": make_config("kernel5", arch="sm_90a"),
    "kernel6 Hopper": make_config("kernel6", arch="sm_90a", cluster=(1, 2), dtype="fp16"),
    "kernel7 Hopper": make_config("kernel7", arch="sm_90a"),
    "kernel7 Hopper M=256": make_config("kernel7", arch="sm_90a", mma_shape=(256, 128)),
    "kernel8 static": make_config("kernel8", cluster=(2, 1), scheduler="static"),
    "kernel8 clc": make_config("kernel8", cluster=(4, 2), scheduler="clc", clc_depth=3),
    "kernel8 clc, one CTA": make_config("kernel8", cluster=(1, 1), cta_group=1, scheduler="clc", accumulators=1),
    "kernel8 Hopper": make_config("kernel8", arch="sm_90a"),
    "kernel8 Hopper N=256": make_config("kernel8", arch="sm_90a", mma_shape=(128, 256), epilogue_width=64),
    "kernel8 Hopper N=192": make_config("kernel8", arch="sm_90a", mma_shape=(128, 192)),
    "kernel6 Hopper M=64": make_config("kernel6", arch="sm_90a", mma_shape=(64, 192)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_ptx_and_plan_describe_the_same_kernel(built, name):
    ptx, plan = built[name].ptx, built[name].plan(Shape(500, 296, 584))
    assert re.findall(r"\.visible \.entry (\w+)\(", ptx) == [plan.entry]
    assert plan.config["label"] in plan.entry
    assert f".target {plan.arch}" in ptx
    assert f".maxntid {plan.block[0]}" in ptx
    assert ".reqnctapercluster {}, {}, {}".format(*plan.cluster) in ptx
    # Tensor maps by value, aligned for TMA to read them in place.
    maps = re.findall(r"\.param \.align 64 \.b8 \w+\[128\]", ptx)
    assert len(maps) == 3 == [hasattr(argument, "box") for argument in plan.arguments].count(True)
    if plan.arch == "sm_100a":
        group = f"cta_group::{plan.config['cta_group']}"
        assert set(re.findall(r"tcgen05\.\w+\.(cta_group::\d)", ptx)) == {group}
    else:
        assert "tcgen05" not in ptx and plan.tmem_columns == 0
        columns = plan.config["mma_shape"][1]
        assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+)k16", ptx)) == {f"m64n{columns}"}
    shared = any(mask.bit_count() > 1 for cta in plan.multicast for mask in (cta.a, cta.b))
    assert ("complete_tx::bytes.multicast::cluster" in ptx) == shared


def test_each_configuration_has_an_entry_of_its_own(built):
    entries = {artifact.plan(Shape(8, 8, 8)).entry for artifact in built.values()}
    assert len(entries) == len(CONFIGS)


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@pytest.mark.parametrize("name", CONFIGS)
def test_ptxas_accepts_it_without_spills(built, name, tmp_path):
    source = tmp_path / "kernel.ptx"
    source.write_text(built[name].ptx)
    command = ["ptxas", f"-arch={CONFIGS[name].arch}", "-v", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    assert "warning" not in done.stderr.lower()
    # ptxas says so where it ignores setmaxnreg, or waits for wgmma earlier than the kernel does.
    assert "performance loss" not in done.stderr.lower() and "warpgroup.wait" not in done.stderr


def ask(program, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: plan M N K"),
        ((8, 8), "usage: plan M N K"),
        (("8x", 8, 8), "'8x' is not a whole number"),
        ((8, 8, 9), "K 9 is not a multiple of 8"),
    ],
)
def test_bad_arguments_of_the_planner_are_one_line(arguments, message):
    done = ask(planner(ROOT), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_bad_arguments_of_a_program_with_ptx_are_one_line():
    with compiled(driver_source([CONFIGS["kernel5 one CTA"].options()]), ROOT) as program:
        for arguments, message in [
            ((), "usage: ptx INDEX"),
            (("ptx",), "usage: ptx INDEX"),
            (("plan", 0), "usage: ptx INDEX"),
            (("ptx", 9), "configuration 9 does not exist: there are 1"),
        ]:
            done = ask(program, *arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "said"),
    [('"x", b=7', '{"a": "x", "b": 7}'), ("1.5", "JSON is made of text, Word, Int, Bool, List[Int] and List[Json]")],
    ids=["text and a number", "a fraction"],
)
def test_what_is_not_json_does_not_compile(tmp_path, value, said):
    source = tmp_path / "json.mojo"
    source.write_text(f"from kernels.host.json import object\n\n\ndef main():\n    print(object(a={value}).text)\n")
    command = [require_mojo(), "run", "-I", str(ROOT), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert said in done.stdout + done.stderr and (done.returncode == 0) == said.startswith("{")
