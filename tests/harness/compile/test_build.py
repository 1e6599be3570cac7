"""The build: what is compiled and when, and what happens when it goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import max_models
import pytest
from click.testing import CliRunner
from max_models import model_key

from emugpu import cache
from emugpu.errors import CannotRun, UsageProblem
from harness import paths
from harness.cli.main import main
from harness.compile import artifacts as build_module
from harness.compile import compiler, planner
from harness.compile.artifacts import build, is_built
from harness.compile.catalog import SM_100A
from harness.compile.compiler import driver_source, readable_errors
from harness.compile.config import make_config
from harness.compile.planner import TensorMapArgument, parse_plan
from harness.launch.max_ops import op_parameters
from harness.problem import Shape

# Stands in for the compiler: notes each call, and "compiles" a shell script that prints what a kernel would.
FAKE_MOJO = r"""#!/bin/sh
folder=$(dirname "$0")
if [ "$1" = --version ]; then cat "$folder/version"; exit; fi
echo "$@" >> "$folder/calls"
cp "$4" "$folder/driver"
if [ -e "$folder/broken" ]; then echo "$3/kernels/x.mojo:1:2: error: it is broken" >&2; exit 1; fi
if [ -e "$folder/edits" ]; then echo "# changed" >> "$3/kernels/x.mojo"; fi
printf '#!/bin/sh\necho "// $1 $2"\n' > "$6"
chmod +x "$6"
"""

SOURCES = {
    "host/emit": "from ..common.config import GemmConfig\nfrom ..sm90.body import body\nfrom ..x import x\n",
    "host/plan": "from .rules import rules\nfrom std.sys import argv\n",
    "host/rules": "from ..common.config import (\n    GemmConfig,\n)\n",
    "common/config": "",
    "sm90/body": "from ..common.config import GemmConfig\n",
    "x": "one",
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A checkout with one source file, an empty cache and the compiler above; returns its folder."""
    folder = tmp_path / "fake"
    for name, text in SOURCES.items():
        path = folder / "kernels" / f"{name}.mojo"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "version").write_text("Mojo 1.2.0 (fake)\n")
    mojo = folder / "mojo"
    mojo.write_text(FAKE_MOJO)
    mojo.chmod(mojo.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(paths, "ROOT", folder)
    monkeypatch.setenv("HARNESS_MOJO", str(mojo))
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    forget_compiler()
    yield folder
    forget_compiler()


def forget_compiler():
    compiler._compiler.cache_clear()
    compiler._mojo_version.cache_clear()


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


TWO = [make_config("kernel6", cluster=(2, 1)), make_config("kernel6", cluster=(4, 4))]


def test_the_second_build_compiles_nothing(fake):
    assert not is_built(TWO[0])
    [first] = build(TWO[:1])
    assert first.compiled_now and is_built(TWO[0])
    [second] = build(TWO[:1])
    assert not second.compiled_now
    assert calls(fake) == 1
    assert second.ptx == "// ptx 0\n"


def test_several_configurations_are_one_compilation(fake):
    artifacts = build([*TWO, TWO[0]])
    assert calls(fake) == 1
    assert [artifact.config for artifact in artifacts] == [*TWO, TWO[0]]
    assert [artifact.ptx for artifact in artifacts] == ["// ptx 0\n", "// ptx 1\n", "// ptx 0\n"]
    assert build(TWO[1:])[0].ptx == "// ptx 1\n"
    assert calls(fake) == 1


def test_only_what_is_missing_is_compiled(fake):
    build(TWO[:1])
    build(TWO)
    assert calls(fake) == 2
    assert "cluster_m=4" in (fake / "driver").read_text()
    assert "cluster_m=2" not in (fake / "driver").read_text()


def test_changed_sources_are_compiled_again(fake):
    build(TWO[:1])
    assert is_built(TWO[0])
    for name in ("x", "host/emit"):
        path = fake / "kernels" / f"{name}.mojo"
        before = path.read_text()
        path.write_text(f"{before}# edited\n")
        assert not is_built(TWO[0])
        path.write_text(before)
        assert is_built(TWO[0])


def test_sources_that_nothing_imports_do_not_count(fake):
    build(TWO[:1])
    (fake / "kernels" / "sm90" / "notes.mojo").write_text("")
    assert is_built(TWO[0])


@pytest.mark.parametrize(
    ("edited", "again"),
    [("sm90/body", False), ("host/emit", False), ("host/plan", True), ("host/rules", True), ("common/config", True)],
)
def test_the_planner_is_compiled_again_for_what_it_imports_alone(fake, edited, again):
    """It takes half a minute of CPU, and nearly every edit is one of a kernel's body."""
    first = planner.planner(fake)
    path = fake / "kernels" / f"{edited}.mojo"
    path.write_text(f"{path.read_text()}# edited\n")
    assert (planner.planner(fake) != first) == again
    assert calls(fake) == 1 + again


def test_an_import_of_a_package_counts_all_its_files(fake):
    (fake / "kernels" / "host" / "plan.mojo").write_text("from .. import sm90\n")
    first = planner.planner(fake)
    (fake / "kernels" / "sm90" / "body.mojo").write_text("# edited\n")
    assert planner.planner(fake) != first


def test_the_planner_of_this_checkout_does_not_depend_on_the_kernels():
    found = {line.split()[0] for line in compiler.imported_sources(compiler.PLANNER, paths.ROOT)}
    assert {"kernels/host/plan.mojo", "kernels/host/rules.mojo", "kernels/common/multicast.mojo"} <= found
    assert not [path for path in found if path.startswith(("kernels/sm90/", "kernels/sm100/", "kernels/host/matmul"))]
    driver = compiler.driver_source([TWO[0].options()])
    bodies = {line.split()[0] for line in compiler.imported_sources(driver, paths.ROOT)}
    assert {"kernels/sm100/kernel6.mojo", "kernels/sm90/wgmma.mojo", "kernels/common/pipeline.mojo"} <= bodies
    assert not [path for path in bodies if path.startswith("kernels/host/matmul")]


def test_each_source_is_read_once(fake, monkeypatch):
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))
    build(TWO)
    build(TWO)
    sources = [path for path in read if path.suffix == ".mojo"]
    assert len(sources) == len(set(sources)) > 2


def test_a_run_asks_for_its_plan_once_and_forms_each_key_once(series, monkeypatch):
    """The key of the planner, and that of the kernel; the plan comes from one process."""
    keys: Counter[str] = Counter()
    asked: list[list[str]] = []
    form, start = compiler.key_of, compiler.run_program

    def counted(source: str, root: Path) -> str:
        keys[source] += 1
        return form(source, root)

    def started(command, *more, **options):
        asked.append([str(word) for word in command])
        return start(command, *more, **options)

    for module in (build_module, planner):
        monkeypatch.setattr(module, "key_of", counted)
    monkeypatch.setattr(compiler, "run_program", started)
    planner._found.clear()
    planner._plan.cache_clear()
    build_module._plan.cache_clear()
    words = ["run", "kernel7", "-c", "cluster=2x1", "--shape", "264,512,136", "--no-save"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert sorted(keys.values()) == [1, 1], keys
    plans = [command for command in asked if command[1:4] == ["264", "512", "136"]]
    assert len(plans) == 1, asked


@pytest.mark.slow
def test_the_first_kernel_is_compiled_together_with_the_planner(tmp_path, monkeypatch):
    """By the true compiler: one call, whose program plans, and whose PTX is that of the configuration."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    planner._server.cache_clear()
    planner._answer.cache_clear()
    compiled: list[str] = []
    run_mojo = compiler._run_mojo
    monkeypatch.setattr(compiler, "_run_mojo", lambda *given: compiled.append(run_mojo(*given)))
    try:
        config = make_config("kernel6", cluster=(2, 1))
        [artifact] = build([config])
        assert len(compiled) == 1 and config == TWO[0]
        assert artifact.plan(Shape(512, 512, 512)).entry in artifact.ptx
        with pytest.raises(UsageProblem, match="stages 9: "):
            make_config("kernel6", stages=9)
    finally:
        planner._server.cache_clear()
        planner._answer.cache_clear()
        planner._compiled_with_planner.clear()


def test_a_first_kernel_that_breaks_a_rule_leaves_the_planner(fake):
    (fake / "broken").touch()
    with pytest.raises(CannotRun, match="it is broken"):
        planner.planner(fake, {"kernel": "kernel6", "arch": "sm_100a", "dtype": "bf16", "stages": 99})
    assert calls(fake) == 2 and "stages" not in (fake / "driver").read_text()


def test_another_compiler_compiles_again(fake):
    build(TWO[:1])
    (fake / "version").write_text("Mojo 1.3.0 (fake)\n")
    forget_compiler()
    assert not is_built(TWO[0])


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "kernel7"},
        {"arch": "sm_90a", "cta_group": 1, "mma_shape": (128, 256), "stages": 3},
        {"dtype": "fp16"},
        {"cta_group": 1, "mma_shape": (128, 128)},
        {"mma_shape": (256, 128)},
        {"cluster": (4, 2)},
        {"kernel": "kernel8", "scheduler": "static", "raster_group": 4, "accumulators": 1, "sms": 8},
        {"stages": 4},
        {"epilogue_width": 32},
        {"multicast": False},
    ],
)
def test_every_field_of_the_configuration_counts(fake, change):
    build(TWO[:1])
    assert not is_built(dataclasses.replace(TWO[0], **change))


def test_a_failed_compilation_is_shown_and_leaves_nothing(fake, tmp_path):
    (fake / "broken").touch()
    with pytest.raises(CannotRun) as caught:
        build(TWO[:1])
    assert str(caught.value) == ("the Mojo compiler reports:\nkernels/x.mojo:1:2: error: it is broken")
    assert not is_built(TWO[0])
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    (fake / "broken").unlink()
    build(TWO[:1])


def test_sources_that_change_during_the_compilation(fake, tmp_path):
    (fake / "edits").touch()
    with pytest.raises(CannotRun, match="sources changed while they were being compiled; run it again"):
        build(TWO[:1])
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["kernel.ptx", "artifact.json"])
def test_what_the_cache_lost_is_made_again(fake, tmp_path, name, capsys):
    build(TWO[:1])
    [lost] = (tmp_path / "cache").rglob(name)
    lost.unlink()
    assert not is_built(TWO[0])
    assert build(TWO[:1])[0].ptx == "// ptx 0\n"
    assert calls(fake) == 2
    assert capsys.readouterr().err == ""


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def edit(path: Path) -> None:
    first, *rest = path.read_bytes()
    path.write_bytes(bytes([first ^ 1, *rest]))


def lose_checksum(path: Path) -> None:
    path.with_name(path.name + ".sha256").unlink()


@pytest.mark.parametrize("damage", [truncate, edit, lose_checksum])
@pytest.mark.parametrize("name", ["kernel.ptx", "artifact.json"])
def test_a_file_that_is_not_as_it_was_compiled_is_made_again(fake, tmp_path, name, damage, capsys):
    build(TWO[:1])
    [path] = (tmp_path / "cache").rglob(name)
    good = path.read_bytes()
    damage(path)
    assert not is_built(TWO[0])
    [artifact] = build(TWO[:1])
    assert artifact.ptx == "// ptx 0\n"
    assert path.read_bytes() == good
    assert calls(fake) == 2
    notice = f"emugpu: {path} is not what was compiled (its checksum differs); it is made again\n"
    assert capsys.readouterr().err == notice


@pytest.mark.parametrize("damage", [Path.unlink, truncate, edit, lose_checksum])
def test_a_planner_that_is_not_as_it_was_compiled_is_made_again(fake, damage, capsys):
    path = planner.planner(fake)
    good, once = path.read_bytes(), "compiling the planner (once) with Mojo ...\n"
    assert capsys.readouterr().err == once
    damage(path)
    assert planner.planner(fake) == path
    assert path.read_bytes() == good and cache.is_whole(path)
    assert calls(fake) == 2
    notice = f"emugpu: {path} is not what was compiled (its checksum differs); it is made again\n"
    assert capsys.readouterr().err == ("" if damage is Path.unlink else notice) + once


@pytest.mark.parametrize("damage", [truncate, lose_checksum])
def test_figures_of_ptxas_that_are_damaged_are_asked_for_again(fake, monkeypatch, damage, capsys):
    monkeypatch.setattr(build_module, "ptxas_version", lambda: "1.2")
    monkeypatch.setattr(build_module, "assemble", lambda *_: {"registers": 64})
    [artifact] = build(TWO[:1])
    found = artifact.statistics()
    monkeypatch.setattr(build_module, "assemble", lambda *_: pytest.fail("it is kept"))
    [again] = build(TWO[:1])
    assert again.statistics() == found == {"registers": 64, "version": "1.2"}
    damage(artifact.folder / "ptxas-1.2.json")
    monkeypatch.setattr(build_module, "assemble", lambda *_: {"registers": 65})
    assert [build(TWO[:1])[0].statistics()["registers"] for _ in range(2)] == [65, 65]
    assert "ptxas-1.2.json is not what was compiled" in capsys.readouterr().err


def test_a_full_disk_leaves_figures_out_and_no_more(fake, monkeypatch):
    monkeypatch.setattr(build_module, "ptxas_version", lambda: "1.2")
    monkeypatch.setattr(build_module, "assemble", lambda *_: {"registers": 64})
    [artifact] = build(TWO[:1])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module.cache, "publish_file", full)
    assert artifact.statistics() == {"error": "ptxas could not be asked: [Errno 28] No space left on device"}


def test_what_a_killed_build_left_is_removed_by_a_later_one(fake):
    """Not what another one is at work on, however old."""
    with cache.temporary_folder() as at_work:
        left = Path(at_work).with_name("left-by-a-killed-build")
        (left / "program").mkdir(parents=True)
        for folder in (at_work, left):
            os.utime(folder, (0, 0))
        with cache.temporary_folder() as new:
            assert sorted(left.parent.iterdir()) == sorted([Path(at_work), Path(new)])
    assert list(left.parent.iterdir()) == []


def test_clean_deletes_the_cache_and_nothing_else(fake, tmp_path):
    build(TWO[:1])
    other = tmp_path / "cache" / "other"
    other.write_text("")
    refused = CliRunner().invoke(main, ["clean"])
    assert refused.exit_code == 2 and "add --yes" in refused.stderr and is_built(TWO[0])
    done = CliRunner().invoke(main, ["clean", "--yes"])
    assert done.exit_code == 0
    assert "kernels  1        0.0 MiB" in done.stdout
    assert list((tmp_path / "cache").iterdir()) == [other]
    assert not is_built(TWO[0])
    again = CliRunner().invoke(main, ["clean", "--yes"])
    assert (again.exit_code, again.stdout) == (0, f"the build cache at {tmp_path / 'cache' / 'builds'} is empty\n")


def test_the_planner_is_compiled_once_and_that_is_said(fake, capsys):
    planner.planner(fake)
    assert capsys.readouterr().err == "compiling the planner (once) with Mojo ...\n"
    planner.planner(fake)
    assert capsys.readouterr().err == ""


def build_one(_: int) -> str:
    return build(TWO[:1])[0].ptx


def test_builds_at_the_same_time_do_not_disturb_each_other(fake, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build_one, range(8))) == ["// ptx 0\n"] * 8
    assert [path.name for path in (tmp_path / "cache" / "builds" / "tmp").iterdir()] == []


def test_a_cache_that_cannot_be_written(fake, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CannotRun, match=r"cannot write to .*set EMUGPU_CACHE_DIR"):
        build(TWO[:1])


def test_no_sources(fake):
    shutil.rmtree(fake / "kernels")
    with pytest.raises(CannotRun, match=r"no Mojo sources at .*install the harness again"):
        build(TWO[:1])


def test_the_driver_names_every_field():
    config = make_config(
        "kernel7", dtype="fp16", cta_group=1, mma_shape=(64, 128), stages=3, cluster=(4, 2), epilogue_width=16
    )
    assert (
        '"kernel=kernel7 arch=sm_100a dtype=fp16 scales=none out_dtype=fp16 cta_group=1 mma_m=64 mma_n=128 stages=3 '
        "cluster_m=4 cluster_n=2 epilogue_width=16 multicast=true scheduler=none raster_group=1 accumulators=1 "
        'clc_depth=0 sms=0 ping_pong=false split_k=1 layout=nt swapped=false epilogue=none grouped=false masked=false",'
        in driver_source([config.options()])
    )


def test_the_op_takes_its_types_from_its_tensors_but_for_bytes():
    text = op_parameters(TWO[1])["options"]
    assert "kernel=" in text and "cluster_m=4" in text and "dtype=" not in text and "arch=" not in text
    fp8 = make_config("kernel8", arch="sm_90a", dtype="e4m3", scales="block")
    assert " dtype=e4m3 scales=block " in op_parameters(fp8)["options"]


def test_models_are_named_by_what_they_are_made_of(fake, monkeypatch):
    key = model_key(TWO[0])
    assert key == model_key(TWO[0]) != model_key(TWO[1])
    shutil.move(fake / "mojo", fake / "moved")
    monkeypatch.setenv("HARNESS_MOJO", str(fake / "moved"))
    assert model_key(TWO[0]) == key
    (fake / "kernels" / "x.mojo").write_text("two")
    assert model_key(TWO[0]) != key
    (fake / "kernels" / "x.mojo").write_text("one")
    monkeypatch.setattr(max_models, "package_version", lambda _: "99")
    assert model_key(TWO[0]) != key


def test_readable_errors_keep_the_constraint_and_drop_the_chain():
    text = textwrap.dedent(f"""\
        Failed to initialize Crashpad.  Crash reporting will not be available.
        /tmp/x/driver.mojo:4:5: error: function instantiation failed
        def main():
            ^
        {paths.ROOT}/kernels/host/emit.mojo:5:9: note: call expansion failed with parameter value(s): (...)
            f[5]()
                ^
        {paths.ROOT}/kernels/host/emit.mojo:2:5: note: constraint failed: shared memory: 1 + 2 = 3 bytes
            comptime assert n < 3
            ^
        /x/bin/mojo: error: failed to run the pass manager
        """)
    assert readable_errors(text, paths.ROOT) == "shared memory: 1 + 2 = 3 bytes"


def test_readable_errors_keep_source_lines():
    text = textwrap.dedent(f"""\
        Failed to initialize Crashpad.  Crash reporting will not be available.
        {paths.ROOT}/kernels/host/emit.mojo:6:11: error: use of unknown declaration 'thing'
            print(thing)
                  ^~~~~
        {paths.ROOT}/kernels/host/emit.mojo:7:1: warning: unused
        /x/bin/mojo: error: failed to parse the provided Mojo source module
        """)
    assert readable_errors(text, paths.ROOT) == (
        "kernels/host/emit.mojo:6:11: error: use of unknown declaration 'thing'\n    print(thing)\n          ^~~~~"
    )


def test_readable_errors_never_hide_everything():
    assert readable_errors("Segmentation fault\n", paths.ROOT) == "Segmentation fault"
    assert readable_errors("", paths.ROOT) == "no message"


def test_without_ptxas_the_reason_is_given(artifacts, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert artifacts[2, 1].statistics() == {"error": "ptxas is not on PATH"}


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
def test_ptxas_accepts_the_kernels(artifacts):
    for artifact in artifacts.values():
        statistics = artifact.statistics()
        assert statistics["spill_store_bytes"] == statistics["spill_load_bytes"] == 0
        assert 0 < statistics["registers"] <= 255
        assert statistics == json.loads((artifact.folder / f"ptxas-{statistics['version']}.json").read_text())


def test_compiled_kernels_are_what_was_asked_for(artifacts):
    for cluster, artifact in artifacts.items():
        plan = artifact.plan(Shape(512, 1024, 256))
        assert re.search(r"\.target\s+sm_100a", artifact.ptx)
        assert re.search(rf"\.entry\s+{plan.entry}\b", artifact.ptx)
        assert plan.kernel == artifact.config.kernel and plan.arch == artifact.config.arch
        assert plan.config["dtype"] == artifact.config.dtype
        assert plan.config["stages"] == artifact.config.stages
        assert tuple(plan.config["cluster"]) == cluster == plan.cluster[:2]
        assert plan.problem == Shape(512, 1024, 256)
        assert plan.tile == (128, 256)


def test_the_plan_and_the_refusal_agree_on_shared_memory(artifacts):
    """A pair of CTAs and 256x256: each holds 128 rows of A, of B and of C."""
    plan = artifacts[2, 1].plan(Shape(8, 8, 8))
    parts = {part.name: part.bytes for part in plan.shared_memory}
    stages, stage = artifacts[2, 1].config.stages, 2 * 128 * 64 * 2
    assert parts["A stages"] + parts["B stages"] == stages * stage
    assert parts["C tile"] == 128 * 256 * 2
    assert sum(parts.values()) == plan.dynamic_smem <= SM_100A.shared_memory
    with pytest.raises(UsageProblem) as caught:
        make_config("kernel6", stages=stages + 1)
    one_more = plan.dynamic_smem + stage + 2 * 8  # and a full and an empty barrier
    assert f"= {one_more}, more than the {SM_100A.shared_memory} bytes" in str(caught.value)


def test_the_plan_describes_the_tensors(artifacts):
    plan = artifacts[4, 4].plan(Shape(500, 296, 584))
    maps = {a.tensor: a for a in plan.arguments if isinstance(a, TensorMapArgument)}
    assert (maps["A"].dims, maps["A"].strides) == ((584, 500), (1168,))
    assert (maps["B"].dims, maps["B"].strides) == ((584, 296), (1168,))
    assert (maps["C"].dims, maps["C"].strides) == ((296, 500), (592,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"schema": 2}', "schema 2; this harness reads schema 1"),
        ('{"schema": 1}', "KeyError"),
    ],
)
def test_plans_that_cannot_be_read(text, reason):
    with pytest.raises(CannotRun, match=reason):
        parse_plan(text)


def test_what_the_program_refuses_is_passed_on(artifacts):
    shape = object.__new__(Shape)
    for name, value in (("m", 8), ("n", 12), ("k", 8)):
        object.__setattr__(shape, name, value)
    with pytest.raises(CannotRun, match=r"^N 12 is not a multiple of 8") as caught:
        artifacts[2, 1].plan(shape)
    assert caught.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("kernels/", "harness/compile/", "pyproject.toml")
def test_a_configuration_that_does_not_fit_does_not_compile(tmp_path, monkeypatch):
    """The compiler has the same rule as the harness, and shows the sum."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    config = make_config("kernel6")
    object.__setattr__(config, "stages", 6)
    with pytest.raises(CannotRun) as caught:
        build([config])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the Mojo compiler reports:"
    assert "= 262256, more than the 232448 bytes" in lines[1]
    assert len(lines) == 2
    assert os.listdir(tmp_path / "builds" / "tmp") == []
