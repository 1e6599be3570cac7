"""Writes the launch plan for a person: the contents of a CTA's shared memory, the work of its warps, who waits for whom
on which barrier, and the data sent within the cluster.

Everything is computed from the plan that launches the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import prod
from textwrap import wrap
from typing import Any

from harness.compile.catalog import ARCHITECTURES
from harness.compile.planner import Barrier, Multicast, Plan, ScalarArgument, TensorMapArgument, TileOrder
from harness.epilogues import NONE, find_epilogue
from harness.problem import OUT_TYPES

Mark = Callable[["ClusterCta", int], str]
"""The mark in a CTA's picture of the cluster, in place of a rank."""

WIDTH = 100  # columns of text
ORDER_ROWS, ORDER_COLUMNS = 16, 18  # cluster tiles whose order is shown
BAR = 24  # columns that stand for all of the shared memory
SCHEMA = 1


@dataclass(frozen=True)
class ClusterCta:
    """One CTA of the cluster. ``x`` is along M, ``y`` along N. Receivers are ranks.

    ``a_to``, ``b_to``: the CTAs that receive its slices of A and of B, including itself. ``commits_to``: the CTAs that
    its MMA signals when it has read a stage; empty for a CTA that issues no MMA.
    """

    rank: int
    x: int
    y: int
    a_to: tuple[int, ...]
    b_to: tuple[int, ...]
    commits_to: tuple[int, ...]
    a_rows: tuple[int, ...]
    b_rows: tuple[int, ...]


@dataclass(frozen=True)
class Budget:
    """Shared memory of one CTA, in bytes. ``whole_tile`` is the size of C if all of it had its own place.

    ``stages_with_whole_tile`` is the possible depth of the ring then.
    """

    used: int
    limit: int
    stage: int
    output: int
    whole_tile: int
    stages: int
    stages_with_whole_tile: int

    @property
    def free(self) -> int:
        return self.limit - self.used


def ctas(plan: Plan) -> list[ClusterCta]:
    """Returns the CTAs of a cluster, by rank."""
    return [_cta(one, plan) for one in plan.multicast]


def _cta(one: Multicast, plan: Plan) -> ClusterCta:
    size = plan.cluster[0] * plan.cluster[1]
    leads = one.rank % plan.config["cta_group"] == 0
    return ClusterCta(
        rank=one.rank,
        x=one.rank % plan.cluster[0],
        y=one.rank // plan.cluster[0],
        a_to=_ranks(one.a, size),
        b_to=_ranks(one.b, size),
        commits_to=_ranks(one.commit, size) if leads else (),
        a_rows=one.a_rows,
        b_rows=one.b_rows,
    )


def budget(plan: Plan) -> Budget:
    """Returns the shared memory of one CTA."""
    parts = {part.name: part.bytes for part in plan.shared_memory}
    stages, limit = plan.config["stages"], ARCHITECTURES[plan.arch].shared_memory
    stage = (parts["A stages"] + parts["B stages"]) // stages
    rows, columns = plan.tile
    whole_tile = rows * columns * plan.out_type.bits // 8
    stage_barriers = 8 * sum(barrier.name in ("full", "empty") for barrier in plan.barriers)
    rings = ("A stages", "B stages", "A scale stages", "B scale stages", "C tile")
    fixed = sum(size for name, size in parts.items() if name not in rings) - stages * stage_barriers
    return Budget(
        used=plan.dynamic_smem,
        limit=limit,
        stage=stage,
        output=parts["C tile"],
        whole_tile=whole_tile,
        stages=stages,
        stages_with_whole_tile=(limit - whole_tile - fixed) // (stage + stage_barriers),
    )


def headline(plan: Plan) -> str:
    """Returns the kernel and its configuration in one line."""
    config = plan.config
    unit = "by a pair of CTAs" if config["cta_group"] == 2 else "by one CTA"
    what = f"MMA {_by(config['mma_shape'])} {unit}" if plan.tmem_columns else f"tile {_by(plan.tile)} a CTA"
    depth = f"{config['stages']} stage{'s' if config['stages'] > 1 else ''}"
    return f"{plan.kernel} for {plan.arch}: {config['dtype']}, {what}, {depth}"


def launch_lines(plan: Plan) -> list[str]:
    """Describes the launch in sentences."""
    problem, (rows, columns) = plan.problem, plan.tile
    number = prod(plan.grid) // prod(plan.cluster)
    bands = f" in {plan.grid[2]} bands along M" if plan.grid[2] > 1 else ""
    columns_of_tmem = f", {plan.tmem_columns} TMEM columns" if plan.tmem_columns else ""
    clusters = f"{number} cluster{'s' if number > 1 else ''}"
    epilogue = plan.own_epilogue or find_epilogue(plan.config["epilogue"])
    fused, split, adders = epilogue.name != NONE, plan.split_k, "warps of a CTA" if plan.is_direct else "CTAs"
    in_memory = f" of {problem.masked} in memory" if problem.masked else ""
    down, across = plan.product
    what = "B . A^T " if plan.swapped else "product " if fused else "C"
    steps = next((a.value for a in plan.arguments if isinstance(a, ScalarArgument) and a.name == "k_iterations"), None)
    steps = -(-problem.k // plan.config["block_k"]) if plan.is_direct else steps
    return [
        f"{what}[{down},{across}] in tiles of {rows} x {columns} a CTA, K={problem.k} in {steps} steps of "
        f"{plan.config['block_k']}",
        f"grid {_by(plan.grid[:2])} CTAs (along M x along N){bands}, {clusters} of "
        f"{_by(plan.cluster[:2])}, {plan.block[0]} threads a CTA{columns_of_tmem}",
        *([_memory_line(plan)] if plan.layout != "nt" or problem.ld else []),
        *(["swapped: A below is the tensor B, and B the tensor A; the transpose is C"] if plan.swapped else []),
        *(
            [f"grouped: rows {problem.groups_text}{in_memory}, each group with its own B of {problem.n} rows"]
            if problem.groups
            else []
        ),
        *([f"split-K: {split} {adders} add up a tile, each a part of K"] if split > 1 else []),
        *([f"epilogue {epilogue.name}: C[{plan.output[0]},{plan.output[1]}] = {epilogue.formula}"] if fused else []),
    ]


def _memory_line(plan: Plan) -> str:
    """Describes the memory layout of A, B and C."""
    maps = [a for a in plan.arguments if isinstance(a, TensorMapArgument) and a.tensor in "ABC"]
    parts = []
    for one in sorted(maps, key=lambda each: each.tensor):
        across, down = one.dims[0], one.dims[1]
        bits = 8 * OUT_TYPES[one.dtype].bytes if one.tensor in "AB" else plan.out_type.bits
        if one.tensor == "C":  # a block-scaled C has a map of bytes
            across = plan.output[1]
        apart = one.strides[0] * 8 // bits
        parts.append(f"{one.tensor} [{down}, {across}]{f' in rows of {apart}' if apart > across else ''}")
    return f"layout {plan.layout}, in memory: {', '.join(parts)}"


def budget_note(plan: Plan) -> str:
    """Describes how the space for C affects the depth of the ring."""
    found = budget(plan)
    ring = f"{found.stages} x {kib(found.stage)} = {kib(found.stages * found.stage)} for A and B"
    if found.output == found.whole_tile:
        return f"{ring}, {kib(found.output)} for the whole tile of C."
    saved = f"{kib(found.output)} in place of {kib(found.whole_tile)} for C saves"
    saved += f" {kib(found.whole_tile - found.output)}"
    deeper = found.stages - found.stages_with_whole_tile
    if deeper > 0:
        saved += f", room for {deeper} more stage{'s' if deeper > 1 else ''} than with the whole tile"
    return f"{ring}; {saved}."


def barrier_facts(barrier: Barrier) -> list[tuple[str, str]]:
    """Returns what one phase of a barrier expects, who arrives, and who waits."""
    expects = f"{barrier.arrivals} arrival{'s' if barrier.arrivals != 1 else ''}"
    if barrier.bytes:
        expects += f" and {barrier.bytes:,} bytes"
    return [("expects", expects), ("arrives", barrier.arrives), ("waits", barrier.waits)]


def as_text(plan: Plan, width: int = WIDTH) -> str:
    """Writes the explanation in lines of at most this many columns, at least 40."""
    if plan.is_direct:
        memory = [f"shared memory of one CTA: {plan.dynamic_smem:,} bytes of partial sums, as many for each warp"]
        sections = [[headline(plan), *launch_lines(plan)], memory, _roles_text(plan, width)]
        return "\n\n".join("\n".join(_fit(lines, width)) for lines in sections)
    sections = [
        [headline(plan), *launch_lines(plan)],
        _budget_text(plan, width),
        _roles_text(plan, width),
        _barriers_text(plan, width),
        _cluster_text(plan, width),
        *([_order_text(plan, plan.tiles, width)] if plan.tiles else []),
    ]
    return "\n\n".join("\n".join(_fit(lines, width)) for lines in sections)


def _fit(lines: list[str], width: int) -> list[str]:
    """Continues long lines below, indented."""
    fitting: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        fitting += [line] if len(line) <= width else wrap(line, width, subsequent_indent=indent)
    return fitting


def as_dict(plan: Plan, plan_data: dict[str, Any]) -> dict[str, Any]:
    """Returns the plan, and what follows from it."""
    if plan.is_direct:
        return {"schema": SCHEMA, "plan": plan_data}
    found = budget(plan)
    return {
        "schema": SCHEMA,
        "plan": plan_data,
        "shared_memory": {**asdict(found), "free": found.free},
        "cluster": [vars(cta) for cta in ctas(plan)],
    }


def order_note(plan: Plan) -> str:
    """Describes in a sentence which CTAs compute which tiles."""
    config, clusters = plan.config, prod(plan.grid) // prod(plan.cluster)
    last = "no other" if clusters == 1 else f"c + {clusters}, c + {2 * clusters} and so on"
    return {
        "static": f"cluster c of {clusters} computes the tiles c, {last}",
        "dynamic": f"cluster c of {clusters} computes tile c, then takes the next number from a counter they all share",
        "clc": "a cluster computes its own tile, then asks for those of clusters that have not started",
        "none": "cluster c computes tile c",
    }[config["scheduler"]]


def order_numbers(tiles: TileOrder, columns: int = ORDER_COLUMNS) -> list[list[str]]:
    """Returns the shown corner of C: each cluster tile with its number in the order, or empty for a late one."""
    numbers = {place: number for number, place in enumerate(tiles.order)}
    shown = range(min(tiles.rows, ORDER_ROWS)), range(min(tiles.columns, columns))
    return [[str(numbers.get((row, column), "")) for column in shown[1]] for row in shown[0]]


def order_title(plan: Plan, tiles: TileOrder) -> str:
    rows, columns = plan.tile[0] * plan.cluster[0], plan.tile[1] * plan.cluster[1]
    return (
        f"order of the {tiles.rows} x {tiles.columns} cluster tiles of {rows} x {columns}: groups of "
        f"{plan.config['raster_group']} columns, walked along M"
    )


def _order_text(plan: Plan, tiles: TileOrder, width: int) -> list[str]:
    lines = [order_title(plan, tiles)]
    for row in order_numbers(tiles, min(ORDER_COLUMNS, (width - 1) // 5)):
        lines.append("  " + " ".join(f"{number:>4}" for number in row))
    return [*lines, *_indented(f"{order_note(plan)}.", width)]


def _budget_text(plan: Plan, width: int) -> list[str]:
    found = budget(plan)
    whole = BAR if width >= 80 else 0
    lines = ["shared memory of one CTA, in bytes"]
    for part in plan.shared_memory:
        bar = f"{'#' * round(whole * part.bytes / found.limit):<{whole}} " if whole else ""
        label = f"{part.name:<10} {part.bytes:>9,}  {kib(part.bytes):>9}  {bar}"
        lines += _indented(part.detail, width, label)
    lines.append(f"  {'used':<10} {found.used:>9,}  {kib(found.used):>9}")
    lines.append(f"  {'free':<10} {found.free:>9,}  {kib(found.free):>9}  of {found.limit:,}")
    return [*lines, *_indented(budget_note(plan), width)]


def _roles_text(plan: Plan, width: int) -> list[str]:
    lines = ["roles of the warps"]
    for role in plan.roles:
        lines += _indented(role.does, width, f"{role.name:<13} {warps(role.warps):<10}")
    return lines


def _barriers_text(plan: Plan, width: int) -> list[str]:
    lines = ["barriers (8 bytes each; addresses are bytes of dynamic shared memory)"]
    for barrier in plan.barriers:
        lines.append(f"  {barrier.name} x {barrier.count}, from {barrier.offset:,}")
        for name, fact in barrier_facts(barrier):
            lines += _indented(fact, width, f"  {name:<8}")
    return lines


def _cluster_text(plan: Plan, width: int) -> list[str]:
    cm, cn = plan.cluster[:2]
    found = ctas(plan)
    if len(found) == 1:
        return ["the cluster is one CTA: nothing is shared"]
    slices = [
        f"who sends what to whom in a cluster (down: x, along M; across: y, along N; rank = x + {cm} y)",
        "  A, B: receives this CTA's slice of A, of B; #: of both",
    ]
    commits = [
        "",
        "  the CTAs that a CTA signals when its MMA has read a stage (o), so that they may load it again",
    ]
    leaders = [cta for cta in found if cta.commits_to]
    shown = [_picture(cta, cm, cn, slice_mark) for cta in found]
    signalled = [_picture(cta, cm, cn, commit_mark) for cta in leaders]
    return [
        *slices,
        *_side_by_side(_by_rows(shown, found, cm), cn, width),
        *commits,
        *_side_by_side(_by_rows(signalled, leaders, cm), cn, width),
        "",
        *_masks_text(plan, found),
    ]


def _masks_text(plan: Plan, found: list[ClusterCta]) -> list[str]:
    """Returns the same as numbers (bit r for rank r), with the rows of a tile that each CTA loads."""
    lines = ["  the same as masks, and the rows of the receivers' tiles that each CTA loads"]
    if any(map(plan.is_mn_major, "AB")):
        lines.append("  lines of shared memory: line l has 64 rows, from 64 * (l // 64) on, at k = l % 64 of a stage")
    a, b = (f"{unit(plan, name)} of {name}" for name in "AB")
    lines.append(f"  rank  {'A to':<8}{a:<28}{'B to':<8}{b:<28}commit to")
    for cta, one in zip(found, plan.multicast, strict=True):
        signalled = f"{one.commit:#06x}" if cta.commits_to else "-"
        lines.append(
            f"  {cta.rank:>4}  {one.a:#06x}  {rows(plan, 'A', cta.a_rows):<28}"
            f"{one.b:#06x}  {rows(plan, 'B', cta.b_rows):<28}{signalled}"
        )
    return lines


def unit(plan: Plan, operand: str) -> str:
    """Returns the name of the slices of an operand."""
    return "lines" if plan.is_mn_major(operand) else "rows"


def rows(plan: Plan, operand: str, first_rows: tuple[int, ...]) -> str:
    """Returns the rows (or lines) that a CTA loads: boxes, rows of a box, first row, distance: ``3 x 8 from 16
    by 48``.
    """
    height = plan.operand(operand).box[1]
    if not first_rows:
        return "none"
    if len(first_rows) == 1:
        return f"{height} from {first_rows[0]}"
    return f"{len(first_rows)} x {height} from {first_rows[0]} by {first_rows[1] - first_rows[0]}"


def slice_mark(cta: ClusterCta, rank: int) -> str:
    """Returns what a CTA gets from this one: ``A``, ``B``, both ``#``, or nothing ``.``."""
    return {(True, True): "#", (True, False): "A", (False, True): "B", (False, False): "."}[
        rank in cta.a_to, rank in cta.b_to
    ]


def commit_mark(cta: ClusterCta, rank: int) -> str:
    """Returns ``o`` for a CTA that is signalled when the MMA of this one has read a stage."""
    return "o" if rank in cta.commits_to else "."


def _picture(cta: ClusterCta, cm: int, cn: int, mark: Mark) -> list[str]:
    """Returns the cluster as a small picture, with the CTA's rank above."""
    rows = [" ".join(mark(cta, x + y * cm) for y in range(cn)) for x in range(cm)]
    return [f"rank {cta.rank}", *rows]


def _by_rows(pictures: list[list[str]], of: list[ClusterCta], cm: int) -> list[list[list[str]]]:
    """Returns the pictures in rows: all CTAs of the same x."""
    rows = [[p for p, cta in zip(pictures, of, strict=True) if cta.x == x] for x in range(cm)]
    return [row for row in rows if row]


def _side_by_side(rows: list[list[list[str]]], cn: int, columns: int) -> list[str]:
    """Puts as many pictures side by side as fit in the columns."""
    width = max(2 * cn - 1, len("rank 15"))
    fit = max(1, (columns - 2) // (width + 3))
    lines: list[str] = []
    for row in rows:
        for first in range(0, len(row), fit):
            group = row[first : first + fit]
            lines += [
                "  " + "   ".join(line.ljust(width) for line in rows).rstrip() for rows in zip(*group, strict=True)
            ]
            lines.append("")
    return lines[:-1]


def _indented(text: str, width: int, label: str = "") -> list[str]:
    """Wraps text to the width, after a label; further lines start below the text."""
    first = f"  {label}{' ' if label else ''}"
    below = " " * min(len(first), width // 2)
    return wrap(text, width, initial_indent=first, subsequent_indent=below)


def warps(numbers: tuple[int, ...]) -> str:
    """Returns ``warp 4``, or ``warps 0-3``."""
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    return f"warps {numbers[0]}-{numbers[-1]}"


def kib(size: int) -> str:
    """Writes bytes as KiB, with one decimal if necessary."""
    return f"{size / 1024:.1f}".removesuffix(".0") + " KiB"


def _ranks(mask: int, size: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(size) if mask >> rank & 1)


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))
