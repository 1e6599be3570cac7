"""CUDA C++ programs, built by nvcc, on the emulated H200: they print and return what they do on a real one.

tests/data/programs/cuda/h200 holds what a real one did.
"""

import re

import pytest
from driver_programs import PROGRAMS, cuda_program, needs_nvcc, run

pytestmark = [needs_nvcc, pytest.mark.slow]
AS_RECORDED = {
    "saxpy": ["saxpy"],
    "gemm": ["gemm"],
    "cluster": ["cluster"],
    "cluster_8x2": ["cluster", "8", "2"],
    "cluster_16x1": ["cluster", "16", "1"],
    "prints": ["prints"],
    "runtime": ["runtime"],
    "refusals": ["refusals"],
    "asserts": ["asserts"],
    **{f"faults_{which}": ["faults", which] for which in ("beyond", "misaligned", "null", "trap", "nothing")},
}
"""Program and arguments by recording."""


def recorded(name):
    """(exit code, standard output, standard error) on the H200."""
    text = (PROGRAMS / "cuda/h200" / f"{name}.txt").read_text()
    code, out, err = re.fullmatch(
        r"exit code (\d+)\n--- standard output\n(.*)--- standard error\n(.*)", text, re.S
    ).groups()
    return int(code), out, err


@pytest.mark.parametrize("name", AS_RECORDED)
def test_what_a_program_prints_and_returns(capfd, name):
    program, *arguments = AS_RECORDED[name]
    done = run(capfd, "h200", cuda_program(program), *arguments)
    code, out, err = recorded(name)
    assert done.out == out
    assert done.code == code
    assert err.strip() in done.err
    assert not done.log.failure


def test_a_write_just_beyond_is_found(capfd):
    """A real GPU does not notice, and the recording says so."""
    assert recorded("faults_just-beyond")[0] == 0
    done = run(capfd, "h200", cuda_program("faults"), "just-beyond")
    assert done.code == 1
    assert "synchronize: cudaErrorIllegalAddress (700): an illegal memory access was encountered\n" in done.out
    assert "later: cudaErrorIllegalAddress\n" in done.out
    assert "0x800000100000 is outside every allocation" in done.err


def test_a_deadlock_is_a_launch_that_timed_out(capfd):
    """A real GPU never returns from it."""
    done = run(capfd, "h200", cuda_program("faults"), "deadlock")
    assert done.code == 1
    assert "synchronize: cudaErrorLaunchTimeout (702)" in done.out
    assert "pending: 1 of 1 arrivals, last arrival: nobody" in done.err


def test_what_the_driver_saw(capfd):
    done = run(capfd, "h200", cuda_program("gemm"), 130, 70, 200)
    assert done.out == "gemm of 130 x 70 x 200: 0 wrong\n"
    (launch,) = done.log.launches
    assert (launch.grid, launch.block, launch.dynamic_shared) == ((2, 3, 1), (128, 1, 1), 49152)
    # Six CTAs with four steps along K, a box of A and one of B in each.
    assert launch.counters.tma_loads == 6 * 4 * 2
    assert launch.counters.tma_shared_bytes_written == 6 * 4 * 2 * 8192


def test_machine_code_alone_and_another_gpu(capfd):
    """PTX for sm_90a runs on no B200."""
    done = run(capfd, "b200", cuda_program("saxpy"))
    assert done.code != 0
    assert "has PTX for sm_90a, and the emulated GPU is sm_100" in done.err
    assert done.log.failure


def test_a_reset_loads_modules_anew_and_managed_memory_is_shared(capfd):
    """Nobody has recorded this one: what it prints follows from the CUDA Runtime API."""
    done = run(capfd, "h200", cuda_program("resets"))
    first, reset, second, managed, values, freed = done.out.splitlines()
    assert first == "no error, last 310, calls 101" and reset == "reset: no error"
    assert second == "no error, last 620, calls 102"
    assert managed == "managed: no error" and freed == "free: no error"
    assert values == "11 341, type 3"
    assert done.code == 0 and not done.log.failure
