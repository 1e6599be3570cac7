"""``harness explain --protocol``: the hand-offs of a kernel, as a run shows them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import harness.cli.main
from emugpu.check.protocol import family

SMALL = ["--shape", "256,256,128", "-c", "cluster=2x1", "--protocol"]
STAGES = ["reads A stage (MMA)", "reads B stage (MMA)", "writes tensor memory (MMA)"]


@pytest.fixture
def explain(series):
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(harness.cli.main.main, ["explain", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_kernel_7_hands_over_stages_the_accumulator_and_buffers_of_c(explain):
    """One pair of CTAs, one tile, two K steps, in steps of 32 columns. 128 rows are two boxes."""
    data = json.loads(explain("kernel7", *SMALL, "-o", "-"))
    found = {handover["barrier"]: handover for handover in data["handovers"]}
    stage_bytes = 2 * (128 + 128) * 64 * 2
    assert found["full"]["arrives"] == {
        "producer: arrive.expect_tx": 2,
        "producer: bytes of a TMA copy": 8,
        "producer: bytes of a TMA copy from another CTA": 8,
    }
    assert (found["full"]["rounds"], found["full"]["bytes"]) == (2, 2 * stage_bytes)
    assert (found["full"]["waits"], found["full"]["gives"]) == (
        {"mma": 2},
        ["writes A stage (TMA copy)", "writes B stage (TMA copy)"],
    )
    assert found["empty"]["arrives"] == {"mma: tcgen05.commit": 2, "mma: tcgen05.commit at another CTA": 2}
    assert (found["empty"]["gives"], found["empty"]["waits"]) == (STAGES, {"producer": 4})
    assert (found["accumulator"]["waits"], found["accumulator"]["gives"]) == ({"epilogue": 8}, STAGES)
    assert {"writes C tile (stmatrix)", "reads C tile (TMA store)"} <= set(found["barrier 1"]["gives"])
    assert found["cluster barrier"]["rounds"] == 3
    # Eight steps of 32 columns, each fenced by the four warps of two CTAs.
    assert data["fences"]["epilogue: fence.proxy.async.shared::cta"] == 8 * 4 * 2


def test_a_number_that_is_sent_is_no_tma_copy(explain):
    """Two clusters of two CTAs, each with one tile: both CTAs are told once, that there is no other."""
    dynamic = ["kernel8", "-c", "arch=sm_90a", "-c", "scheduler=dynamic", *SMALL]
    data = json.loads(explain(*dynamic, "-o", "-"))
    (answer,) = [handover for handover in data["handovers"] if handover["barrier"] == "answer full"]
    assert answer["arrives"] == {
        "scheduler: arrive.expect_tx": 4,
        "scheduler: bytes of a st.async": 2,
        "scheduler: bytes of a st.async from another CTA": 2,
    }
    assert [what for what in answer["gives"] if what.endswith("(st.async)")] == answer["gives"]


def test_as_text(explain):
    text = explain("kernel7", *SMALL)
    assert "full: 2 phases, 131,072 bytes counted" in text
    assert "  signals  2 x mma: tcgen05.commit at another CTA" in text
    assert max(map(len, text.splitlines())) <= 110
    assert all(name in text for name in ("full", "empty", "accumulator", "cluster barrier", "2 x mma"))


def test_arrays_are_shown_as_one():
    names = {"full[2]": "full", "A stage 3": "A stage", "accumulator full": "accumulator full", "C tile": "C tile"}
    assert {name: family(name) for name in names} == names
