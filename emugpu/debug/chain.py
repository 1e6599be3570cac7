"""Explains the value of an element: the events and K steps that contributed to it, and the first step that is wrong.

A K step is right if its rows of A and B are those of the element, if both are at the same place along K, and if no
place along K is multiplied twice or left out. This check needs no values. It finds a stage that is read too early as
well as one that is filled with the wrong box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from emugpu.debug.names import LaunchNames, element
from emugpu.debug.recording import RecordedBuffer
from emugpu.debug.writers import Write

SHOWN_STEPS = 10
TOLERANCE = 0.02
"""The relative difference that an element may have from its sum, because it is rounded to its type."""

ATOM_ROWS, ATOM_BLOCKS, ATOM_BYTES = 128, 4, 512
"""An atom holds the scale factors of this many rows and blocks along K, in this many bytes."""

Element = tuple[RecordedBuffer, tuple[int, ...]]
"""An element of a buffer."""


@dataclass(frozen=True)
class Link:
    """One contribution to an element. ``event`` is its number, or 0 if it has none."""

    event: int
    text: str


@dataclass
class KStep:
    """Multiplications that read the same stage.

    ``a`` and ``b`` hold the multiplied elements in order; None is an element of no buffer. ``factors`` holds the
    scale factors of A and B in the same way, and ``unscaled`` names one that had not been written. ``loads`` are the
    writes that brought a and b. ``wrong`` says why the step is wrong, or is "".
    """

    first: int
    last: int
    reads: int
    a: list[Element | None] = field(default_factory=list)
    b: list[Element | None] = field(default_factory=list)
    factors: tuple[list[Element | None], list[Element | None]] = field(default_factory=lambda: ([], []))
    unscaled: str = ""
    loads: tuple[Write | None, Write | None] = (None, None)
    stages: tuple[str, str] = ("", "")
    wrong: str = ""
    sum: float | None = None


@dataclass
class Chain:
    """The explanation: links from the element backwards, the K steps in order of time, and the first fault."""

    title: str
    links: list[Link] = field(default_factory=list)
    steps: list[KStep] = field(default_factory=list)
    verdict: str = ""
    wrong_at: int = 0
    """The event of the first step that is wrong, or 0 if none is known."""
    uncertain: bool = False
    """Whether several loads may have written a register; the chain then follows the last of them."""
    overwritten: Link | None = None
    """The write to the source of a copy between the copy's issue and its read, if there was one."""
    unknown: bool = False
    """Whether some multiplied values are unknown, because threads have stored them into the stage from registers."""


def judge(chain: Chain, placed: RecordedBuffer, index: tuple[int, ...], got: float | None, is_right: bool) -> None:
    """Finds the first K step that is wrong, and sets `KStep.wrong` and the verdict.

    ``got`` is the final value of the element, or None if it is poison. ``is_right``: the element is known to be as
    expected.
    """
    axes = [_k_axis([step.a for step in chain.steps]), _k_axis([step.b for step in chain.steps])]
    wanted = _wanted_rows(chain, axes, placed, index)
    done: dict[int, int] = {}
    scaled: dict[tuple[str, tuple[int, ...]], int] = {}
    sums: float | None = 0.0
    extent = 0
    for number, step in enumerate(chain.steps, 1):
        problem = ""
        for which, (elements, axis) in enumerate(zip((step.a, step.b), axes, strict=True)):
            there = [e for e in elements if e is not None]
            if elements and not there and step.loads[which] is None:
                problem = problem or f"{step.stages[which]} was not written by then"
            if axis is None or not there:
                continue
            extent = max(extent, there[0][0].shape[axis])
            row = _without(there[0][1], axis)
            if row != wanted[which]:
                name, must = there[0][0].name, _row(wanted[which])
                problem = problem or f"row {_row(row)} of {name} is multiplied in place of row {must}"
        for left, right in zip(step.a, step.b, strict=False):
            if left is None or right is None or None in axes:
                continue
            k, other = left[1][axes[0]], right[1][axes[1]]  # type: ignore[index]
            if k != other:
                problem = problem or f"K = {k} of {left[0].name} meets K = {other} of {right[0].name}"
            elif k in done:
                problem = problem or f"K = {k} is multiplied again, after step {done[k]}"
            done.setdefault(k, number)
        problem = problem or ("" if is_right else _misplaced_factor(step, axes, wanted))
        problem = problem or _wrong_factor(step, number, scaled)
        sums = _sum(sums, step) if not chain.unknown and not any(step.factors) else None
        step.sum, step.wrong = sums, problem
        if problem and not chain.wrong_at:
            chain.verdict = f"step {number} is the first that is wrong: {problem}"
            chain.wrong_at = step.reads
    missing = sorted(set(range(extent)) - done.keys()) if done and not chain.wrong_at else []
    if chain.uncertain and chain.wrong_at:
        chain.verdict = f"perhaps {chain.verdict}, if the path through registers above is the right one"
    if is_right and sums is not None and got is not None and _differ(got, sums):
        chain.links.append(
            Link(0, f"these products add up to {sums:.9g}; the element is made of this sum and is right: {got:.9g}")
        )
        sums = None
    if sums is not None and got is not None and _differ(got, sums):
        chain.links.append(Link(0, f"these products add up to {sums:.9g}, and the element is {got:.9g}: see below"))
        chain.verdict += "; " if chain.verdict else ""
        chain.verdict += "the value was changed after the sum, or the debugger followed the wrong registers"
    elif chain.unknown:
        rest = "threads passed them through registers; the other steps show no fault"
        chain.verdict = chain.verdict or f"some multiplied values are unknown: {rest}"
    elif missing:
        chain.verdict = f"K = {missing[0]} is never multiplied, nor are {len(missing) - 1:,} others of {extent:,}"
        chain.wrong_at = chain.steps[-1].last
    elif not chain.wrong_at and done:
        chain.verdict = f"each of the {extent:,} places along K is multiplied once, with the right partner"


def _misplaced_factor(step: KStep, axes: Sequence[int | None], wanted: Sequence[tuple[int, ...]]) -> str:
    """Returns the fault if a scale factor belongs to another row or another block along K than its elements."""
    for elements, factors, axis, row in zip((step.a, step.b), step.factors, axes, wanted, strict=True):
        block = len(elements) // len(factors) if factors else 0
        for scaled, found in zip(elements[:: block or 1], factors, strict=False):
            if scaled is None or found is None or axis is None or len(row) != 1:
                continue
            (buffer, index), k = found, scaled[1][axis]
            if len(index) != 3 or buffer.shape[-1] != ATOM_BYTES:
                continue
            # The layout for tcgen05.cp.32x128b: "1D block scaling factors layout", cuBLAS 12.9.
            lane, word, byte = index[2] // 16, index[2] % 16 // 4, index[2] % 4
            of_row, of_k = ATOM_ROWS * index[0] + 32 * word + lane, (ATOM_BLOCKS * index[1] + byte) * block
            name = f"scale factor {element(buffer.name, index)} is of"
            if of_row != row[0]:
                return f"{name} row {of_row} of {scaled[0].name}, not of row {row[0]}"
            if of_k != k:
                return f"{name} K = {of_k}, not of K = {k}"
    return ""


def _wrong_factor(step: KStep, number: int, scaled: dict[tuple[str, tuple[int, ...]], int]) -> str:
    """Returns the fault if a block along K has no scale factor of its own.

    ``scaled`` maps the factors that were used so far to their steps.
    """
    if step.unscaled:
        return f"{step.unscaled} was not written by then"
    problem = ""
    for found in filter(None, (*step.factors[0], *step.factors[1])):
        place = found[0].name, found[1]
        if place in scaled:
            problem = problem or f"scale factor {element(*place)} is used again, after step {scaled[place]}"
        scaled.setdefault(place, number)
    return problem


def _differ(got: float, wanted: float) -> bool:
    return abs(got - wanted) > TOLERANCE * max(1.0, abs(wanted))


def lines_of(chain: Chain, names: LaunchNames) -> list[str]:
    """Returns the chain as lines of text."""
    lines = [chain.title]
    lines += [
        f"  {f'event {link.event}':>13}  {link.text}" if link.event else f"  {'':>13}  {link.text}"
        for link in chain.links
    ]
    steps = list(enumerate(chain.steps, 1))
    wrong = next((n for n, step in steps if step.wrong), 0)
    shown = (
        {*range(1, 4), len(steps), wrong - 1, wrong, wrong + 1}
        if len(steps) > SHOWN_STEPS
        else set(range(len(steps) + 1))
    )
    left_out = False
    for number, step in steps:
        if number not in shown:
            if not left_out:
                lines.append(f"  {'':>13}    ...")
            left_out = True
            continue
        left_out = False
        lines.append(f"  {f'event {step.reads}':>13}    step {number}: {_step(step)}")
        if step.wrong:
            lines.append(f"  {'':>13}      WRONG: {step.wrong}")
            for load in step.loads if number == wrong else ():
                if load is not None and load.operation is not None:
                    by = f"{names.operation(load.operation)}, issued by {names.agent(load.operation.agent)}"
                    lines.append(f"  {f'event {load.event}':>13}      filled by {by}")
    if chain.verdict:
        lines.append(chain.verdict)
    return lines


def _step(step: KStep) -> str:
    sides = []
    for elements, stage, load in zip((step.a, step.b), step.stages, step.loads, strict=True):
        what = _span(elements)
        sides.append(
            f"{what} from {stage}{f' (event {load.event})' if load else ''}" if elements else f"a matrix in {stage}"
        )
    scales = [_span(found) for found in step.factors if any(found)]
    if scales:
        sides[-1] += f", scaled by {' and '.join(scales)}"
    total = f"; sum so far {step.sum:.9g}" if step.sum is not None else ""
    return f"{' x '.join(sides)}{total}"


def _span(elements: list[Element | None]) -> str:
    """Returns, for example, ``A[3,0:64]``."""
    there = [e for e in elements if e is not None]
    if not there:
        return "what is not known"
    ranges = [(min(along), max(along) + 1) for along in zip(*(index for _, index in there), strict=True)]
    return element(there[0][0].name, [f"{first}:{end}" if end > first + 1 else first for first, end in ranges])


def _k_axis(steps: Iterable[Sequence[Element | None]]) -> int | None:
    """Returns the dimension along which the elements of a multiplication differ, or None."""
    for elements in steps:
        there = [e[1] for e in elements if e is not None]
        for first, second in pairwise(there):
            differing = [n for n, (x, y) in enumerate(zip(first, second, strict=False)) if x != y]
            if len(differing) == 1:
                return differing[0]
    return None


def _without(index: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return index[:axis] + index[axis + 1 :]


def _row(row: tuple[int, ...]) -> str:
    return ",".join(map(str, row))


def _wanted_rows(
    chain: Chain, axes: Sequence[int | None], placed: RecordedBuffer, index: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Returns the rows of A and of B that belong to an element.

    These are the element's own row and column. In a transposed product, where both operands have changed places,
    they are the same in reverse. If the element does not lie in a matrix of such rows, they are the rows that most
    steps have.
    """
    rows: list[Counter[tuple[int, ...]]] = [Counter(), Counter()]
    extents = [0, 0]
    for step in chain.steps:
        for which, (elements, axis) in enumerate(zip((step.a, step.b), axes, strict=True)):
            if elements and elements[0] is not None and axis is not None:
                buffer, place = elements[0]
                rows[which][_without(place, axis)] += 1
                extents[which] = _without(buffer.shape, axis)[0] if len(buffer.shape) == 2 else 0
    usual = [found.most_common(1)[0][0] if found else () for found in rows]
    if len(index) != 2:
        return usual
    own, other = ([rows[which][(index[axis],)] for which, axis in enumerate(way)] for way in ((0, 1), (1, 0)))
    wanted = []
    for which, axis in enumerate((1, 0) if all(other) and sum(other) > sum(own) else (0, 1)):
        row = (index[axis],)
        wanted.append(row if row in rows[which] or extents[which] == placed.shape[axis] else usual[which])
    return wanted


def _sum(sums: float | None, step: KStep) -> float | None:
    """Adds the products of a step to a sum. Returns None if a value is unknown."""
    if sums is None or len(step.a) != len(step.b):
        return None
    for left, right in zip(step.a, step.b, strict=True):
        if left is None or right is None:
            continue
        for placed, _ in (left, right):
            if placed.first is None or placed.dtype.packed:
                return None
        sums += float(left[0].first[left[1]]) * float(right[0].first[right[1]])  # type: ignore[index]
    return sums
