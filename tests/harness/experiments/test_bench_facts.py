"""Exact figures: one instruction more is found, and named."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from bench_support import bench_record

from harness.experiments.facts import FigureChange, changes, count_instructions, not_compared, static_facts
from harness.experiments.suite import SuiteCase
from harness.experiments.verdict import exit_code, judge
from harness.problem import Shape
from harness.run.case import Request
from harness.run.runner import run

SHAPE = Shape(256, 512, 128)
CASE = SuiteCase("kernel6", SHAPE, "index", asked=(("dtype", "bf16"), ("cluster", (2, 1))))


def measured(artifact) -> dict:
    outcome = run(Request(artifact.config, SHAPE, "index"), artifact)
    return {**bench_record(), **outcome.record, "facts": static_facts(artifact, outcome.plan)}


def with_ptx(artifact, folder, pattern: str, replacement: str):
    """The same kernel with altered PTX."""
    altered, count = re.subn(pattern, replacement, artifact.ptx, count=1)
    assert count == 1 and altered != artifact.ptx
    shutil.copy(artifact.folder / "artifact.json", folder)
    (folder / "kernel.ptx").write_text(altered)
    return replace(artifact, folder=folder)


@pytest.fixture(scope="module")
def record(artifacts):
    return measured(artifacts[2, 1])


def test_the_same_kernel_run_again_is_the_same(artifacts, record):
    again = measured(artifacts[2, 1])
    assert changes(record, again) == []
    assert judge(CASE, again, record).verdict == "SAME"


RACE = {"rule": "race-shared", "severity": "error", "message": "two writes"}
SOUND = {"schedules": 2, "errors": 0, "warnings": 1, "findings": [], "failure": None, "correct": True}


@pytest.mark.parametrize(
    ("found", "passed", "verdict", "reason", "code"),
    [
        ({}, True, "SAME", "", 0),
        ({"errors": 2, "findings": [RACE]}, True, "UNSOUND", "2 errors of synchronisation: race-shared: two writes", 1),
        ({"failure": "Deadlock", "correct": None}, True, "UNSOUND", "the check did not come to its end: Deadlock", 1),
        ({"correct": False}, True, "WRONG", "the output is wrong under a schedule of the check", 4),
        (
            {"errors": 1, "findings": [RACE], "correct": False},
            False,
            "WRONG",
            "7 of 262,144 elements are wrong; 1 error of synchronisation: race-shared: two writes",
            4,
        ),
    ],
)
def test_what_the_checker_found_is_part_of_the_verdict(found, passed, verdict, reason, code):
    judged = judge(CASE, bench_record("2", passed=passed, soundness={**SOUND, **found}), bench_record("1"))
    assert (judged.verdict, judged.reason, exit_code([judged])) == (verdict, reason, code)


def test_one_more_instruction_in_the_epilogue(artifacts, record, tmp_path):
    store = r"(\tcp\.async\.bulk\.commit_group;)"
    altered = measured(with_ptx(artifacts[2, 1], tmp_path, store, r"\tfence.proxy.async.shared::cta;\n\1"))
    found = changes(record, altered)
    named = {change.name: change.difference for change in found}
    assert named["PTX fence.proxy.async.shared::cta"] == 1
    assert named["PTX instructions"] == 1
    assert named["executed fence"] == 4  # one thread of each of the four CTAs stores the tile
    assert set(named) == {
        "PTX fence.proxy.async.shared::cta",
        "PTX instructions",
        "instructions executed",
        "executed fence",
    }
    judged = judge(CASE, altered, record)
    assert judged.verdict == "WORSE" and exit_code([judged]) == 1
    assert judge(CASE, record, altered).verdict == "BETTER"


def test_one_stage_less(record):
    facts = record["facts"]
    stages = {**facts, "stages": facts["stages"] - 1}
    [change] = changes(record, {**record, "facts": stages})
    assert str(change) == f"stages {facts['stages']} -> {facts['stages'] - 1}"
    assert change.direction == "worse"


def test_instructions_are_counted_with_their_modifiers(artifacts):
    counts = count_instructions(artifacts[2, 1].ptx)
    text = artifacts[2, 1].ptx
    for opcode in ("mbarrier.try_wait.parity.shared::cta.b64", "stmatrix.sync.aligned.m8n8.x4.shared.b16"):
        assert counts[opcode] == len(re.findall(rf"\s{re.escape(opcode)} ", text)) > 0


def test_better_or_worse_is_said_only_where_it_is_known():
    assert FigureChange("registers", 64, 65).direction == "worse"
    assert FigureChange("registers", 65, 64).direction == "better"
    assert FigureChange("stages", 6, 5).direction == "worse"
    assert FigureChange("PTX add.s32", 1, 2).direction == "changed"
    assert str(FigureChange("PTX add.s32", None, 1200)) == "PTX add.s32 none -> 1,200"


def test_causes_come_before_effects():
    old = bench_record()
    new = bench_record(
        facts={"ptx_instructions": {"add.s32": 11, "ret": 1}, "stages": 4, "dynamic_shared_bytes": 900},
        counters={"instructions": {"alu": 101, "tma": 4}, "tma_global_bytes_read": 4096, "tmem_columns": 256},
    )
    assert [change.name for change in changes(old, new)] == [
        "stages",
        "dynamic shared bytes",
        "PTX add.s32",
        "PTX instructions",
        "instructions executed",
        "executed alu",
    ]


def test_what_was_not_found_out_is_not_a_change():
    known = bench_record()
    unknown = bench_record(ptx={"sha256": "0", "ptxas": {"error": "ptxas is not on PATH"}})
    for old, new in ((known, unknown), (unknown, known)):
        assert changes(old, new) == []
        assert not_compared(old, new) == ["registers and spills"]
    judged = judge(CASE, unknown, known)
    assert judged.verdict == "SAME"
    assert "not compared: registers and spills" in judged.notes


def test_a_counter_that_an_older_emulator_lacked_is_no_change():
    old = bench_record("1")
    new = bench_record("2", counters={**old["counters"], "new_counter": 7, "tmem_columns": 512})
    assert [change.name for change in changes(old, new)] == ["tmem columns"]
    assert [change.name for change in changes(new, old)] == ["tmem columns"]


def test_another_compiler_is_said():
    other = bench_record(toolchain={"mojo": "1.3.0", "max": "26.7.0", "ptxas": "13.0"})
    assert judge(CASE, other, bench_record()).notes == ("mojo 1.2.0 -> 1.3.0",)


def test_another_way_of_timing_is_said():
    through_max = bench_record(launches=[{"name": "kernel6"}])
    assert judge(CASE, bench_record(), through_max).notes == (
        "timed through MAX -> from CUDA graphs; below 50 us the two differ",
    )
    assert judge(CASE, through_max, through_max).notes == ()
