"""The constants of the timing model: every file keeps to the schema, and what breaks it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from emugpu.errors import UsageProblem
from harness.model.constants import FOLDER, STATUSES, UNITS, find_gpu, gpu_names, read
from harness.model.what_if import parse_changes

HEAD = '[gpu]\nfacts = "h200"\n[l2]\n'


def test_all_gpus_have_the_same_constants() -> None:
    names = {name: set(find_gpu(name).constants) for name in gpu_names()}
    assert set(names) == {"b200", "h100", "h200"}
    assert names["h100"] == names["h200"] < names["b200"]
    only = {name for name in names["b200"] - names["h200"] if not name.startswith("tcgen05.")}
    assert only == {"tma.box", "tma.line", "dram.in_a_row", "dram.at_once"}


@pytest.mark.parametrize("name", gpu_names())
def test_every_constant_says_where_it_is_from(name: str) -> None:
    gpu = find_gpu(name)
    for constant in gpu.constants.values():
        assert constant.source and constant.status in STATUSES and constant.unit in UNITS
    assert gpu.sms == {"b200": 148, "h100": 132, "h200": 132}[name]


def test_nothing_of_a_b200_counts_as_measured_or_fitted() -> None:
    assert {c.status for c in find_gpu("b200").constants.values()} == {"published", "estimated"}


def test_no_constant_is_without_effect() -> None:
    folders = FOLDER.parent, FOLDER.parent / "silicon"
    code = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    assert not [name for name in find_gpu("b200").constants if f'"{name}"' not in code]


def test_at_most_six_constants_are_fitted() -> None:
    assert 1 <= sum(c.status == "fitted" for c in find_gpu("h200").constants.values()) <= 6


def test_clusters_must_fit_into_a_gpc() -> None:
    # As an H200 answers when it is asked how many clusters of a size it can hold.
    gpu = find_gpu("h200")
    assert [gpu.resident_clusters(size) for size in (1, 2, 4, 8, 16)] == [132, 66, 30, 15, 7]
    assert gpu.resident_clusters(2, ctas_per_sm=2) == 132


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("bandwidth = 3", "must have value, unit, source and status"),
        ('bandwidth = { value = "3", unit = "byte/s", source = "x", status = "measured" }', "must be a number"),
        ('bandwidth = { value = 3, unit = "furlong", source = "x", status = "measured" }', "unit 'furlong'"),
        ('bandwidth = { value = 3, unit = "byte/s", source = "x", status = "guessed" }', "status 'guessed'"),
        ('bandwidth = { value = 3, unit = "byte/s", source = "", status = "measured" }', "source is empty"),
    ],
)
def test_a_broken_entry_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "gpu.toml"
    path.write_text(HEAD + line + "\n")
    with pytest.raises(UsageProblem, match=r"l2\.bandwidth") as raised:
        read(path)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        *("l2.width=3", "depth=3", "l2.bandwidth", "l2.bandwidth=fast", "l2.bandwidth=-1", "stages=three", "=3"),
        *("tensor.queue=0", "tensor.queue=0.5x"),
    ],
)
def test_changes_that_cannot_be_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageProblem) as raised:
        parse_changes((text,), find_gpu("h200"))
    assert "\n" not in str(raised.value)


def test_a_factor_is_of_the_constant() -> None:
    gpu = find_gpu("h200")
    change, option = parse_changes(("l2.bandwidth=0.5x", "cluster=4x2"), gpu)
    assert change.constants == {"l2.bandwidth": gpu["l2.bandwidth"] / 2}
    assert option.options == {"cluster": (4, 2)}
