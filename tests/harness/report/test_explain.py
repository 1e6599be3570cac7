"""``harness explain``: everything said follows from the launch plan, for every kind of cluster."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from conftest import BF16_KERNELS
from harness.cli.main import main
from harness.compile.artifacts import plan_json
from harness.compile.config import make_config
from harness.compile.planner import Plan, parse_plan
from harness.problem import Shape
from harness.report.svg import as_svg
from harness.report.text import WIDTH, as_dict, as_text, budget, ctas

SVG = "{http://www.w3.org/2000/svg}"
CASES = [
    ("kernel5", {"cluster": (4, 4)}),
    ("kernel6", {"cluster": (2, 8)}),
    ("kernel6", {"cluster": (16, 1)}),
    ("kernel6", {"cta_group": 1, "cluster": (3, 5)}),
    ("kernel7", {"cta_group": 1, "cluster": (1, 1)}),
    ("kernel5", {"arch": "sm_90a", "cluster": (2, 2)}),
    ("kernel7", {"arch": "sm_90a", "cluster": (4, 2), "mma_shape": (256, 128)}),
    ("kernel7", {"cluster": (4, 2), "multicast": False, "dtype": "fp16", "epilogue_width": 16}),
    ("kernel8", {"scheduler": "clc", "clc_depth": 3, "cluster": (4, 2)}),
    ("kernel8", {"scheduler": "static", "sms": 6, "cluster": (2, 1), "raster_group": 1}),
    ("kernel8", {"arch": "sm_90a"}),
]
cases = pytest.mark.parametrize(("kernel", "options"), CASES, ids=lambda value: str(value))


def plan_of(kernel: str, options: dict, shape: Shape = Shape(500, 1000, 600)) -> Plan:  # noqa: B008
    return parse_plan(plan_json(make_config(kernel, **options), shape))


def explain(*arguments: str):
    return CliRunner().invoke(main, ["explain", *arguments])


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    ("kernel", "options"), [("kernel7", {}), ("kernel8", {"scheduler": "static", "cluster": (2, 1)})]
)
def test_narrow_terminals_get_narrow_text(kernel, options, width):
    wide, text = (as_text(plan_of(kernel, options), columns) for columns in (WIDTH, width))
    assert max(map(len, text.splitlines())) <= width
    words = [word for word in wide.split() if set(word) != {"#"}]
    assert sorted(set(words) - set(text.split())) == [], "every word is there"


def test_the_budget_of_the_series():
    """One stage of 16 + 16 beside 64 KB of C; 160 + 64; C in 16 KB, and a sixth stage."""
    five, six, seven, eight = (budget(plan_of(kernel, {})) for kernel in BF16_KERNELS)
    kilo = 1024
    assert (five.stages, five.stage, five.output) == (1, 32 * kilo, 64 * kilo)
    assert (six.stages * six.stage, six.output, six.whole_tile) == (160 * kilo, 64 * kilo, 64 * kilo)
    for last in (seven, eight):
        assert (last.stages, last.output, last.stages_with_whole_tile) == (6, 16 * kilo, 5)
    text = as_text(plan_of("kernel7", {}))
    assert "16 KiB in place of 64 KiB for C saves 48 KiB, room for 1 more stage" in " ".join(text.split())


@cases
def test_the_text_is_complete_and_fits_the_terminal(kernel, options):
    plan = plan_of(kernel, options)
    text = as_text(plan)
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    words = " ".join(text.split())
    for part in plan.shared_memory:
        assert f"{part.name} {part.bytes:,}" in words
    for role in plan.roles:
        assert role.does in words
    for barrier in plan.barriers:
        assert f"{barrier.name} x {barrier.count}, from {barrier.offset:,}" in words
        assert barrier.arrives in words and barrier.waits in words
        assert f"expects {barrier.arrivals} arrival" in words
    found = budget(plan)
    assert found.used + found.free == found.limit and found.used == plan.dynamic_smem


def pictures(text: str) -> list[tuple[int, list[str]]]:
    """Rank and rows of each small picture of the cluster, in the order of the text."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        captions = list(re.finditer(r"rank \d+", line))
        if not captions or not line.startswith("  rank "):
            continue
        for at, caption in enumerate(captions):
            end = captions[at + 1].start() if at + 1 < len(captions) else None
            below = []
            for row in lines[number + 1 :]:
                if not row.strip():
                    break
                below.append(row[caption.start() : end].strip())
            found.append((int(caption.group().split()[1]), below))
    return found


@cases
def test_the_pictures_are_the_masks(kernel, options):
    plan = plan_of(kernel, options)
    cm, cn = plan.cluster[:2]
    if cm * cn == 1:
        assert "nothing is shared" in as_text(plan)
        return
    body = as_text(plan).split("who sends what")[1].split("the same as masks")[0]
    slices, commits = body.split("the CTAs that a CTA signals")
    masks = {one.rank: one for one in plan.multicast}
    shown = pictures(slices)
    assert sorted(rank for rank, _ in shown) == sorted(masks)
    for rank, rows in shown:
        assert len(rows) == cm
        for x, row in enumerate(rows):
            marks = row.split()
            assert len(marks) == cn
            for y, mark in enumerate(marks):
                bit = x + y * cm
                gets = masks[rank].a >> bit & 1, masks[rank].b >> bit & 1
                assert mark == {(0, 0): ".", (1, 0): "A", (0, 1): "B", (1, 1): "#"}[gets]
    leaders = pictures(commits)
    assert sorted(rank for rank, _ in leaders) == list(range(0, cm * cn, plan.config["cta_group"]))
    for rank, rows in leaders:
        signalled = {x + y * cm for x, row in enumerate(rows) for y, m in enumerate(row.split()) if m == "o"}
        assert sum(1 << r for r in signalled) == masks[rank].commit


@cases
def test_the_picture_is_well_formed_and_says_the_same(kernel, options):
    plan = plan_of(kernel, options)
    root = ElementTree.fromstring(as_svg(plan))
    assert root.get("role") == "img"
    titles = {element.get("id"): element.text for element in root if element.get("id")}
    assert set(root.get("aria-labelledby").split()) == set(titles)
    assert plan.kernel in titles["title"] and all(titles.values())
    _, _, width, height = map(float, root.get("viewBox").split())
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= x + float(box.get("width")) <= width + 1
        assert 0 <= y <= y + float(box.get("height")) <= height
    text = " ".join(element.text for element in root.iter(f"{SVG}text"))
    for part in plan.shared_memory:
        assert part.name in text and f"{part.bytes:,} bytes" in text
    for role in plan.roles:
        assert role.does in text
    descriptions = [element.text for element in root.iter(f"{SVG}title")]
    for cta in ctas(plan) if len(plan.multicast) > 1 else []:
        to = ", ".join(map(str, cta.a_to))
        assert any(f"rank {cta.rank} (" in d and f"of A to ranks {to}, " in d for d in descriptions)


def test_the_page_has_colours_for_dark_screens():
    text = as_svg(plan_of("kernel6", {}))
    assert "prefers-color-scheme: dark" in text and "color-scheme: light dark" in text


@cases
def test_json_holds_the_plan_and_what_follows(kernel, options):
    config = make_config(kernel, **options)
    raw = json.loads(plan_json(config, Shape(256, 256, 256)))
    data = json.loads(json.dumps(as_dict(parse_plan(json.dumps(raw)), raw)))
    assert data["plan"] == raw
    assert data["shared_memory"]["free"] == data["shared_memory"]["limit"] - raw["dynamic_smem"] >= 0
    for cta, masks in zip(data["cluster"], raw["multicast"], strict=True):
        assert sum(1 << rank for rank in cta["a_to"]) == masks["a"]
        assert sum(1 << rank for rank in cta["b_to"]) == masks["b"]


def test_it_is_the_plan_the_kernel_is_launched_with(artifacts):
    artifact, shape = artifacts[4, 2], Shape(512, 1024, 256)
    launched = json.loads(artifact.plan_json(shape))
    assert json.loads(plan_json(artifact.config, shape)) == {**launched, "entry": None}


def test_formats_of_the_command(tmp_path):
    arguments = ("kernel7", "-c", "preset=cute-03", "--shape", "512")
    text = explain(*arguments)
    assert text.exit_code == 0
    assert text.stdout.startswith("kernel7 for sm_100a: bf16, MMA 128x256x16 by one CTA, 4 stages")
    assert json.loads(explain(*arguments, "-o", "-").stdout)["plan"]["cluster"] == [4, 4, 1]
    picture = tmp_path / "plan.svg"
    done = explain(*arguments, "-o", str(picture))
    assert (done.exit_code, done.stdout) == (0, "")
    assert ElementTree.parse(picture).getroot().tag == f"{SVG}svg"
    assert explain(*arguments, "-o", str(tmp_path / "plan.json")).exit_code == 0
    assert json.loads((tmp_path / "plan.json").read_text())["plan"]["cluster"] == [4, 4, 1]
    assert explain(*arguments, "-o", str(tmp_path / "plan.txt")).exit_code == 0
    assert (tmp_path / "plan.txt").read_text() == text.stdout


def test_why_shows_the_choice_among_others():
    """The best is first, and is what a run takes; with what is asked for, the best of those."""
    few = ("kernel8", "-c", "arch=sm_90a", "--shape", "16,8192,8192", "--why")
    first, _, best, *others = explain(*few).stdout.splitlines()
    assert "64x16 1 CTA" in first and first.endswith(" swapped") and "split-K" not in first
    assert re.match(r" +64x16 +1x1 +1 +1 .* swapped  <- chosen$", best)
    assert sum("<- chosen" in line for line in others) == 0
    cycles = [int(line.split()[7].replace(",", "")) for line in (best, *others) if "x1 " in line]
    assert len(cycles) > 4 and cycles == sorted(cycles)
    _, _, best, *_ = explain(*few, "-c", "swapped=false", "-c", "split_k=4").stdout.splitlines()
    assert best.split()[2] == "4" and best.endswith("<- chosen") and "swapped" not in best
    other = explain("kernel8", "-c", "arch=sm_90a", "-c", "mma_shape=128x96", "--why").stdout
    assert "the requested configuration is none of the choices and is used unchanged" in other
    beyond = explain("kernel8", "-c", "arch=sm_90a", "--shape", "16,4096,4096", "-c", "epilogue=bias", "--why").stdout
    assert beyond.count("<- chosen") == 1, "also where the best eight are refused"
    assert "kernel7 of sm_100a chooses nothing by the problem" in explain("kernel7", "--why").stdout
    assert "one CTA an SM, all with as many rows of B" in explain("rows", "--why").stdout
    assert "the requested tile is used unchanged" in explain("rows", "-c", "mma_shape=8x40", "--why").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel8", "--why", "-o", "-"], "-o -: --why writes text; name a file that ends in .txt"),
        (
            ["kernel8", "--protocol", "-o", "plan.svg"],
            "-o plan.svg: --protocol is text or JSON, and no picture",
        ),
        (["kernel99"], "there is no kernel 'kernel99'"),
        (["kernel6", "-c", "stages=6"], "more than the 232448 bytes of shared memory"),
        (["kernel6", "-o", "/no/such/folder/x.svg"], "is not a file in an existing folder"),
        (["kernel6", "-o", "plan.png"], "this command writes .json, .svg or .txt; use such an ending"),
    ],
)
def test_bad_requests_are_one_line(arguments, message):
    done = explain(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1
