"""``emugpu run``: launch files end to end, with the kernels of nvcc in tests/data/cuda."""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from cuda_programs import FOLDER, SGEMM_LAUNCH
from ptx_programs import STORE_R1, WORDS, source

from emugpu.cli.main import main
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import TOLERANT, run, run_schedules
from emugpu.paths import ROOT

SCALE = f"""ptx = "{FOLDER}/sgemm.ptx"
[buffers]
x = {{ dtype = "f32", shape = [100], init = "normal" }}
y = {{ dtype = "f32", shape = [100], init = "normal" }}
[[launch]]
kernel = "scale"
grid = 4
block = 32
arguments = ["x", "y", 2.0, 100]
[[launch]]
kernel = "scale"
grid = 2
block = 64
arguments = {{ param_0 = "x", param_1 = {{ pointer = "y", offset = 200 }}, param_2 = {{ f32 = -1.0 }}, param_3 = 50 }}
[expect]
y = {{ value = "concatenate([2 * x[:50] + y[:50], 2 * x[50:] + y[50:] - x[:50]])", absolute = 1e-6 }}
"""


def command(*arguments):
    return CliRunner().invoke(main, ["run", *(str(a) for a in arguments)])


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "launch.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_gemm_of_nvcc_is_exact_and_the_record_has_what_scripts_need(write, tmp_path):
    result = command(write(SGEMM_LAUNCH), "--json", "-", "-o", f"{tmp_path / 'out'}/")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["validation"]["passed"] and record["validation"]["exact"]
    assert record["validation"]["elements"] == 1024 and record["validation"]["mismatches"] == 0
    assert record["counters"]["ctas"] == 1 and record["counters"]["instructions"]["memory"] > 1000
    assert record["warnings"] == [] and record["ptx"]["compiler"] == "nvcc 13.0"
    assert record["device"]["name"] == "emulated sm_100a" and record["timing"]["seconds"] is None
    a, b, c = (np.load(tmp_path / "out" / f"{name}.npy") for name in "ABC")
    assert a.shape == (32, 64) and len(np.unique(a)) == 9 and not np.array_equal(a.reshape(64, 32), b)
    assert np.array_equal(c, a @ b)


def test_without_an_expectation_validation_is_null(write):
    result = command(write(SGEMM_LAUNCH.partition("[expect]")[0]), "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["validation"] is None
    assert "RAN, no result was expected" in command(write(SGEMM_LAUNCH.partition("[expect]")[0])).stdout


@pytest.mark.parametrize(
    ("expected", "mismatches", "index"),
    [
        ("A @ B + 1", 1024, [0, 0]),
        ("A @ B + reshape(arange(1024) == 70, (32, 32))", 1, [2, 6]),
        ("nan.npy", 1024, [0, 0]),
    ],
)
def test_a_wrong_result_is_exit_code_4_and_says_where(write, tmp_path, expected, mismatches, index):
    np.save(tmp_path / "nan.npy", np.full((32, 32), np.nan, np.float32))
    path = write(SGEMM_LAUNCH.replace('"A @ B"', f'"{expected}"'))
    result = command(path, "--json", "-")
    assert result.exit_code == 4
    [verdict] = json.loads(result.stdout)["validation"]["expectations"]
    assert not verdict["passed"] and verdict["mismatches"] == mismatches
    assert verdict["first_mismatches"][0]["index"] == index
    assert "first wrong elements of C" in result.stderr
    assert "WRONG RESULT" in command(path).stdout


def test_several_launches_in_order_with_arguments_by_name_and_a_pointer_into_a_buffer(write):
    record = run(read_launch_file(write(SCALE))).as_dict()
    assert record["validation"]["passed"] and not record["validation"]["exact"]
    assert [launch["grid"] for launch in record["launches"]] == [[4], [2]] and record["counters"]["ctas"] == 6
    swapped = SCALE.replace("2 * x[50:] + y[50:] - x[:50]", "2 * x[50:] + y[50:]")
    assert not run(read_launch_file(write(swapped))).passed


def test_random_schedules_find_what_one_order_hides(write):
    """Two CTAs that read a counter and then write it back: in the usual order each ticket is given out once."""
    text = f"""ptx = "{FOLDER}/tile_counter.ptx"
[buffers]
counter = {{ dtype = "u32", shape = [1], init = 0 }}
tickets = {{ dtype = "u32", shape = [8], init = 99 }}
[launch]
kernel = "tickets_by_load_and_store"
grid = 8
block = 32
arguments = ["counter", "tickets"]
[expect]
counter = "counter + 8"
"""
    path = write(text)
    tried = list(run_schedules(read_launch_file(path), TOLERANT, 5))
    assert [one.seed for one in tried] == [None, 0, 1, 2, 3] and not all(one.passed for one in tried)
    wrong = next(one.seed for one in tried if not one.passed)
    result = command(path, "--schedules", "5", "--jobs", "2", "--json", "-")
    assert result.exit_code == 4
    record = json.loads(result.stdout)
    assert [s["passed"] for s in record["schedules"]] == [one.passed for one in tried]
    assert record["device"]["schedule_seed"] == wrong
    assert command(path, "--schedules", f"random:{wrong}").exit_code == 4
    alone = text.replace("grid = 8", "grid = 1").replace("counter + 8", "counter + 1")
    assert command(write(alone, "alone.toml"), "--schedules", "3").exit_code == 0


def test_a_deadlock_and_a_limit_are_exit_code_3_with_the_seed(write):
    text = f"""ptx = "{FOLDER}/split_k.ptx"
[buffers]
A = {{ dtype = "s32", shape = [16, 32], init = "integer" }}
B = {{ dtype = "s32", shape = [32, 16], init = "integer" }}
C = {{ dtype = "s32", shape = [16, 16], init = "zeros" }}
locks = {{ dtype = "s32", shape = [1], init = 0 }}
[launch]
kernel = "split_k_KIND"
grid = [1, 1, 2]
block = [16, 16]
arguments = ["A", "B", "C", "locks", 16, 32]
[expect]
C = "A @ B"
locks = "locks"
"""
    path = write(text.replace("KIND", "wrong_turn"))
    result = command(path)
    assert result.exit_code == 3 and "launch: Livelock" in result.stderr and result.stdout == ""
    result = command(path, "--schedules", "2@5", "--json", "-")
    assert (
        result.exit_code == 3 and result.stdout == "" and "to run only this schedule: --schedules fifo" in result.stderr
    )
    good = write(text.replace("KIND", "s32"), "good.toml")
    assert command(good, "--schedules", "2", "--jobs", "2").exit_code == 0
    result = command(good, "--emulate", "max-steps=100")
    assert result.exit_code == 3 and "LimitExceeded" in result.stderr
    result = command(good, "--jobs", "2")
    assert result.exit_code == 2 and "cannot run with several workers" in result.stderr


@pytest.mark.parametrize(("limit", "code"), [((), 0), (("--emulate", "max-steps=1000000"), 3)])
def test_a_profile_also_of_a_run_that_is_stopped(write, tmp_path, limit, code):
    loop = "mov.u32 %r9, 1000000; L: sub.u32 %r9, %r9, 1; setp.ne.u32 %p0, %r9, 0; @%p0 bra L; ret;"
    (tmp_path / "loop.ptx").write_text(source(loop))
    path = write('ptx = "loop.ptx"\n[launch]\nkernel = "kernel"\ngrid = 1\nblock = 32\narguments = [0]\n')
    done = command(path, *limit, "--profile", tmp_path / "found.json")
    assert done.exit_code == code and "s of emulation, sampled" in done.stderr, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert any("sub.u32 %r9" in frame["name"] for frame in found["shared"]["frames"])


WARNS = WORDS + ".visible .entry unused(.param .u64 x) { frobnicate.u32 %r1; }"
TWICE = "mov.b32 %r3, words; mbarrier.init.shared::cta.b64 [%r3], 1; mov.u32 %r1, %r0;" + STORE_R1 + "ret;"


def test_warnings_are_collected_with_their_lines_and_are_errors_when_strict(write, tmp_path):
    ptx = source(TWICE, WARNS)
    (tmp_path / "warns.ptx").write_text(ptx)
    path = write(
        'ptx = "warns.ptx"\n[buffers]\nout = { dtype = "u32", shape = 64, init = "zeros" }\n'
        '[launch]\nkernel = "kernel"\ngrid = 1\nblock = 64\narguments = ["out"]\n[expect]\nout = "arange(64)"\n'
    )
    record = json.loads(command(path, "--json", "-").stdout)
    [warning] = record["warnings"]
    assert warning["rule"] == "mbarrier-reinit" and warning["count"] == 63
    assert "mbarrier.init" in ptx.splitlines()[warning["line"] - 1] and "a second time" in warning["message"]
    result = command(path, "--emulate", "strict=true")
    assert result.exit_code == 3 and "Fault" in result.stderr
    assert command(path, "--emulate", "strict=true", "--emulate", "allow=mbarrier-reinit").exit_code == 0


SYMBOLS = (
    source(
        "mov.u32 %r1, 0; ld.const.f32 %r2, [scale]; mov.b32 %r3, %r2; ld.global.u32 %r1, [_ZN3lab5countE + 4];"
        "ld.param.u64 %rd5, [nothing]; setp.ne.u64 %p1, %rd5, 0; @%p1 trap;"
        "mul.lo.u32 %r1, %r1, %r3; red.global.add.u32 [_ZN3lab5countE], 1;" + STORE_R1 + "ret;",
        ".global .align 4 .b8 _ZN3lab5countE[8]; .const .align 4 .u32 scale = 5;",
        parameters=["u64 nothing"],
    ),
    """ptx = "symbols.ptx"
[buffers]
out = { dtype = "u32", shape = [32], init = 0 }
[symbols]
count = { dtype = "u32", init = 6 }
scale = { dtype = "u32" }
[launch]
grid = 1
block = 32
arguments = ["out", "null"]
[expect]
out = "zeros(32) + 30"
count = "count + [32, 0]"
""",
)


def test_symbols_are_set_and_compared(write, tmp_path):
    ptx, text = SYMBOLS
    (tmp_path / "symbols.ptx").write_text(ptx)
    outcome = run(read_launch_file(write(text)))
    assert (
        outcome.passed and outcome.contents["scale"].tolist() == [5] and outcome.contents["count"].tolist() == [38, 6]
    )


def test_what_a_kernel_prints_is_shown(write):
    path = write(
        f'ptx = "{FOLDER}/calls.ptx"\n[buffers]\nout = {{ dtype = "s32", shape = 64, init = 0 }}\n'
        '[symbols]\nscale = { dtype = "f32", init = 0.5 }\ncounter = { dtype = "s32" }\n'
        '[launch]\nkernel = "calls"\ngrid = 2\nblock = 32\narguments = ["out"]\n[expect]\ncounter = "counter + 14"\n'
    )
    result = command(path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("thread 5 of block 0: 5 text  0.50 ff%\nthread 5 of block 1: 5 text  0.50 ff%\n")
    assert "thread 5 of block 1" in json.loads(command(path, "--json", "-").stdout)["output"]


TYPES = {
    "f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "ue8m0": ml_dtypes.float8_e8m0fnu,
    "s8": np.int8, "u16": np.uint16, "s32": np.int32, "u64": np.uint64,
}  # fmt: skip
COPY = (
    "cvt.u64.u32 %rd2, %r0; ld.param.u64 %rd3, [in]; add.s64 %rd3, %rd3, %rd2; ld.global.u8 %r1, [%rd3];"
    "add.s64 %rd4, %rd0, %rd2; st.global.u8 [%rd4], %r1; ret;"
)


@pytest.mark.parametrize("dtype", [*TYPES, "e2m1", "e3m2", "e2m3"])
def test_every_element_type_and_init_comes_back_as_it_was(write, tmp_path, dtype):
    """A kernel copies bytes; values are compared in float64, so they mean the same on both sides."""
    (tmp_path / "copy.ptx").write_text(source(COPY, parameters=["u64 in"]))
    inits = [name for name in ("integer", "normal", "uniform", "index", "nan") if _has(dtype, name)]
    for init in inits:
        path = write(
            f'ptx = "copy.ptx"\n[buffers]\n_in = {{ dtype = "{dtype}", shape = [4, 16], init = "{init}" }}\n'
            f'out = {{ dtype = "{dtype}", shape = [4, 16], init = 1 }}\n[launch]\ngrid = 1\n'
            f'block = {64 * _bits(dtype) // 8}\narguments = ["out", "_in"]\n'
            '[expect]\nout = { value = "_in", exact = true }\n'
        )
        outcome = run(read_launch_file(path))
        assert outcome.passed, init
        values = outcome.contents["out"].astype(np.float64)
        assert len(np.unique(values)) > 1 or init == "nan", init
        if init == "integer":
            assert np.array_equal(values, np.rint(values)) and np.abs(values).max() <= 8
        if dtype == "tf32":
            assert not (outcome.contents["out"].view(np.uint32) & 0x1FFF).any() or init == "nan"


def _bits(dtype: str) -> int:
    return {"e2m1": 4, "e3m2": 6, "e2m3": 6}.get(dtype) or 8 * np.dtype(TYPES[dtype]).itemsize


def _has(dtype: str, init: str) -> bool:
    small = dtype in ("e2m1", "e3m2", "e2m3")
    if init == "nan":
        return (dtype[0] not in "su" and not small) or dtype == "ue8m0"
    return init != "index" or not (small or dtype == "ue8m0")


def test_packed_types_lie_in_memory_as_the_hardware_has_them(write, tmp_path):
    """Bytes counted by hand: e2m1 has 4 bits, 1 = 0b0010, 6 = 0b0111; e3m2 6 bits, 1 = 0b001100, -2 = 0b110000."""
    np.save(tmp_path / "four.npy", np.array([1, 6, -1, 0], np.float32))
    np.save(tmp_path / "six.npy", np.array([1, -2, 0, 1], np.float32))
    for dtype, name, expected in [("e2m1", "four", [0x72, 0x0A]), ("e3m2", "six", [0x0C, 0x0C, 0x30])]:
        (tmp_path / "copy.ptx").write_text(source(COPY, parameters=["u64 in"]))
        path = write(
            f'ptx = "copy.ptx"\n[buffers]\nx = {{ dtype = "{dtype}", init = "{name}.npy" }}\n'
            f'out = {{ dtype = "u8", shape = {len(expected)}, init = 0 }}\n[launch]\ngrid = 1\n'
            f'block = {len(expected)}\narguments = ["out", "x"]\n'
        )
        assert run(read_launch_file(path)).contents["out"].tolist() == expected


UNWRITTEN = """ptx = "unwritten.ptx"
[buffers]
out = {{ dtype = "i32", shape = [32], init = "zeros" }}
[launch]
grid = 1
block = 32
arguments = ["out"]
[expect]
out = "out + {value}"
"""


@pytest.mark.parametrize(
    ("mode", "value", "code"), [("fault", 0, 3), ("zero", 0, 0), ("report", -1, 0), ("zero", 1, 4)]
)
def test_memory_that_nobody_has_written_is_read(mode, value, code, write):
    """An error by default, else a value and a warning that is shown with a right result, too; so says verify."""
    text = UNWRITTEN.format(value=value)
    read = "mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; ld.shared.b32 %r1, [%r4];"
    write(source(read + STORE_R1 + "ret;", WORDS), "unwritten.ptx")
    file = write(text)
    done = command(file, "--emulate", f"uninitialised={mode}")
    assert done.exit_code == code
    assert "is read but was never written" in " ".join(done.output.split())
    checked = CliRunner().invoke(main, ["verify", str(file), "--schedules", "1", "--emulate", f"uninitialised={mode}"])
    assert checked.exit_code == (4 if code == 3 else code) and "never written" in " ".join(checked.output.split())


EXAMPLE = ROOT / "docs" / "examples" / "reverse.toml"


@pytest.mark.slow
def test_a_launch_file_on_the_gpu_of_this_machine_which_is_emulated_here(tmp_path):
    """The process has a GPU with the CUDA driver's interface, and `run` launches there through it."""
    emugpu = [sys.executable, "-m", "emugpu"]
    words = ["exec", "--gpu", "h200", "--", *emugpu, "run", str(EXAMPLE), "--device", "gpu", "-o", f"{tmp_path}/out/"]
    done = subprocess.run([*emugpu, *words], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0 and "reverse.toml: PASSED" in done.stdout, done.stderr
    assert "compute capability 9.0" in done.stdout and "1 launch" in done.stderr and "counter" not in done.stdout
    x, y = (np.load(tmp_path / "out" / f"{name}.npy") for name in "xy")
    assert np.array_equal(y, x.reshape(3, 64)[:, ::-1].reshape(-1))


def test_what_a_gpu_would_not_heed_is_refused():
    words = ["--schedules", "2", "--emulate", "max-steps=9", "--emulate", "ptxas=false"]
    done = command(EXAMPLE, "--device", "gpu", *words)
    assert done.exit_code == 2 and done.stderr.startswith("emugpu: error: --schedules, --emulate max-steps: only the")


@pytest.mark.parametrize("end", ["(", "{", "ld.param", "ret;"])
def test_a_file_that_ends_in_the_middle_of_a_kernel_is_bad_input(write, tmp_path, end):
    text = source("ret;", parameters=["u64 out"])
    (tmp_path / "cut.ptx").write_text(text[: text.index(end) + len(end)])
    launch = write('ptx = "cut.ptx"\nlaunch = { grid = 1, block = 32, arguments = [1, 2] }\n')
    line = text[: text.index(".entry")].count("\n") + 1
    for result in (command(launch), CliRunner().invoke(main, ["ptx", "init", str(tmp_path / "cut.ptx")])):
        assert result.exit_code == 2 and result.stderr == (
            f"emugpu: error: {tmp_path / 'cut.ptx'}: kernel 'kernel', PTX line {line}, has no closing brace: the file "
            "ends in the middle of it; write the whole file\n"
        )
    assert command(launch, "--emulate", "ptxas=false").exit_code == 2


def test_files_may_begin_with_a_byte_order_mark(write, tmp_path):
    (tmp_path / "marked.ptx").write_text("\ufeff" + source("ret;"))
    launch = write('\ufeffptx = "marked.ptx"\nlaunch = { grid = 1, block = 32, arguments = ["null"] }\n')
    assert command(launch).exit_code == 0


def test_several_launch_files_and_one_that_cannot_run(write, tmp_path):
    good, wrong = write(SGEMM_LAUNCH, "good.toml"), write(SGEMM_LAUNCH.replace("A @ B", "A @ B + 1"), "wrong.toml")
    lost = write(SGEMM_LAUNCH.replace('"B", "C", 32', '"B", "null", 32'), "lost.toml")
    done = command(good, lost, "-o", tmp_path / "out.json", "-o", f"{tmp_path}/kept/")
    assert done.exit_code == 3 and "good.toml: PASSED" in done.stdout and "lost.toml: launch: Fault" in done.stderr
    [record] = json.loads((tmp_path / "out.json").read_text())
    assert record["validation"]["passed"] and (tmp_path / "kept" / "good" / "C.npy").exists()
    done = command(good, lost, wrong, "-o", "-", "-o", f"{tmp_path}/both/")
    assert done.exit_code == 4 and [one["validation"]["passed"] for one in json.loads(done.stdout)] == [True, False]
    assert {path.parent.name for path in (tmp_path / "both").rglob("C.npy")} == {"good", "wrong"}
    unread = command(good, tmp_path / "none.toml")
    assert unread.exit_code == 2 and unread.stdout == ""


def test_a_full_disk_leaves_no_half_of_a_buffer(write, tmp_path, monkeypatch):
    def save(file, values):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", save)
    done = command(write(SGEMM_LAUNCH), "-o", f"{tmp_path}/out/")
    assert done.exit_code == 3 and "No space left on device" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_the_buffers_of_launch_files_of_one_name_are_kept_apart(write, tmp_path):
    """As of the launches that emugpu exec -o DIR/ has kept: DIR/launch-0/launch.toml and DIR/launch-1/launch.toml."""
    for n in range(2):
        (tmp_path / f"launch-{n}").mkdir()
    files = [write(SGEMM_LAUNCH.replace("seed = 3", f"seed = {n}"), f"launch-{n}/launch.toml") for n in range(2)]
    assert command(*files, "-o", f"{tmp_path}/out/").exit_code == 0
    first, second = (np.load(tmp_path / f"out/launch-{n}/launch/B.npy") for n in range(2))
    assert not np.array_equal(first, second)
