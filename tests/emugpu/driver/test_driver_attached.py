"""The emulated GPU of a Python process, and the plugin for pytest; both in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ptx_programs import STORE_R1, WORDS, source

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
SHARED = "mov.b32 %r4, words; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r4; st.shared.b32 [%r3], %r0;"
NEIGHBOUR = "xor.b32 %r5, %r3, 128; ld.shared.b32 %r1, [%r5];" + STORE_R1 + "ret;"
KERNELS = {
    "right": SHARED + "bar.sync 0;" + NEIGHBOUR,
    "racy": SHARED + "xor.b32 %r5, %r3, 0; ld.shared.b32 %r1, [%r5]; xor.b32 %r6, %r3, 128; ld.shared.b32 %r2, [%r6];"
    "bar.sync 0;" + NEIGHBOUR,
    "fault": "ld.global.b32 %r1, [%rd0+4096];" + STORE_R1 + "ret;",
    "long": "mov.b32 %r2, 0; LOOP: add.s32 %r2, %r2, 1; setp.lt.s32 %p0, %r2, 1000000; @%p0 bra LOOP;"
    "xor.b32 %r1, %r0, 32;" + STORE_R1 + "ret;",
    "endless": "mov.b32 %r1, 0; LOOP: add.s32 %r1, %r1, 1; bra LOOP;",
}
PROGRAM = """
from driver_client import *

start()
texts = {kernels!r}
out = upload((c_uint * 64)())

def launched(name):
    kernel, = load(texts[name], "kernel")
    launch(kernel, 1, 64, out)
    call("cuCtxSynchronize")
    return download(out, c_uint, 64)

RIGHT = [*range(32, 64), *range(32)]
"""


@pytest.fixture
def module(tmp_path):
    """A module `kernels` beside the program, with `launched(name)` and what is right."""
    texts = {name: source(body, WORDS) for name, body in KERNELS.items()}
    (tmp_path / "kernels.py").write_text(PROGRAM.replace("{kernels!r}", repr(texts)))
    return tmp_path


def variables(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS / "support", folder)))
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of this run
    return {**own, "PYTHONPATH": path}


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, cwd=folder, env=variables(folder), capture_output=True, text=True, timeout=120)


def python(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text("from emugpu import emulated_gpu\n" + textwrap.dedent(body))
    return run(folder, "program.py")


def pytest_of(folder: Path, body: str, *options: object) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(body))
    return run(folder, "-m", "pytest", "-p", "emugpu.pytest_plugin", "-p", "no:cacheprovider", "-q", *options)


# ---- Python ----


def test_each_section_has_its_verdict(module):
    done = python(
        module,
        """
        with emulated_gpu("b200", check=True) as gpu:
            from kernels import *
            assert launched("right") == RIGHT
            assert ctypes.CDLL("libcublas.so.12").cublasCreate_v2 and ctypes.CDLL("libcublas.so.13").cublasCreate_v2
            print(gpu.verdict.word, len(gpu.launches), gpu.counters["ctas"])
        for name in ("racy", "fault", "right"):
            with emulated_gpu("b200", check=True) as gpu:
                try:
                    launched(name)
                except CudaError as error:
                    print(error)
            print(gpu.verdict.word, {finding.rule for finding in gpu.findings if finding.severity == "error"})
        with emulated_gpu("b200") as gpu:
            assert launched("racy") == RIGHT
        print(gpu.verdict.lines()[-2:])
        """,
    )
    assert done.stdout.splitlines() == [
        "clean 1 1",
        "racy {'race-shared'}",
        "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS",
        "wrong set()",
        "clean set()",
        "['1 launch, 1 schedule; compared: what the program compares itself; the synchronisation was not checked', "
        "'this program: clean']",
    ], done.stderr


@pytest.mark.parametrize("asks", [True, False])
def test_a_library_that_lacks_a_private_table_may_fail_in_a_later_section(module, asks):
    done = python(
        module,
        f"""
        for fails in (False, True):
            try:
                with emulated_gpu("b200", check=True) as gpu:
                    from kernels import *
                    if not fails and {asks}:
                        assert result_of("cuGetExportTable", byref(c_uint64()), bytes(16)) == "CUDA_ERROR_NOT_FOUND"
                    launched("right")
                    if fails:
                        raise RuntimeError("the runtime has not started")
            except RuntimeError:
                pass
            print(gpu.verdict.word)
        """,
    )
    assert done.stdout.splitlines() == ["clean", "incomplete" if asks else "wrong"], done.stderr


def test_a_wrong_result_is_wrong_though_a_private_table_was_missing(module):
    done = pytest_of(
        module,
        """
        import pytest

        @pytest.fixture(autouse=True)
        def launches(emulated_gpu):
            from kernels import RIGHT, byref, c_uint64, launched, result_of
            assert result_of("cuGetExportTable", byref(c_uint64()), bytes(16)) == "CUDA_ERROR_NOT_FOUND"
            assert launched("right") == RIGHT

        def test_compares():
            assert 1 == 2

        def test_starts_the_runtime():
            raise RuntimeError("the runtime has not started")
        """,
        "--emulated-gpu=b200",
        "--check",
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(("wrong: ", "incomplete: "))]
    assert [line.partition(" for lib")[0] for line in told] == [
        "wrong: the test failed: AssertionError: assert 1 == 2",
        "incomplete: the test failed: RuntimeError: the runtime has not started",
        f"incomplete: perhaps because cuGetExportTable has no table {32 * '0'}",
    ], done.stdout


def test_an_exception_is_wrong_and_no_launch_is_incomplete(module):
    done = python(
        module,
        """
        for names in ((), ("right",)):
            try:
                with emulated_gpu() as gpu:
                    from kernels import *
                    for name in names:
                        launched(name)
                    raise KeyError("no")
            except KeyError:
                print(gpu.verdict.word, gpu.verdict.reasons[0])
        """,
    )
    reason = "the program raised KeyError: 'no'"
    assert done.stdout.splitlines() == [f"incomplete ('incomplete', \"{reason}\")", f"wrong ('wrong', \"{reason}\")"]


def test_what_a_library_unloads_at_the_very_end_is_answered_as_by_a_driver_that_shuts_down(module):
    """CuTe DSL and TVM unload their modules then, and TVM ends the process by abort at any other error."""
    done = python(
        module,
        """
        import atexit, ctypes
        atexit.register(lambda: print(ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()))
        from emugpu import emulated_gpu
        with emulated_gpu("b200"):
            from kernels import *
            assert launched("right") == RIGHT
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")  # CUDA_ERROR_DEINITIALIZED


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("emulated_gpu('b400').__enter__()", "GPU 'b400': must be one of b200, b300, h100, h200, rtx5090, spark"),
        ("emulated_gpu(schedule='lifo').__enter__()", "schedule 'lifo': must be fifo, random, declining or reversed"),
        ("emulated_gpu(limit='9').__enter__()", "limit '9': must be a finite number above 0; give seconds"),
        ("emulated_gpu(timeout=-1).__enter__()", "timeout -1: must be a finite number above 0; give seconds"),
        ("emulated_gpu(limit=float('inf')).__enter__()", "limit inf: must be a finite number above 0; give seconds"),
        ("with emulated_gpu(): emulated_gpu('b200').__enter__()", "emulated_gpu inside emulated_gpu"),
        ("with emulated_gpu(): pass\nemulated_gpu('h200').__enter__()", "this process has an emulated b200 already"),
        (
            "from emugpu.driver.library import libraries\nimport ctypes\n"
            "ctypes.CDLL(str(libraries() / 'libcuda.so.1'))\nemulated_gpu().__enter__()",
            "libcuda.so.1 is loaded already; ask for the emulated GPU before anything uses CUDA",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(tmp_path, body, said):
    done = python(tmp_path, body)
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("emugpu.errors.UsageProblem: ") and said in last


SECTION = """
from emugpu import emulated_gpu
with emulated_gpu("b200") as gpu:
    from kernels import *
    try:
        print("begins", flush=True)
        launched("endless")
    finally:
        print(result_of("cuCtxSynchronize"))
        print(gpu.verdict.reasons)
"""
INTERRUPTED = """
import os
from kernels import *

def test_endless():
    os.write(1, b"begins\\n")
    launched("endless")
"""


@pytest.mark.parametrize(
    ("file", "body", "command", "code", "says"),
    [
        ("program.py", SECTION, ["program.py"], -signal.SIGINT, "'kernel' was ended by Ctrl-C (SIGINT)"),
        ("test_it.py", INTERRUPTED, ["-m", "pytest", "-s", "--emulated-gpu", "b200"], 2, "!! KeyboardInterrupt !!"),
    ],
)
def test_ctrl_c_ends_the_launch_and_then_the_program(module, file, body, command, code, says):
    """It reaches the emulated GPU, too, which goes on answering."""
    (module / file).write_text(body)
    plugin = ["-p", "emugpu.pytest_plugin"] if "pytest" in command else []
    process = subprocess.Popen(
        [sys.executable, *command, *plugin], cwd=module, env=variables(module), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for line in process.stdout:
        if "begins" in line:
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code and says in out, out + err
    assert "process" not in err and "was ended by Ctrl-C (SIGINT)" in err, err


def test_ctrl_c_between_launches_ends_no_later_one(module):
    done = python(
        module,
        """
        import os, signal, time
        os.setsid()
        with emulated_gpu("b200") as gpu:
            from kernels import *
            launched("right")
            try:
                os.killpg(0, signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                time.sleep(0.5)
            print(launched("long") == RIGHT, gpu.verdict.word)
        """,
    )
    assert done.stdout == "True clean\n", done.stderr


# ---- pytest ----

SUITE = """
    import pytest
    from kernels import *

    def test_right(emulated_gpu):
        assert launched("right") == RIGHT
        assert len(emulated_gpu.launches) == 1 and not emulated_gpu.findings

    def test_fault():
        with pytest.raises(CudaError):
            launched("fault")

    def test_after_it():
        assert launched("right") == RIGHT

    def test_racy():
        assert launched("racy") == RIGHT

    @pytest.mark.emulated_gpu(verdict="racy", check=True)
    def test_expected():
        assert launched("racy") == RIGHT

    @pytest.mark.emulated_gpu(verdict="racy")
    def test_not_as_expected():
        assert launched("right") == RIGHT

    def test_refused():
        call("cuGraphCreate", 0, 0) if result_of("cuGraphCreate", 0, 0) == "CUDA_SUCCESS" else launched("right")

    def test_elsewhere():
        assert 1 + 1 == 2
"""


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    """Of each test: passed, failed or skipped, and its verdict."""
    found = {}
    for case in ElementTree.parse(folder / "out.xml").getroot().iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "skipped", "error")), "passed")
        words = {each.get("name"): each.get("value") for each in case.iter("property")}
        found[case.get("name")] = outcome, words.get("emulated_gpu", "")
    return found


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_suite_gets_a_verdict_for_each_test(module, workers):
    done = pytest_of(module, SUITE, "--emulated-gpu", "b200", "--check", "--junit-xml", "out.xml", *workers)
    assert outcomes(module) == {
        "test_right": ("passed", "clean"),
        "test_fault": ("failure", "wrong"),
        "test_after_it": ("passed", "clean"),
        "test_racy": ("failure", "racy"),
        "test_expected": ("passed", "racy"),
        "test_not_as_expected": ("failure", "clean"),
        "test_refused": ("skipped", "incomplete"),
        "test_elsewhere": ("passed", ""),
    }, done.stdout + done.stderr
    assert done.returncode == 1
    assert "3 clean, 1 incomplete, 2 racy, 1 wrong" in done.stdout


def test_subtests_share_the_verdict_of_their_test(module):
    suite = """
        import unittest
        from kernels import *

        class TestIt(unittest.TestCase):
            def test_it(self):
                for name in ("right", "racy", "right"):
                    with self.subTest(name):
                        assert launched(name) == RIGHT
        """
    done = pytest_of(module, suite, "--emulated-gpu", "b200", "--check", "--junit-xml", "out.xml")
    assert outcomes(module)["test_it"] == ("failure", "racy"), done.stdout
    assert "\nFAILED (racy) test_it.py::TestIt::test_it" in done.stdout and "\n1 racy\n" in done.stdout


def test_without_check_races_are_not_looked_for_and_that_is_said(module):
    done = pytest_of(module, SUITE, "--emulated-gpu", "b200", "-vv", "-k", "racy or expected or elsewhere")
    assert "test_racy PASSED (clean)" in done.stdout and "test_expected PASSED (racy)" in done.stdout
    assert "test_elsewhere PASSED" in done.stdout
    assert "only marked tests were checked for races" in done.stdout


def test_without_the_option_the_plugin_does_nothing(tmp_path):
    suite = """
        import sys, pytest
        @pytest.mark.emulated_gpu(check=True)
        def test_marked(): assert "emugpu.driver" not in sys.modules and "numpy" not in sys.modules
        def test_fixture(emulated_gpu): pass
        """
    done = pytest_of(tmp_path, suite, "-rs", "--strict-markers")
    assert done.returncode == 0 and "1 passed, 1 skipped" in done.stdout
    assert "needs the emulated GPU: pytest --emulated-gpu b200" in done.stdout


def test_a_test_beyond_its_limit_is_incomplete(module):
    suite = """
        import pytest
        from kernels import *

        def test_long():
            launched("endless")

        def test_after_it():
            assert launched("right") == RIGHT

        @pytest.mark.emulated_gpu(limit=0.2)
        def test_marked():
            launched("endless")
        """
    options = ("--emulated-gpu", "b200", "--emulated-gpu-limit", "0.5", "--junit-xml", "out.xml")
    done = pytest_of(module, suite, *options)
    assert outcomes(module) == {
        "test_long": ("failure", "incomplete"),
        "test_after_it": ("passed", "clean"),
        "test_marked": ("failure", "incomplete"),
    }, done.stdout + done.stderr
    for seconds in ("0.5", "0.2"):
        assert f"the {seconds} seconds that it had are over (limit)" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--check"], "--check looks at launches on the emulated GPU; add --emulated-gpu b200"),
        (["--emulated-gpu-limit", "9"], "--emulated-gpu-limit is that of the emulated GPU; add --emulated-gpu b200"),
        *(
            (
                ["--emulated-gpu", "b200", f"--emulated-gpu-limit={seconds}"],
                f"--emulated-gpu-limit {seconds}: must be finite and above 0; give a test's seconds",
            )
            for seconds in ("0", "-1", "inf", "nan")
        ),
        (["--emulated-gpu", "b400"], "GPU 'b400': must be one of b200, b300, h100, h200, rtx5090, spark"),
        (["--emulated-gpu", "b400", "-n", "1"], "GPU 'b400': must be one of b200, b300, h100, h200, rtx5090, spark"),
        (["--emulated-gpu="], "GPU '': must be one of b200, b300, h100, h200, rtx5090, spark"),
    ],
)
def test_wrong_options_are_said_in_a_line(tmp_path, options, said):
    done = pytest_of(tmp_path, "def test_it(): pass", *options)
    assert done.returncode == 4 and done.stderr.strip() == f"ERROR: {said}"
