"""Sums that others saw on a B200: the file that comes along, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emugpu.errors import UsageProblem
from harness.model.silicon.sums import confront_sums
from harness.paths import ROOT

SUMS = ROOT / "harness" / "model" / "silicon" / "b200" / "sums.json"
CASES = json.loads(SUMS.read_text())


def test_all_sums_that_come_along_are_those_of_a_b200():
    answer = confront_sums(SUMS)
    assert (answer.cases, answer.different, answer.refused) == (29, 0, 0)
    assert answer.names_different == answer.names_refused == () and answer.file == str(SUMS)


def confronted(tmp_path: Path, content: object):
    path = tmp_path / "sums.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return confront_sums(path)


def test_sums_with_other_words_are_named(tmp_path):
    changed = {**CASES[0], "d": CASES[0]["d"] ^ 1}
    answer = confronted(tmp_path, [CASES[1], changed, {**changed, "kind": "f64"}, *CASES[2:]])
    assert (answer.cases, answer.different, answer.refused) == (30, 1, 1)
    assert answer.names_different == ("tf32-1: 0xfc347e7d was seen, 0xfc347e7c comes out",)
    assert answer.names_refused == ("tf32-1: no kind is called f64",)


FP4 = next(case for case in CASES if case["kind"] == "mxf4nvf4")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({**CASES[0], "mask": [1]}, "what mask means is not known"),
        ({**CASES[0], "a_type": "f16"}, "kind::tf32 has no f16 times tf32 in f32"),
        ({**CASES[0], "d_type": "f16"}, "kind::tf32 has no tf32 times tf32 in f16"),
        ({**CASES[1], "d_type": "f16"}, "kind::f16 has no bf16 times bf16 in f16"),
        ({**CASES[0], "saturate": True}, "kind::tf32 has no tf32 times tf32 in f32, saturated"),
        ({**CASES[0], "a": [0] * 16, "b": [0] * 16}, "A and B have 16 elements; kind::tf32 takes 8"),
        ({**CASES[0], "scale_type": "ue8m0", "scale_vec": 1}, "kind::tf32 has no 0 factors of type ue8m0"),
        ({**FP4, "scale_type": "e5m2"}, "kind::mxf4nvf4 has no 4 factors of type e5m2 in a row, with scale_vec 4"),
        ({**FP4, "scale_a": [1]}, "kind::mxf4nvf4 has no 4 factors of type ue4m3 in a row, with scale_vec 4"),
        ({k: v for k, v in FP4.items() if k != "scale_vec"}, "in a row, with scale_vec None"),
    ],
)
def test_sums_that_no_instruction_has_are_refused(case, reason, tmp_path):
    answer = confronted(tmp_path, [case])
    assert (answer.different, answer.refused) == (0, 1)
    assert reason in answer.names_refused[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ({}, "holds a JSON dict; it must be a JSON list of sums"),
        ([1], "entry 0 is a JSON int"),
        ([{**CASES[0], "name": 3}], "name of 3 is 3; it must be a text"),
        ([{}], "kind of entry 0 is missing; it must be a text"),
        ([{**CASES[0], "d": None}], "d of tf32-1 is null; it must be a 32-bit word"),
        ([{**CASES[0], "c": -1}], "c of tf32-1 is -1; it must be a 32-bit word"),
        ([{**CASES[0], "c": True}], "c of tf32-1 is true; it must be a 32-bit word"),
        ([{**CASES[0], "b": [1 << 32]}], "b of tf32-1 is [4294967296]; it must be a list of 32-bit words"),
    ],
)
def test_files_of_another_form_are_one_line(content, said, tmp_path):
    with pytest.raises(UsageProblem) as problem:
        confronted(tmp_path, content)
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(UsageProblem, match="cannot be read: No such file"):
        confront_sums(tmp_path / "sums.json")
