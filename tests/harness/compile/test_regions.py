"""Names of parts of shared memory come from the plan's data, and not from what it says to people."""

from __future__ import annotations

from dataclasses import replace

from harness.compile.artifacts import plan_json, regions_of
from harness.compile.config import make_config
from harness.compile.planner import parse_plan
from harness.problem import Shape


def test_the_wording_for_people_changes_no_name():
    config = make_config("kernel8", arch="sm_100a", stages=4)
    plan = parse_plan(plan_json(config, Shape(512, 512, 512)))
    regions = regions_of(plan)
    names = [region.name for region in regions]
    assert names[:8] == [f"{operand} stage {n}" for operand in "AB" for n in range(4)]
    assert names[8:10] == ["C tile 0", "C tile 1"] and "full[3]" in names and "barriers" not in names
    ends = [region.offset + region.nbytes for region in regions[:10]]
    assert [region.offset for region in regions[1:10]] == ends[:-1], "one behind the other"
    reworded = replace(plan, shared_memory=tuple(replace(part, detail="many") for part in plan.shared_memory))
    assert regions_of(reworded) == regions
