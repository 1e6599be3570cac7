"""Leaves out, weakens or misplaces every synchronising instruction of compiled kernels, one at a time, and says whether
`harness verify` reports it.

    python tests/mutation/kernel_mutants.py                                every mutant of kernels 5 to 9
    python tests/mutation/kernel_mutants.py --kernel kernel7 --cluster 2x2 --sample 50
    python tests/mutation/kernel_mutants.py --kind "relaxed arrival"

A mutant is run with a checker, in issue order and then under random schedules, until something is found that the
original does not have. ``error`` and ``warning`` are findings of the checker; ``stopped``: the run ended in a report of
the machine (a hang, a fault) without one; ``wrong``: nothing was said, and C is wrong. A mutant of which nothing is
seen has to be one of `EQUIVALENT`, where the reason stands. Code that the original does not reach is left alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is imported; a core a process
sys.path.append(str(Path(__file__).parents[1] / "support"))  # where pytest finds it, too

import click
from kernel_mutations import Mutant, mutants
from kernel_runs import BLOCK_K, cluster_tile, run
from rich.console import Console
from rich.table import Table

from emugpu.check import Checker
from emugpu.emulator import EmulatorError
from emugpu.emulator.machine.events import Issued
from emugpu.errors import CannotRun
from harness.compile.artifacts import Artifact, build
from harness.compile.config import KernelConfig, find_kernel, make_config
from harness.problem import Shape, operand_bits

KERNELS = ("kernel5", "kernel6", "kernel7", "kernel8", "kernel9")
SHAPES = (("sm_100a", (2, 1)), ("sm_100a", (2, 2)), ("sm_100a", (4, 2)), ("sm_90a", (2, 1)))
OF_SCALED = (*SHAPES, ("sm_100a", (4, 1)), ("sm_100a", (4, 4)))
"""Of kernel 9, whose scale factors go other ways than A and B: those of B to both CTAs of every pair."""


@dataclass(frozen=True)
class Equivalent:
    """Mutants that change nothing a program could rely on, and why. Patterns: of the kind, of the instruction, of
    "2 of 3" and of "kernel7 sm_100a 2x2".
    """

    reason: str
    kind: str
    text: str
    which: str = ""
    kernels: str = ""

    def covers(self, kernel: str, mutant: Mutant) -> bool:
        return all(
            re.search(pattern, text)
            for pattern, text in (
                (self.kind, mutant.kind),
                (self.text, mutant.text),
                (self.which, mutant.which),
                (self.kernels, kernel),
            )
        )


LAST = r"^(\d+) of \1$"
EQUIVALENT = (
    Equivalent(
        "The lanes are together again where the branch ends; what memory order they need, the barrier or the arrival "
        "behind it gives, or only the elected lane has accessed anything.",
        "dropped",
        r"bar\.warp\.sync",
    ),
    Equivalent("It lets other kernels allocate; this one does not depend on it.", "dropped", "relinquish_alloc_permit"),
    Equivalent(
        "Bytes are waited for, not the arrival: the thread that arms the barrier hands nothing over.",
        "relaxed arrival",
        "expect_tx",
    ),
    Equivalent(
        "fence.mbarrier_init.release.cluster stands before it, and nothing else is handed over.",
        "relaxed arrival",
        r"barrier\.cluster",
        "^1 of",
    ),
    Equivalent(
        "Everything that reaches a CTA has been waited for: its accumulator, and in the drain each stage's release.",
        "dropped|relaxed arrival",
        r"barrier\.cluster",
        LAST,
    ),
    Equivalent(
        "Allocation and deallocation are synchronous; no tcgen05 operation of another thread is waited for here.",
        "dropped",
        r"tcgen05\.fence",
    ),
    Equivalent(
        "The drain: nothing comes after it but the end, and execution alone has to wait.",
        "relaxed wait",
        "try_wait",
    ),
    Equivalent(
        "It releases the last stages of the last tile, for which only the drain waits.",
        "relaxed arrival",
        r"mbarrier\.arrive\.shared::cluster",
        LAST,
        "kernel[567] sm_90a",
    ),
    Equivalent(
        "Since the last multiplication nothing has touched the accumulators; before the first fence something has.",
        "dropped",
        r"wgmma\.fence",
        r"^(?!1 of)",
        "kernel[678] sm_90a",
    ),
    Equivalent("The mask is the same for both parities.", "mask moved to the other parity", ""),
    Equivalent("Not a wait at the first stage of a ring.", "the parity turns a stage too late", ""),
)


@dataclass(frozen=True)
class Verdict:
    """``seen``: error, warning, stopped, wrong, equivalent or survived; ``how``: rules, or a report's first line."""

    kernel: str
    kind: str
    line: int
    text: str
    which: str
    seen: str
    how: str
    schedule: str


def config_of(kernel: str, arch: str, cluster: tuple[int, int]) -> KernelConfig:
    """Kernels 8 and 9 with few stages: their K loop is short then, and goes round its ring all the same. The largest
    cluster has narrow tiles: it multiplies half as much.
    """
    options: dict[str, Any] = {"stages": 3} if kernel in ("kernel8", "kernel9") else {}
    if kernel == "kernel8" and arch == "sm_90a":
        options["sms"] = cluster[0] * cluster[1]
    if cluster == (4, 4):
        options["mma_shape"] = (256, 128)
    return make_config(kernel, arch=arch, cluster=cluster, **options)


def name_of(config: KernelConfig) -> str:
    return f"{config.kernel} {config.arch} {config.cluster[0]}x{config.cluster[1]}"


def size_of(config: KernelConfig) -> tuple[int, int, int]:
    """One cluster tile, twice round the ring. Several tiles, one after another, where the kernel walks over them: five
    have the answers of launch control go round their ring, too.
    """
    m, n = cluster_tile(config)
    if config.kernel == "kernel9":
        # Three steps: with two, the wait for the accumulator would cover that for a slot of scale factors.
        return m, 5 * n, 3 * BLOCK_K * 16 // operand_bits(config.dtype)
    if config.kernel == "kernel8":
        # On sm_90a a tile is stored during the K loop of the next one, a slice in each step.
        return (m, 3 * n, BLOCK_K * 9) if config.arch == "sm_90a" else (m, 5 * n, BLOCK_K * 2)
    return m, n, BLOCK_K * (2 * config.stages + 1)


Seen = dict[tuple[str, str], int]
"""How many findings of a severity and a rule."""


class Subject:
    """A kernel whose mutants are run, and what a checker says of the kernel itself."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.name = name_of(artifact.config)
        self.size = size_of(artifact.config)
        self._own: dict[tuple[str, int], Seen] = {}

    def mutants(self) -> list[Mutant]:
        """Those of code that is reached."""
        reached = self._lines_reached()
        every = mutants(self.artifact.ptx, self.artifact.plan(Shape(*self.size)))
        return [mutant for mutant in every if mutant.line in reached]

    def _lines_reached(self) -> set[int]:
        lines = set()

        def note(event: Any) -> None:
            site = event.operation.site if isinstance(event, Issued) else getattr(event, "site", None)
            if site is not None:
                lines.add(site.line)

        run(self.artifact, self.size, "index", sinks=(note,), resident_clusters=1, strict=False)
        return lines

    def judge(self, mutant: Mutant, seeds: int) -> Verdict:
        where = (self.name, mutant.kind, mutant.line, mutant.text, mutant.which)
        for schedule, seed in [("fifo", 0), *(("random", seed) for seed in range(seeds))]:
            seen, how = self._look(mutant, schedule, seed)
            if seen:
                return Verdict(*where, seen, how, f"{schedule} {seed}")
        for equivalent in EQUIVALENT:
            if equivalent.covers(self.name, mutant):
                return Verdict(*where, "equivalent", equivalent.reason, "")
        return Verdict(*where, "survived", "", "")

    def _look(self, mutant: Mutant, schedule: str, seed: int) -> tuple[str, str]:
        found, end = self.watch(mutant.ptx, schedule, seed)
        if (schedule, seed) not in self._own:
            self._own[schedule, seed], own_end = self.watch(self.artifact.ptx, schedule, seed)
            assert own_end == "right", f"{self.name}: {own_end}"
        own = self._own[schedule, seed]
        new = {key for key, count in found.items() if count > own.get(key, 0)}
        for severity in ("error", "warning"):
            rules = sorted(rule for found_severity, rule in new if found_severity == severity)
            if rules:
                return severity, ", ".join(rules)
        if end == "right":
            return "", ""
        return ("wrong", "") if end == "wrong" else ("stopped", end)

    def watch(self, ptx: str, schedule: str, seed: int) -> tuple[Seen, str]:
        """Findings, and how the run ended: "right", "wrong", or the report that stopped it."""
        checker = Checker()
        try:
            _, verdict = run(
                self.artifact, self.size, "index", ptx=ptx, schedule=schedule, seed=seed, sinks=(checker,),
                resident_clusters=1, max_steps=400_000, strict=False,
            )  # fmt: skip
            end = "right" if verdict.passed else "wrong"
        except CannotRun as error:
            end = str(error).partition("\n")[0]
            assert isinstance(error.__cause__, EmulatorError), error
            assert getattr(error.__cause__, "rule", "") != "unsupported", error
            checker.failed(error.__cause__)
        return Counter((finding.severity, finding.rule) for finding in checker.report().findings), end


_subjects: dict[KernelConfig, Subject] = {}


def _judge(job: tuple[KernelConfig, Mutant, int]) -> Verdict:
    """In a worker process, which keeps its subjects."""
    config, mutant, seeds = job
    if config not in _subjects:
        _subjects[config] = Subject(build([config])[0])
    return _subjects[config].judge(mutant, seeds)


def jobs_for(configs: list[KernelConfig], kind: str, seeds: int) -> Iterator[tuple[KernelConfig, Mutant, int]]:
    for config, artifact in zip(configs, build(configs), strict=True):
        for mutant in Subject(artifact).mutants():
            if kind in mutant.kind:
                yield config, mutant, seeds


@click.command(context_settings={"show_default": True})
@click.option("--kernel", "kernels", multiple=True, default=KERNELS, help="Can be repeated.")
@click.option("--arch", default="", help="One architecture only.")
@click.option("--cluster", default="", metavar="XxY", help="One shape of cluster only.")
@click.option("--kind", default="", help="Mutants of which the kind has this in its name.")
@click.option("--sample", type=int, help="So many of them, drawn with --seed; all by default.")
@click.option("--seed", default=1)
@click.option("--schedules", default=3, help="Random schedules to try where issue order shows nothing.")
@click.option("--jobs", default=2)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every verdict.")
def main(kernels: tuple[str, ...], arch: str, cluster: str, kind: str, sample: int | None, seed: int, schedules: int,
         jobs: int, json_path: Path | None) -> None:  # fmt: skip
    """Says of every mutant of the kernels whether the checker reports it. Exit code 1: some survive."""
    configs = [
        config_of(kernel, its_arch, shape)
        for kernel in kernels
        for its_arch, shape in (OF_SCALED if kernel == "kernel9" else SHAPES)
        if its_arch in find_kernel(kernel).archs
        and its_arch.startswith(arch)
        and cluster in ("", f"{shape[0]}x{shape[1]}")
    ]
    work = list(jobs_for(configs, kind, schedules))
    if sample is not None:
        work = random.Random(seed).sample(work, min(sample, len(work)))
    verdicts = []
    with ProcessPoolExecutor(jobs) as pool:
        for number, verdict in enumerate(pool.map(_judge, work, chunksize=4), 1):
            verdicts.append(verdict)
            click.echo(
                f"{number:5}/{len(work)} {verdict.seen:10} {verdict.kernel} line {verdict.line}: {verdict.text[:70]}: "
                f"{verdict.kind}  [{verdict.how[:100]}]"
            )
    print_summary(verdicts)
    if json_path:
        json_path.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
    raise SystemExit(any(verdict.seen == "survived" for verdict in verdicts))


def print_summary(verdicts: list[Verdict]) -> None:
    outcomes = ("error", "warning", "stopped", "wrong", "equivalent", "survived")
    table = Table("kind", "mutants", *outcomes)
    for kind in dict.fromkeys(verdict.kind for verdict in verdicts):
        seen = Counter(verdict.seen for verdict in verdicts if verdict.kind == kind)
        table.add_row(kind, str(seen.total()), *(str(seen[outcome] or "") for outcome in outcomes))
    seen = Counter(verdict.seen for verdict in verdicts)
    table.add_section()
    table.add_row("all", str(seen.total()), *(str(seen[outcome] or "") for outcome in outcomes))
    Console(width=max(100, Console().width)).print(table)


if __name__ == "__main__":
    main()
