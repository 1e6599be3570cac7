"""Kernels compile to PTX that ptxas accepts; configurations that break a rule do not compile."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kernels_support import ask, compile_driver

CONFIGS = {
    "kernel5 pair": '"kernel5", cluster_m=4, cluster_n=4',
    "kernel5 one CTA": '"kernel5", cta_group=1, mma_m=128, cluster_m=4, cluster_n=4',
    "kernel6 pair": '"kernel6", cluster_m=4, cluster_n=4',
    "kernel6 uneven slices": '"kernel6", cluster_m=6, cluster_n=2, dtype=DType.float16',
    "kernel6 M=128 pair": '"kernel6", mma_m=128, multicast=False',
    "kernel7": '"kernel7", cluster_m=2, cluster_n=2',
    "kernel7 M=64": '"kernel7", cta_group=1, mma_m=64, mma_n=128, epilogue_width=16',
    "kernel5 Hopper": '"kernel5", arch="sm_90a"',
    "kernel6 Hopper": '"kernel6", arch="sm_90a", cluster_m=1, cluster_n=2, dtype=DType.float16',
    "kernel7 Hopper": '"kernel7", arch="sm_90a"',
    "kernel7 Hopper M=256": '"kernel7", arch="sm_90a", mma_m=256, mma_n=128',
    "kernel6 Hopper M=64": '"kernel6", arch="sm_90a", mma_m=64, mma_n=192',
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    done = compile_driver(folder, list(CONFIGS.values()))
    assert done.returncode == 0, done.stderr
    return folder / "driver"


@pytest.mark.parametrize("index", range(len(CONFIGS)), ids=list(CONFIGS))
def test_ptx_and_plan_describe_the_same_kernel(driver: Path, index: int) -> None:
    ptx = ask(driver, "ptx", index).stdout
    plan = json.loads(ask(driver, "plan", index, 500, 296, 584).stdout)
    assert re.findall(r"\.visible \.entry (\w+)\(", ptx) == [plan["entry"]]
    assert plan["config"]["label"] in plan["entry"]
    assert f".target {plan['arch']}" in ptx
    assert f".maxntid {plan['block'][0]}" in ptx
    assert ".reqnctapercluster {}, {}, {}".format(*plan["cluster"]) in ptx
    # Tensor maps by value, aligned for TMA to read them in place.
    maps = re.findall(r"\.param \.align 64 \.b8 \w+\[128\]", ptx)
    assert len(maps) == 3 == [argument["kind"] for argument in plan["arguments"]].count("tensor_map")
    if plan["arch"] == "sm_100a":
        group = f"cta_group::{plan['config']['cta_group']}"
        assert set(re.findall(r"tcgen05\.\w+\.(cta_group::\d)", ptx)) == {group}
    else:
        assert "tcgen05" not in ptx and plan["tmem_columns"] == 0
        columns = plan["config"]["mma_shape"][1]
        assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+)k16", ptx)) == {f"m64n{columns}"}
    shared = any(cta[name].bit_count() > 1 for cta in plan["multicast"] for name in "ab")
    assert ("complete_tx::bytes.multicast::cluster" in ptx) == shared


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@pytest.mark.parametrize("index", range(len(CONFIGS)), ids=list(CONFIGS))
def test_ptxas_accepts_it_without_spills(driver: Path, index: int, tmp_path: Path) -> None:
    source = tmp_path / "kernel.ptx"
    source.write_text(ask(driver, "ptx", index).stdout)
    arch = re.search(r"\.target (\w+)", source.read_text())[1]
    command = ["ptxas", f"-arch={arch}", "-v", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    assert "warning" not in done.stderr.lower()
    # ptxas says so where it ignores setmaxnreg, or waits for wgmma earlier than the kernel does.
    assert "performance loss" not in done.stderr.lower() and "warpgroup.wait" not in done.stderr


def test_list_names_every_configuration(driver: Path) -> None:
    lines = [line.split() for line in ask(driver, "list").stdout.splitlines()]
    assert [(int(index), kernel) for index, kernel, _ in lines] == [
        (i, name.split()[0]) for i, name in enumerate(CONFIGS)
    ]
    assert len({entry for _, _, entry in lines}) == len(CONFIGS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: list | ptx INDEX | plan INDEX M N K"),
        (("ptx",), "usage:"),
        (("plan", 0, 8, 8), "usage:"),
        (("ptx", 99), "configuration 99 does not exist"),
        (("plan", 0, "8x", 8, 8), "'8x' is not a whole number"),
        (("plan", 0, 8, 8, 9), "K 9 is not a multiple of 8"),
    ],
)
def test_bad_arguments_are_one_line(driver: Path, arguments: tuple, message: str) -> None:
    done = ask(driver, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_too_much_shared_memory_is_a_compile_error_that_shows_the_sum(tmp_path: Path) -> None:
    done = compile_driver(tmp_path, ['"kernel6", stages=6'])
    assert done.returncode != 0
    assert (
        "A 6 x 16384 + B 6 x 16384 + C 65536 + barriers 112 = 262256 bytes > 232448: at most 5 stages fit"
        in done.stderr
    )
