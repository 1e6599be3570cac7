"""Mojo programs on the emulated GPU: their own host code makes the tensor maps, launches and checks."""

import pytest
from driver_programs import PROGRAMS, find_mojo, mojo_program, needs_mojo, run

# One worker, so that none of them is compiled twice.
pytestmark = [
    needs_mojo,
    pytest.mark.slow,
    pytest.mark.xdist_group("Mojo programs"),
    pytest.mark.nightly_unless_changed("emugpu/driver/", "tests/data/programs/mojo/"),
]
PRINTED = {
    "vector_add": "vector add on NVIDIA {gpu} of 1000 elements: 0 wrong\n",
    "tma_copy": "TMA copy of 9 tiles: 0 wrong\n",
    "cluster_share": "cluster share of 3 tiles: 0 wrong\n",
    "tcgen05_gemm": "tcgen05 GEMM of 256 x 128 x 192 : 0 wrong\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_executables_on_a_b200(capfd, name):
    done = run(capfd, "b200", mojo_program(name))
    assert done.out == PRINTED[name].format(gpu="B200")
    assert done.code == 0 and not done.log.failure
    assert len(done.log.launches) == 1 and not done.log.launches[0].error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tma_copy", "cluster_share"])
def test_executables_on_an_h200(capfd, name):
    done = run(capfd, "h200", mojo_program(name, "sm_90a"))
    assert (done.out, done.code) == (PRINTED[name].format(gpu="H200"), 0)


def test_what_the_driver_saw(capfd):
    (launch,) = run(capfd, "b200", mojo_program("cluster_share")).log.launches
    assert (launch.grid, launch.cluster, launch.block) == ((6, 1, 1), (2, 1, 1), (64, 1, 1))
    # Each of the six CTAs loads half a tile, which TMA writes to both CTAs of its cluster.
    assert launch.counters.tma_global_bytes_read == 6 * 4096
    assert launch.counters.tma_shared_bytes_written == 2 * 6 * 4096


@pytest.mark.slow
def test_mojo_run(capfd):
    """Compiled and run by the compiler, which is the program then."""
    source = PROGRAMS / "mojo/vector_add.mojo"
    done = run(capfd, "b200", find_mojo(), "run", "--target-accelerator", "sm_100a", source)
    assert (done.out, done.code) == (PRINTED["vector_add"].format(gpu="B200"), 0)


def test_elements_that_nobody_wrote(capfd):
    """The kernel adds 20 elements more than there are, behind the buffers in the memory that MAX has mapped."""
    done = run(capfd, "b200", mojo_program("vector_add"), "beyond", uninitialised="fault")
    assert done.code != 0
    assert "ld.global.b32" in done.err and "is read but was never written" in done.err
    assert "CUDA_ERROR_LAUNCH_FAILED" in done.err
    assert done.log.launches[0].result == "CUDA_ERROR_LAUNCH_FAILED"


def test_a_tile_that_nobody_waited_for(capfd):
    """In time under one schedule, and too late under others."""
    found = [run(capfd, "b200", mojo_program("tma_copy"), "hasty")]
    found += [run(capfd, "b200", mojo_program("tma_copy"), "hasty", schedule="random", seed=n) for n in range(3)]
    assert any(one.code != 0 for one in found)
    checked = run(capfd, "b200", mojo_program("tma_copy"), "hasty", check=True)
    assert any(finding.severity == "error" for finding in checked.log.launches[0].findings)
