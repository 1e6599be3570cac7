"""A kernel of one's own, in a file in any folder, gets what those of the series get."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from max_models import model_key

from emugpu.errors import CannotRun
from harness import paths
from harness.cli.main import main
from harness.compile.catalog import KERNELS
from harness.compile.compiler import driver_source, key_of, readable_errors
from harness.compile.config import KernelConfig, find_kernel, make_config
from harness.compile.own_kernel import Sources
from harness.experiments.job import made_by

EXAMPLE = paths.ROOT / "docs" / "examples" / "my_kernel.mojo"
WITH_BARRIER = EXAMPLE.with_name("my_barrier.mojo")
PRODUCT = ("--shape", "300,520,136", "-c", "cluster=2x2")
nightly_unless_what_runs_changed = pytest.mark.nightly_unless_changed(
    *("harness/compile/", "harness/epilogues.py", "harness/experiments/", "harness/cli/"),
    *("kernels/", "docs/examples/my_", "pyproject.toml"),
)


def refused(monkeypatch, folder: Path, *arguments: str) -> Result:
    """The command, in this process."""
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    return done


def harness(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HARNESS_RESULTS_DIR": str(folder / "results")}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@nightly_unless_what_runs_changed
def test_a_file_runs_as_a_kernel_of_the_series(tmp_path):
    text = EXAMPLE.read_text()
    mine = tmp_path / "mine.mojo"
    mine.write_text(text)
    done = harness(tmp_path, "compare", "kernel7", "mine.mojo", *PRODUCT, "--json", "-")
    assert done.returncode == 0, done.stderr
    seventh, own = json.loads(done.stdout)["kernels"]
    assert own["kernel"] == "my_kernel" and own["record"]["validation"]["exact"]
    assert own["figures"] == seventh["figures"]

    # What is edited is compiled anew: without its producer the MMA waits for ever.
    mine.write_text(text.replace("produce_tile(cta, problem, tiles.tile)", "pass"))
    hung = harness(tmp_path, "run", "mine.mojo", *PRODUCT, "--schedules", "2")
    assert hung.returncode == 3 and "waits" in hung.stderr + hung.stdout
    assert f"harness run {mine}" in hung.stderr + hung.stdout

    mine.write_text(text.replace("epilogue.leads()", "epilogue.lead()"))
    wrong = harness(tmp_path, "run", "mine.mojo", *PRODUCT)
    assert wrong.returncode == 3 and f"{mine}:" in wrong.stderr and "no attribute 'lead'" in wrong.stderr


@pytest.mark.parametrize("file", [EXAMPLE, WITH_BARRIER])
def test_an_example_of_one_architecture_names_the_option_that_chooses_it(file):
    assert f'"{file.stem} is written for sm_100a; give -c arch=sm_100a"' in file.read_text()


@pytest.mark.slow
@nightly_unless_what_runs_changed
def test_a_kernel_declares_a_barrier_and_a_buffer_in_its_own_file(tmp_path):
    text = WITH_BARRIER.read_text()
    mine = tmp_path / "mine.mojo"
    mine.write_text(text)
    how = (*PRODUCT, "--schedules", "3")
    clean = harness(tmp_path, "verify", "mine.mojo", *how)
    assert clean.returncode == 0 and clean.stdout.rstrip().endswith(": clean"), clean.stdout + clean.stderr

    told = harness(tmp_path, "explain", "mine.mojo", "-c", "cluster=2x2").stdout
    assert "factor ready x 1" in told and "the producer, after it has stored the factor" in told
    plan = json.loads(harness(tmp_path, "build", "mine.mojo", "-c", "cluster=2x2", "--emit", "plan").stdout)
    [ready] = [one for one in plan["barriers"] if one["name"] == "factor ready"]
    others = [one["offset"] + 8 * one["count"] for one in plan["barriers"] if one["name"] != "factor ready"]
    assert ready["offset"] >= max(others) and ready["offset"] + 8 <= plan["dynamic_smem"]

    wait = "        cta.barrier[KERNEL, READY]().wait(0)\n"
    assert wait in text
    mine.write_text(text.replace(wait, ""))
    wrong = harness(tmp_path, "verify", "mine.mojo", *how)
    assert wrong.returncode == 4, wrong.stdout + wrong.stderr
    race = r"factor of CTA (\d) \(4 bytes\): the read by ld does not wait for the write by st"
    found = re.findall(race, wrong.stdout)
    assert found and set(found) <= set("0123"), wrong.stdout

    arrive = "            cta.barrier[KERNEL, READY]().arrive()\n"
    assert arrive in text
    mine.write_text(text.replace(arrive, ""))
    hung = harness(tmp_path, "verify", "mine.mojo", *how)
    assert hung.returncode == 3 and "factor ready" in hung.stdout + hung.stderr, hung.stdout + hung.stderr


def test_a_kernel_may_declare_no_name_of_a_launch_plan():
    """`taken_names` (declared_rules.mojo) lists the names that plan_json.mojo gives."""
    host = paths.ROOT / "kernels" / "host"
    rules, plan = ((host / name).read_text() for name in ("declared_rules.mojo", "plan_json.mojo"))
    listed = rules.partition("def taken_names")[2].partition('"""\n')[2].partition("return")[0]
    taken, given = re.findall(r'"([^"]+)"', listed), re.findall(r'\b(?:barrier|part|stages)\("([^"]+)"', plan)
    assert sorted(taken) == sorted(given) and len(taken) > 10


@pytest.mark.slow
@nightly_unless_what_runs_changed
@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("count=1", "count=0", "the barrier 'factor ready' of my_barrier has a count of 0: it must be at least 1"),
        ("arrivals=1", "arrivals=0", "'factor ready' of my_barrier expects 0 arrivals: they must be 1 to 1048575"),
        ('"factor ready"', '"full"', "the barrier 'full' of my_barrier has a name that is taken: give it another"),
        ("bytes=4", "bytes=0", "the buffer 'factor' of my_barrier has 0 bytes: it must have at least 1"),
        (
            "bytes=4",
            "bytes=300000",
            "declared buffers 300032 + barriers 40 = 349224, more than the 232448 bytes of shared memory",
        ),
        (
            "[READY]",
            "[READY, READY, READY, READY, READY]",
            "my_barrier declares 5 barriers and 1 buffers: a kernel has at most 4 of each",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_line(tmp_path, right, wrong, message):
    text = WITH_BARRIER.read_text()
    assert text.count(right) == 1
    (tmp_path / "mine.mojo").write_text(text.replace(right, wrong))
    done = harness(tmp_path, "run", "mine.mojo", "--shape", "256")
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("compiling ")]
    assert done.returncode == 2 and line.startswith("harness: error: ") and line.endswith(message), done.stderr


@pytest.mark.slow
@nightly_unless_what_runs_changed
def test_a_barrier_that_the_kernel_does_not_declare_is_named(tmp_path):
    text = WITH_BARRIER.read_text()
    assert text.count("    barriers=[READY],\n") == 1
    (tmp_path / "mine.mojo").write_text(text.replace("    barriers=[READY],\n", ""))
    done = harness(tmp_path, "run", "mine.mojo", "--shape", "256")
    assert done.returncode == 3
    assert "add the barrier 'factor ready' to the `barriers` of the kernel my_barrier" in done.stderr


@pytest.mark.slow
@nightly_unless_what_runs_changed
def test_a_misspelt_field_of_a_barrier_names_the_missing_one(tmp_path):
    (tmp_path / "mine.mojo").write_text(WITH_BARRIER.read_text().replace("arrivals=1", "arivals=1"))
    done = harness(tmp_path, "run", "mine.mojo", "--shape", "256")
    assert done.returncode == 3 and "candidate not viable: missing required argument: 'arrivals'" in done.stderr
    assert "mine.mojo:14:25: error: no matching function" in done.stderr and "Imported from" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.mojo cannot be read: No such file or directory; name a Mojo file"),
        (
            "def kernel():\n    pass\n",
            "mine.mojo declares no kernel: it needs a line such as `comptime KERNEL = Kernel(",
        ),
        ("def main():\n    pass\n", "if it is a program, name what runs it: -- mojo run mine.mojo"),
        (
            EXAMPLE.read_text().replace('"my_kernel"', '"kernel7"'),
            "mine.mojo names its kernel kernel7, which the series has",
        ),
    ],
    ids=["missing", "no kernel", "a program", "name of the series"],
)
def test_a_file_that_is_no_kernel_is_refused_in_one_line(tmp_path, monkeypatch, content, message):
    if content is not None:
        (tmp_path / "mine.mojo").write_text(content)
    done = refused(monkeypatch, tmp_path, "run", "mine.mojo")
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


def two_kernels(folder: Path) -> list[Path]:
    files = [folder / f"{name}.mojo" for name in ("one", "two")]
    for file in files:
        file.write_text(EXAMPLE.read_text().replace('"my_kernel"', f'"{file.stem}"'))
    return files


def test_two_files_in_one_process_have_sources_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = (dict(os.environ), list(KERNELS))
    files = two_kernels(tmp_path)
    kernels = [find_kernel(file.name) for file in files]
    configs = [replace(make_config("kernel7"), kernel=one.name, sources=Sources(one)) for one in kernels]
    for config, file in zip(configs, files, strict=True):
        kept = config.sources.root / "kernels"
        assert (kept / "own.mojo").read_text() == file.read_text()
        assert (kept / "common/config.mojo").read_text() == (paths.kernels_dir() / "common/config.mojo").read_text()
        assert f"/{file.name}:3:1: error: it is broken" in readable_errors(
            f"{kept / 'own.mojo'}:3:1: error: it is broken\n", config.sources.root
        )
        assert pickle.loads(pickle.dumps(config)) == config == KernelConfig.from_json(config.to_json())
        assert config.as_dict()["kernel"] == file.stem and "sources" not in config.as_dict()
        assert config.arguments()["kernel"] == str(file)
    same = {**configs[0].options(), "kernel": "own"}
    assert len({key_of(driver_source([same]), root) for root in (paths.ROOT, *(c.sources.root for c in configs))}) == 3
    assert len({model_key(replace(config, kernel="own")) for config in configs}) == 2
    assert len({made_by(config.sources.root) for config in (*configs, make_config("kernel7"))}) == 3
    assert (dict(os.environ), list(KERNELS)) == before


def test_a_worker_without_the_file_says_so(tmp_path):
    file = tmp_path / "moved.mojo"
    file.write_text(EXAMPLE.read_text())
    sources = Sources(find_kernel(str(file)))
    file.unlink()
    with pytest.raises(CannotRun, match=f"has no file {file}; put it there, or name another"):
        _ = sources.root


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/compile/own_kernel.py", "kernels/own", "pyproject.toml")
def test_two_kernels_in_a_command_and_in_its_workers(tmp_path):
    """The second is kernel 7 without its producer, so its MMA waits for ever."""
    _, second = two_kernels(tmp_path)
    second.write_text(second.read_text().replace("produce_tile(cta, problem, tiles.tile)", "pass"))
    given = ("one.mojo", "two.mojo", *PRODUCT)
    done = harness(tmp_path, "compare", *given, "--json", "-")
    assert done.returncode == 3 and "two: " in done.stderr and "waits" in done.stderr, done.stderr
    first, broken = json.loads(done.stdout)["kernels"]
    assert first["kernel"] == "one" and first["record"]["validation"]["exact"]
    assert broken["kernel"] == "two" and broken["record"] is None
    swept = harness(tmp_path, "sweep", *given, "--jobs", "2")
    assert swept.returncode == 3, swept.stderr
    [file] = (tmp_path / "results" / "sweeps").glob("*.jsonl")
    records = {each["kernel"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert records["one"]["validation"]["exact"] and "waits" in records["two"]["failure"]["reason"]


# ---- fused epilogues ----
EPILOGUE = paths.ROOT / "docs" / "examples" / "my_epilogue.mojo"
RUN = ("run", "kernel8", "-c", "arch=sm_90a", "--shape", "150,136,72", "-c", "cluster=1x1", "-c", "mma_shape=64x64")


@pytest.mark.slow
@nightly_unless_what_runs_changed
def test_a_file_with_an_epilogue_is_run_and_held_against_its_formula(tmp_path):
    text = EPILOGUE.read_text()
    mine = tmp_path / "mine.mojo"
    mine.write_text(text)
    given = ("-c", "epilogue=mine.mojo", "--problem", "inputs=uniform", "--schedules", "2", "--jobs", "2")
    done = harness(tmp_path, *RUN, *given, "--json", "-")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["config"]["epilogue"] == "bias-relu2" and record["validation"]["passed"]

    mine.write_text(text.replace("fragment.values + fragment.bias()", "fragment.bias() - fragment.values"))
    wrong = harness(tmp_path, *RUN, *given, "--no-save", "--dump", "kept")
    a, b, bias = (np.load(tmp_path / "kept" / "kernel8" / f"{name}.npy") for name in ("a", "b", "bias"))
    assert a.shape == (150, 72) and b.shape == (136, 72) and bias.shape == (136,)
    assert wrong.returncode == 4 and f"-c epilogue={mine}" in wrong.stdout + wrong.stderr

    mine.write_text(text.replace("fragment.bias()", "fragment.bios()"))
    broken = harness(tmp_path, *RUN, *given)
    assert broken.returncode == 3 and f"{mine}:" in broken.stderr and "no attribute 'bios'" in broken.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("struct OwnEpilogue", "struct Mine"), "mine.mojo declares no epilogue: it needs a `struct OwnEpilogue("),
        (('"bias-relu2"', '"relu"'), "mine.mojo names its epilogue relu, which there is already; take another name"),
        (("comptime formula", "comptime other"), "mine.mojo does not say what C must be: it needs a line such as"),
        (("product + bias", "product + bios"), "mine.mojo: formula: there is no buffer bios; the buffers are product"),
        (('0) ** 2"', '0)" + " ** 2"'), 'mine.mojo: formula is "maximum(product + bias, 0)" + " ** 2"; write one text'),
        (('"bias-relu2"', '"Mine"'), "mine.mojo: name is 'Mine'; write it in lower case"),
        (
            ("    comptime takes_bias = True\n", ""),
            "the formula has bias, and takes_bias is False; write `comptime takes_",
        ),
        (
            ("product + bias", "product"),
            "the formula has no bias, and takes_bias is True; write `comptime takes_bias = F",
        ),
        (("product + bias", "gate * up + bias"), "mine.mojo: formula: of a product [16, 32], epilogue bias-relu2: "),
        (
            ("    comptime takes_bias = True", "    comptime results = 4\n    comptime takes_bias = True"),
            "the formula makes 32 columns of 32, and results is 4; write `comptime results = 8`",
        ),
    ],
    ids=[
        "no struct",
        "a name that is taken",
        "no formula",
        "no such name",
        "two texts",
        "a capital",
        "bias not taken",
        "bias not used",
        "half of the columns",
        "results",
    ],
)
def test_a_file_that_is_no_epilogue_is_refused_in_one_line(tmp_path, monkeypatch, change, message):
    (tmp_path / "mine.mojo").write_text(EPILOGUE.read_text().replace(*change))
    done = refused(monkeypatch, tmp_path, *RUN, "-c", "epilogue=mine.mojo")
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/compile/own_kernel.py", "kernels/own", "pyproject.toml")
def test_a_kernel_and_an_epilogue_are_both_in_their_places(tmp_path):
    """The kernel walks no tiles, and its rule tells the names of both."""
    done = harness(tmp_path, "run", str(EXAMPLE), "-c", f"epilogue={EPILOGUE}")
    assert done.returncode == 2 and "epilogue bias-relu2: my_kernel stores the product as it is" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "kernel8", "-c", "epilogue=gelo"), "there is no epilogue 'gelo'; use one of: none, bias, "),
        (("run", "kernel7", "-c", "epilogue=bias"), "epilogue bias: kernel7 stores the product as it is; use kernel8"),
        (
            (*RUN, "-c", "epilogue=swiglu", "-c", "epilogue_width=16"),
            "epilogue width 16: swiglu makes 8 columns of C of it, not 16",
        ),
    ],
    ids=["no such", "another kernel", "too narrow"],
)
def test_an_epilogue_that_cannot_be_is_refused_in_one_line(tmp_path, monkeypatch, words, message):
    done = refused(monkeypatch, tmp_path, *words)
    assert message in done.stderr and done.stdout == ""
