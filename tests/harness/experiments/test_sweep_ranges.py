"""What a sweep is asked for: lists, ranges and files, and what is said of those that cannot be."""

from __future__ import annotations

import pytest

from emugpu.errors import UsageProblem
from harness.experiments.ranges import parse_numbers, parse_shapes
from harness.experiments.sweep import plan
from harness.experiments.sweep_spec import make_sweep, read_sweep
from harness.model.constants import find_gpu
from harness.model.what_if import parse_changes
from harness.problem import Shape

FILE = """
schema = 1
kernels = ["kernel6", "kernel7"]
shapes = ["256:512:256,512,128", 512]
schedule_seeds = "1:3"
[options]
stages = "2:3"
cluster = ["2x1", "4x1"]
multicast = [true, false]
"""


@pytest.mark.parametrize(
    ("text", "values"),
    [("4", [4]), ("3:6", [3, 4, 5, 6]), ("512:2048:512", [512, 1024, 1536, 2048]), ("2,4:5,4", [2, 4, 5])],
)
def test_the_last_of_a_range_belongs_to_it(text, values):
    assert list(parse_numbers(text, "stages")) == values


@pytest.mark.parametrize("option", ["multicast", "ping_pong"])
@pytest.mark.parametrize(("words", "value"), [("yes true Yes TRUE True", True), ("no false No FALSE False", False)])
def test_on_and_off_are_the_same_words_in_a_sweep_and_in_a_what_if(option, words, value):
    for word in words.split():
        found = make_sweep("x", kernels=["kernel8"], shapes=["512"], options={option: f"{word},{word}"})
        (change,) = parse_changes((f"{option}={word}",), find_gpu("h200"))
        assert (found.options, change.options) == ({option: [value]}, {option: value})
    said = "'on' is neither yes nor no; write yes or true, no or false"
    with pytest.raises(UsageProblem) as swept:
        make_sweep("x", kernels=["kernel8"], shapes=["512"], options={option: "on"})
    with pytest.raises(UsageProblem) as tried:
        parse_changes((f"{option}=on",), find_gpu("h200"))
    assert str(swept.value) == said and str(tried.value) == f"--what-if {option}: {said}"


@pytest.mark.parametrize("text", ["", "a", "6:3", "1:2:0", "1:2:3:4", "-1:2", "1:99999999"])
def test_what_is_no_range(text):
    with pytest.raises(UsageProblem, match=r"^stages"):
        parse_numbers(text, "stages")


def test_shapes():
    assert list(parse_shapes("256:512:256")) == [Shape(256, 256, 256), Shape(512, 512, 512)]
    assert list(parse_shapes("8:16:8,24,32:40:8")) == [
        Shape(m, 24, k) for m in (8, 16) for k in (32, 40)
    ]  # fmt: skip
    with pytest.raises(UsageProblem, match="not M,N,K or one size"):
        parse_shapes("1,2")


def test_a_file(tmp_path):
    path = tmp_path / "night.toml"
    path.write_text(FILE)
    found = plan(read_sweep(path))
    assert found.sweep.name == "night" and found.count == 2 * 3 * 2 * 2 * 2 * 3
    assert len({job.key for job in found.jobs()}) == found.count
    assert {job.config.multicast for job in found.jobs()} == {True, False}


def test_what_is_said_beside_a_file_overrides_it(tmp_path):
    path = tmp_path / "night.toml"
    path.write_text(FILE)
    asked = {"shapes": ["256"], "options": {"stages": "4"}, "kind": "check", "inputs": "index", "schedule_seeds": "7"}
    found, file = read_sweep(path, asked), read_sweep(path)
    assert (found.shapes, found.kind, found.inputs, found.schedule_seeds) == (
        ("256",),
        "check",
        ("index",),
        range(7, 8),
    )
    assert found.options == {**file.options, "stages": [4]}
    assert (found.kernels, found.seeds) == (file.kernels, file.seeds)
    path.write_text("".join(line for line in FILE.splitlines(True) if not line.startswith("shapes")))
    assert read_sweep(path, asked).shapes == ("256",), "what the file lacks can be said beside it"
    with pytest.raises(UsageProblem, match="no shape is named"):
        read_sweep(path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema = 1", "schema = 2", "schema is 2"),
        ("kernels =", "kernel =", "there is no key 'kernel'"),
        ("kernel6", "kernel99", "there is no kernel 'kernel99'"),
        ("stages =", "stage =", "there is no option 'stage'"),
        ('"2x1"', '"2y1"', "cluster '2y1' is not"),
        ("[true", '["maybe"', "'maybe' is neither yes nor no; write yes or true, no or false"),
        (FILE[FILE.index("[options]") :], "options = 3", "options is 3; write a table"),
        ('"1:3"', '"3:1"', "seeds '3:1'"),
        ("[options]", "device = 'model'\n[options]", "kind run is not for device model"),
    ],
)
def test_what_a_file_says_wrongly_is_named(tmp_path, old, new, says):
    path = tmp_path / "night.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(UsageProblem, match=says):
        read_sweep(path)


def test_refusals_are_counted_by_reason():
    found = plan(
        make_sweep("x", kernels=["kernel6"], shapes=["512"], options={"stages": "5:7", "cluster": "2x1,3x1"},
                   schedule_seeds="1:10")
    )  # fmt: skip
    assert found.count == 10, "a ring of five, in a cluster that can be"
    assert sum(found.refused.values()) == 50 and len(found.refused) == 2
    reasons = " ".join(found.refused)
    assert "more than the N bytes of shared memory" in reasons and "cannot be split into pairs" in reasons


def test_a_configuration_that_is_asked_for_twice_is_one():
    found = plan(
        make_sweep("x", kernels=["kernel5"], shapes=["512"], options={"stages": "1", "epilogue_width": "64,64"})
    )
    assert found.count == 1


def test_sizes_that_tma_cannot_address_are_refused_at_once():
    with pytest.raises(UsageProblem, match=r"--shape 512,4:8:2,512: shape 512x4x512: N=4 must be a multiple of 8"):
        plan(make_sweep("x", kernels=["kernel5"], shapes=["512,4:8:2,512"], options={}))


def test_keys_tell_jobs_apart_and_nothing_else():
    def keys(**changed):
        asked = dict(kernels=["kernel6"], shapes=["512"], options={"cluster": "2x1"}, schedule_seeds="3")
        return {job.key for job in plan(make_sweep("x", **{**asked, **changed})).jobs()}

    base = keys()
    assert base == keys() and len(base) == 1
    others = [
        keys(kernels=["kernel7"]),
        keys(shapes=["520"]),
        keys(options={"cluster": "4x1"}),
        keys(schedule_seeds="4"),
        keys(schedule_seeds=None),
        keys(seeds="1"),
        keys(inputs="index"),
        keys(kind="check"),
    ]
    assert len(set.union(base, *others)) == 1 + len(others)
