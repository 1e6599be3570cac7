"""Draws the explanation of a launch plan as SVG, readable in light and dark mode, with text for screen readers."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import prod
from textwrap import wrap

from emugpu.errors import UsageProblem
from harness.compile.catalog import STAYING
from harness.compile.planner import Plan, SharedPart
from harness.drawing import Drawing
from harness.report.text import (
    ClusterCta,
    Mark,
    barrier_facts,
    budget,
    budget_note,
    commit_mark,
    ctas,
    headline,
    kib,
    launch_lines,
    order_note,
    order_numbers,
    order_title,
    rows,
    slice_mark,
    unit,
    warps,
)

WIDTH = 960
MARGIN = 32
INNER = WIDTH - 2 * MARGIN
LINE = 18
# At 13 px, this many characters of the font fit in the width of the page.
CHARACTERS = 128
# The small pictures of the cluster: pitch of a cell, room for a caption, distance.
CELL, CAPTION, GAP = 20.0, 48.0, 22.0
# Width of a tile in the picture of their order, and how many of them count as first.
ORDER_CELL, SHOWN_FIRST = 48.0, 66

COLOURS = {
    "cell": ("#eef1f4", "#1c222a"),
    "a": ("#0b6bcb", "#58a6ff"),
    "b": ("#d9730d", "#f0a04b"),
    "c": ("#2d8a4e", "#56c27a"),
    "barrier": ("#8250df", "#b794f6"),
}
STYLE = """.title { font-size: 20px; font-weight: 600; }
.head { font-size: 15px; font-weight: 600; }
.name { font-weight: 600; }
text.small { font-size: 11px; fill: var(--soft); }
.self { fill: none; stroke: var(--ink); stroke-width: 1.5; }
"""
PARTS = {"A stages": "a", "B stages": "b", "C tile": "c", "barriers": "barrier"}


class Page(Drawing):
    """A drawing with paragraphs and headings."""

    def paragraph(self, x: float, content: str, style: str = "") -> None:
        """Adds text, wrapped to the right margin."""
        for line in wrap(content, int(CHARACTERS * (WIDTH - MARGIN - x) / INNER)):
            self.text(x, line, style)
            self.y += LINE

    def head(self, content: str) -> None:
        self.y += 22
        self.line(MARGIN, self.y - 22, WIDTH - MARGIN, self.y - 22)
        self.text(MARGIN, content, "head")
        self.y += 26


def as_svg(plan: Plan) -> str:
    """Draws the whole picture. Raises UsageProblem for a kernel without stages, barriers and clusters."""
    if plan.is_direct:
        raise UsageProblem(f"{plan.kernel} has no stages, barriers and clusters to draw; write .txt or .json")
    page = Page(48.0)
    page.text(MARGIN, headline(plan), "title")
    page.y += 26
    for line in launch_lines(plan):
        page.paragraph(MARGIN, line, "soft")
    _budget(page, plan)
    _roles(page, plan)
    _barriers(page, plan)
    _cluster(page, plan)
    _order(page, plan)
    description = f"{'. '.join(launch_lines(plan))}. {budget_note(plan)}"
    return page.svg(WIDTH, f"Launch plan of {headline(plan)}", description, COLOURS, STYLE)


def _budget(page: Page, plan: Plan) -> None:
    """Draws one bar for all shared memory, divided according to the plan."""
    found = budget(plan)
    page.head(f"Shared memory of one CTA: {found.used:,} of {found.limit:,} bytes")
    x = float(MARGIN)
    for part in plan.shared_memory:
        # Barriers are too small to be visible at scale.
        width = max(3.0, INNER * part.bytes / found.limit)
        page.box(x, page.y - 10, width - 1, 26, PARTS.get(part.name, "barrier"), _sentence(part))
        x += width
    page.box(x, page.y - 10, WIDTH - MARGIN - x, 26, "cell")
    page.y += 40
    for part in plan.shared_memory:
        page.box(MARGIN, page.y - 10, 11, 11, PARTS.get(part.name, "barrier"))
        page.text(MARGIN + 20, part.name, "name")
        page.text(MARGIN + 120, f"{part.bytes:,} bytes, {kib(part.bytes)}")
        page.text(MARGIN + 320, part.detail, "soft")
        page.y += LINE
    page.box(MARGIN, page.y - 10, 11, 11, "cell")
    page.text(MARGIN + 20, "free", "name")
    page.text(MARGIN + 120, f"{found.free:,} bytes, {kib(found.free)}")
    page.y += LINE + 4
    page.paragraph(MARGIN, budget_note(plan))
    page.y += 6


def _roles(page: Page, plan: Plan) -> None:
    page.head("Roles of the warps")
    for role in plan.roles:
        page.text(MARGIN, role.name, "name")
        page.text(MARGIN + 110, warps(role.warps))
        page.paragraph(MARGIN + 200, role.does)
    page.y += 6


def _barriers(page: Page, plan: Plan) -> None:
    page.head("Barriers")
    for barrier in plan.barriers:
        page.text(MARGIN, barrier.name, "name")
        page.text(MARGIN, f"{barrier.count}, from byte {barrier.offset:,}", "small", down=15)
        for name, fact in barrier_facts(barrier):
            page.text(MARGIN + 150, name, "soft")
            page.paragraph(MARGIN + 210, fact)
        page.y += 6


def _cluster(page: Page, plan: Plan) -> None:
    cn, found = plan.cluster[1], ctas(plan)
    if len(found) == 1:
        page.head("The cluster is one CTA: nothing is shared")
        return
    page.head("Who sends what to whom in a cluster")
    page.text(MARGIN, "Down: x, along M. Across: y, along N. The outlined cell is the CTA itself.", "soft")
    page.y += 28
    top, wide = page.y, cn * (max(cn * CELL, CAPTION) + GAP) > INNER / 2
    _legend(page, MARGIN, [("a", "receives its slice of A"), ("b", "receives its slice of B")])
    _pictures(page, plan, found, MARGIN, slice_mark)
    end, left = page.y, float(MARGIN)
    if not wide:
        page.y, left = top, MARGIN + INNER / 2
    _legend(page, left, [("c", "is signalled when its MMA has read a stage, and may load it again")])
    _pictures(page, plan, [cta for cta in found if cta.commits_to], left, commit_mark)
    page.y = max(page.y, end)


def _order(page: Page, plan: Plan) -> None:
    """Draws the tiles of C with their numbers; those that are computed first are filled."""
    if plan.tiles is None:
        return
    page.head("Order of tiles")
    page.paragraph(MARGIN, f"{order_title(plan, plan.tiles)}. {order_note(plan)}. Filled: those computed first.")
    first = prod(plan.grid) // prod(plan.cluster)
    if plan.config["scheduler"] not in STAYING:
        first = plan.tiles.rows * plan.tiles.columns
    for row in order_numbers(plan.tiles):
        for column, number in enumerate(row):
            x = MARGIN + column * ORDER_CELL
            early = number and int(number) < min(first, SHOWN_FIRST)
            page.box(x, page.y - 12, ORDER_CELL - 3, ORDER_CELL / 2 - 3, "c" if early else "cell")
            page.text(x + 4, number, down=4)
        page.y += ORDER_CELL / 2
    page.y += 12


def _legend(page: Page, x: float, entries: Iterable[tuple[str, str]]) -> None:
    for style, meaning in entries:
        page.box(x, page.y - 10, 11, 11, style)
        page.text(x + 18, meaning)
        x += 200
    page.y += 28


def _pictures(page: Page, plan: Plan, shown: list[ClusterCta], left: float, mark: Mark) -> None:
    """Draws one small picture of the cluster for each CTA, in the layout of the cluster if that fits."""
    cm, cn = plan.cluster[:2]
    width = max(cn * CELL, CAPTION) + GAP
    fit = max(1, int((WIDTH - MARGIN - left + GAP) // width))
    for x in sorted({cta.x for cta in shown}):
        row = [cta for cta in shown if cta.x == x]
        for first in range(0, len(row), fit):
            for place, cta in enumerate(row[first : first + fit]):
                _picture(page, plan, cta, left + place * width, mark)
            page.y += cm * CELL + 34


def _picture(page: Page, plan: Plan, cta: ClusterCta, left: float, mark: Mark) -> None:
    cm, cn = plan.cluster[:2]
    page.elements.append(f"<g><title>{escape(_cta_sentence(plan, cta, mark is commit_mark))}</title>")
    page.text(left, f"rank {cta.rank}", "small")
    for y in range(cn):
        for x in range(cm):
            rank = x + y * cm
            at_x, at_y = left + y * CELL, page.y + 7 + x * CELL
            _cell(page, at_x, at_y, CELL - 2, mark(cta, rank))
            if rank == cta.rank:
                page.box(at_x, at_y, CELL - 2, CELL - 2, "self")
    page.elements.append("</g>")


def _cell(page: Page, x: float, y: float, size: float, mark: str) -> None:
    """Draws both operands: the left half for A, the right half for B."""
    page.box(x, y, size, size, {"A": "a", "B": "b", "o": "c"}.get(mark, "cell"))
    if mark == "#":
        page.box(x, y, size / 2, size, "a")
        page.box(x + size / 2, y, size / 2, size, "b")


def _sentence(part: SharedPart) -> str:
    return f"{part.name}: {part.bytes:,} bytes ({part.detail})"


def _cta_sentence(plan: Plan, cta: ClusterCta, commits: bool) -> str:
    who = f"CTA of rank {cta.rank} (x {cta.x}, y {cta.y})"
    if commits:
        return f"{who}: its MMA signals ranks {_listed(cta.commits_to)} when it has read a stage"
    return (
        f"{who}: sends {unit(plan, 'A')} {rows(plan, 'A', cta.a_rows)} of A to ranks {_listed(cta.a_to)}, "
        f"{unit(plan, 'B')} {rows(plan, 'B', cta.b_rows)} of B to ranks {_listed(cta.b_to)}"
    )


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
