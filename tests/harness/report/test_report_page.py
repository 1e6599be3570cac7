"""The page and its figures: complete, self-contained, readable in light and dark."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from bench_support import H200, series_records
from click.testing import CliRunner

import harness.cli.main
from harness.report.data import DeviceRecords
from harness.report.figure import DARK, FIGURE, LIGHT
from harness.report.figures import measured
from harness.report.published import published_figures
from harness.run import records

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("reports")]  # what all reports show is predicted once

pytest.importorskip("matplotlib", reason="matplotlib draws the figures")

FIGURES = {
    "measured-nvidia-h200",
    "published-nvidia-b200",
    "published-blackwell",
    "confronted-b200",
    "history-nvidia-h200",
    "history-emulated-sm_100a",
    "steps-emulated-sm_100a",
    "multicast-emulated-sm_100a",
    "roofline-nvidia-h200",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report of a made-up history."""
    base = tmp_path_factory.mktemp("report")
    results, output = base / "results", base / "report"
    results.mkdir()
    for record in series_records():
        if record["kernel"] == "kernel6":
            record["soundness"] = {"errors": 0, "warnings": 0, "findings": [], "failure": None, "correct": True}
        records.append(results / f"{record['device']['kind']}.jsonl", record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_RESULTS_DIR", str(results))
        done = CliRunner().invoke(harness.cli.main.main, ["report", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert f"{len(FIGURES)} figures, 2 devices" in done.stdout
    return output


@pytest.fixture(scope="module")
def html(folder):
    return (folder / "index.html").read_text()


class Reader(HTMLParser):
    """Collects tags with their attributes, and checks that they are closed in order."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(html):
    return Reader(html)


def test_every_figure_is_there_as_svg_and_png(folder):
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in folder.glob("*.png")} == FIGURES
    for path in folder.glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_loaded_from_elsewhere(html, page):
    assert not {"link", "iframe", "object"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/svg+xml;base64,")), (tag, attributes)
    [script] = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert not re.search(r"fetch|XMLHttp|import|https?:", script)
    links = {a["href"] for a in page.of("a") if not a["href"].startswith("#")}
    assert links == {figure.link for figure in published_figures() if figure.link}, (
        "what a reader follows, not the page"
    )
    assert "@import" not in html and "@font-face" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_ids_are_unique_and_references_lead_somewhere(html, page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]*)\)", html)
    used += [a[n][1:] for _, a in page.tags for n in ("href", "xlink:href") if a.get(n, "").startswith("#")]
    used += [word for _, a in page.tags for word in a.get("aria-labelledby", "").split()]
    assert len(used) > 20 and set(used) <= set(ids)


def test_figures_have_words_and_tables_captions(page):
    drawings = page.of("svg")
    assert len(drawings) == len(FIGURES)
    for drawing in drawings:
        assert drawing["role"] == "img" and len(drawing["aria-labelledby"].split()) == 2
    tags = [tag for tag, _ in page.tags]
    assert tags.count("title") == 1 + len(drawings) and tags.count("desc") >= len(FIGURES)
    assert tags.count("caption") == tags.count("table") > len(FIGURES)
    assert {attributes.get("scope") for attributes in page.of("th")} == {"col", "row"}
    assert page.of("html") == [{"lang": "en"}] and tags.count("h1") == 1


def test_others_figures_are_marked_as_theirs(html, page):
    text = " ".join(page.text)
    assert "Results of other people on their machines; none is this project's." in text
    theirs = html.index('id="published-nvidia-b200-title"')
    for author in {figure.author for figure in published_figures()}:
        assert f"by others: {author}" in html[theirs:]
    assert theirs > html.index('id="kernels"') > html.index('id="steps-emulated-sm_100a-title"'), "one's own come first"


def test_the_verdict_comes_first(html):
    assert html.index("9 cases are right, counted, not timed") < html.index("<h2 id=") < html.index("<svg")
    assert "Last run: bbbbbbb, 2026-01-02" in html
    assert "<p>Synchronisation: kernel5 not checked, kernel6 sound, kernel7 not checked</p>" in html


def test_what_is_predicted_says_so(html, page):
    """Each figure has its word."""
    heads = re.findall(r"<h[34][^>]*>([^<]*)((?:<span class=\"status .*?</span>)+)</h", html)
    words = {title: re.findall(r">(\w+)<", spans) for title, spans in heads}
    assert len(words) == len(FIGURES)
    assert words["Measured: TFLOPS on NVIDIA H200"] == ["measured"]
    assert [word for title, word in words.items() if "multicast" in title] == [["counted"]]


def test_drawings_that_scroll_can_be_reached_by_keyboard(page):
    drawings = [one for one in page.of("div") if one.get("class") in ("drawing", "wide")]
    assert len(drawings) > len(FIGURES)
    assert all(one["tabindex"] == "0" and one["role"] == "region" and one["aria-label"] for one in drawings)


def test_plans_are_pictured(page):
    pictures = page.of("img")
    assert {picture["alt"].split()[3] for picture in pictures} == {"kernel5", "kernel6", "kernel7"}
    for picture in pictures:
        svg = base64.b64decode(picture["src"].split(",", 1)[1])
        assert ET.fromstring(svg).tag.endswith("svg")


def test_what_a_record_says_is_no_markup(results_dir, tmp_path):
    results_dir.mkdir()
    evil = 'kernel5 <script>alert(1)</script> & "x"'
    record = series_records()[0]
    record["bench"]["case"] = evil
    records.append(results_dir / "emulated-sm_100a.jsonl", record)
    done = CliRunner().invoke(harness.cli.main.main, ["report", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "index.html").read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_numbers_of_the_history_are_in_the_page(page):
    cells = {text.strip() for text in page.text}
    assert {"1,040", "2,040", "3,040"} <= cells  # instructions executed, at the newest commit
    assert "700.0" not in cells and any(text.startswith(("69", "70")) and "." in text for text in cells)
    assert {"aaaaaaa, 2026-01-01", "bbbbbbb, 2026-01-02"} <= cells
    assert "\u221275 %" in cells


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.1."""
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(colors):
    """WCAG 2.1: 4.5 for text, which labels of lines are, too; 3 for the shapes of a figure."""
    for name in ("ink", "muted", "kernel5", "kernel6", "kernel7"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
    for name in FIGURE:
        assert contrast(colors[name], colors["paper"]) >= 3, name


def test_all_colours_of_the_figures_follow_the_mode(html):
    """Inside the page the drawings have no colour of their own."""
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert re.findall(r"(?:fill|stroke): ?(#[0-9a-fA-F]{3,6}|rgb)", drawings) == []
    assert set(re.findall(r"var\(--(\w+)\)", drawings)) <= set(LIGHT) == set(DARK)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with (Debian package chromium)")
@pytest.mark.parametrize(("mode", "colors"), [("light", LIGHT), ("dark", DARK)])
@pytest.mark.parametrize("width", [1200, 420])
def test_in_a_browser(folder, tmp_path, mode, colors, width):
    """Looks at the pixels: the paper, the colours of the kernels, and nothing that sticks out on the right."""
    from matplotlib.image import imread

    shot = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    flags += [f"--blink-settings=preferredColorScheme={int(mode == 'light')}", f"--window-size={width},6000"]
    url = (folder / "index.html").as_uri()
    command = [str(CHROMIUM), *flags, f"--screenshot={shot}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert shot.exists(), done.stderr[-2000:]
    pixels = (imread(shot)[:, :, :3] * 255).round().astype(int)

    def share(name: str) -> float:
        wanted = [int(colors[name][i : i + 2], 16) for i in (1, 3, 5)]
        return float((np.abs(pixels - wanted).max(axis=2) <= 2).mean())

    assert share("paper") > 0.6
    for kernel in ("kernel5", "kernel6", "kernel7"):
        assert share(kernel) > 0.001, kernel
    edge = pixels[:, -8:]
    paper = [int(colors["paper"][i : i + 2], 16) for i in (1, 3, 5)]
    assert (np.abs(edge - paper).max(axis=2) <= 2).all(), "something is wider than the window"


def test_no_history(results_dir):
    run = CliRunner().invoke
    done = run(harness.cli.main.main, ["report"])
    assert done.exit_code == 3 and "there is no history in" in done.stderr
    results_dir.mkdir()
    done = run(harness.cli.main.main, ["report", "--output", "/dev/null/report"])
    assert done.exit_code == 2 and "/dev/null is not a folder; name another folder" in done.stderr
    done = run(harness.cli.main.main, ["report", "-o", ""])
    assert done.exit_code == 2 and "it is empty; give a name" in done.stderr
    done = run(harness.cli.main.main, ["report"])
    assert done.exit_code == 3 and "has no right result of a kernel" in done.stderr
    assert "`harness bench`, `harness run` or `harness sweep` first" in " ".join(done.stderr.split())


def test_each_kernel_is_beside_the_vendor_that_was_measured_with_it():
    """The vendor's GEMM is faster beside a kernel that takes less power."""
    made = [record for record in series_records() if record["device"] == H200][:3]
    for record, vendor in zip(made, (745.0, 680.0, 641.0), strict=True):
        record["timing"]["vendor"]["cublas"]["tflops"] = vendor
    figure = measured(DeviceRecords("nvidia-h200", made))
    assert [(row[1], row[3]) for row in figure.rows] == [
        ("kernel5", "cuBLAS 745.0"),
        ("kernel6", "cuBLAS 680.0"),
        ("kernel7", "cuBLAS 641.0"),
    ]
    (axis,) = figure.canvas.axes
    (marks,) = axis.lines
    assert list(zip(marks.get_xdata(), marks.get_ydata(), strict=True)) == [(745.0, 0), (680.0, 1), (641.0, 2)]
    assert "share a clock" in figure.description


def test_records_of_single_runs_are_enough(results_dir, tmp_path):
    for record in series_records()[:4]:
        single = {name: value for name, value in record.items() if name not in ("bench", "facts")}
        records.append(records.record_file(record["device"]["kind"]), single)
    done = CliRunner().invoke(harness.cli.main.main, ["report", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "index.html").read_text()
    assert "bf16 cluster=2x1 mma_shape=256x256 stages=5 1024x1024x512 index" in text
    assert "3 cases are right, counted, not timed" in text and "measured-nvidia-h200" in text


def test_only_an_emulator(results_dir, tmp_path):
    """Without a GPU no bar claims a time."""
    for record in series_records():
        if record["device"]["kind"].startswith("emulated"):
            records.append(records.record_file(record["device"]["kind"]), record)
    done = CliRunner().invoke(harness.cli.main.main, ["report", "--output", str(tmp_path / "r")])
    assert done.exit_code == 0
    text = (tmp_path / "r" / "index.html").read_text()
    assert "counted, not timed" in text and "Measured: TFLOPS" not in text
