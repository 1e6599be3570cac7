"""Tunes a kernel for a problem: tiles and clusters first, then the other options around the best of them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from time import monotonic as time

from emugpu.errors import CannotRun
from emugpu.processes.engine import Engine
from emugpu.processes.worker_process import JobTimeout
from emugpu.record import new_record
from harness.compile.compiler import versions
from harness.compile.config import KernelConfig
from harness.experiments.job import (
    Device,
    Job,
    Kind,
    Record,
    Round,
    SourceMismatch,
    compile_all,
    made_by,
    perform,
    time_round,
)
from harness.experiments.race import MOST_ROUNDS, Runner, race
from harness.experiments.space import Candidates
from harness.experiments.times import TimeVerdict, compare_times
from harness.problem import Shape
from harness.run.measure import require_timed

PROCESSES = 5
"""The number of fresh processes that time the winner and the default on a GPU at the end."""
FIGURES = {"gpu": "measured", "model": "predicted", "emulator": "counted"}
"""The kind of figure that each device gives."""


@dataclass(frozen=True)
class TuningLimits:
    """The limits of a tuning. ``budget``: configurations to compile besides the default. ``limit``: seconds per job,
    on a GPU per candidate of a round. ``workers``: simultaneous compilations.
    """

    device: Device
    budget: int = 24
    limit: float | None = 600.0
    inputs: str = "integer"
    workers: int = 1


@dataclass
class Tuned:
    """The result of a tuning.

    ``gain``: the default's figure over the best one's, above 1 if the best one is better. ``verdict``: the comparison
    of the winner with the default in fresh processes after a race on GPUs; unless it is FASTER, the default is the
    best. ``failures``: why candidates have no figure.
    """

    candidates: Candidates
    shape: Shape
    limits: TuningLimits
    best: KernelConfig
    figures: dict[KernelConfig, float]
    gain: float
    heats: dict[str, list[Runner[KernelConfig]]] = field(default_factory=dict)
    winner: KernelConfig | None = None
    verdict: TimeVerdict | None = None
    record: Record = field(default_factory=dict)
    failures: dict[KernelConfig, str] = field(default_factory=dict)

    @property
    def default(self) -> KernelConfig:
        return self.candidates.default

    @property
    def unit(self) -> str:
        """Returns the unit of the figures."""
        return "bytes" if self.limits.device == "emulator" else "seconds"


Say = Callable[[str], None]


def tune(
    candidates: Candidates, shape: Shape, limits: TuningLimits, engine: Engine, say: Say = lambda message: None
) -> Tuned:
    """Tunes a kernel. Raises `CannotRun` if the default has no result to compare with."""
    with tempfile.TemporaryDirectory(prefix="gpu-rounds-") as folder:
        return _tune(candidates, _Evaluator(shape, limits, engine, say, Path(folder)))


def _tune(candidates: Candidates, evaluator: _Evaluator) -> Tuned:
    shape, limits = evaluator.shape, evaluator.limits
    if limits.device == "gpu":
        for config in candidates.forms:
            require_timed(config)
    rounds = MOST_ROUNDS if limits.device == "gpu" else 1
    forms = [candidates.default, *candidates.forms[: ceil(limits.budget / 2)]]
    evaluator.later = _halvings(limits.budget // 2 + 1) + 2 * PROCESSES
    heats = {"tile and cluster": evaluator.race(forms, rounds)}
    if candidates.default in evaluator.failures:
        raise CannotRun(f"the default has no result: {evaluator.failures[candidates.default]}")
    first = heats["tile and cluster"][0].candidate
    variants = [first, *_spread(candidates.variants(first), limits.budget // 2)]
    evaluator.later = 2 * PROCESSES
    heats["the other options"] = evaluator.race(variants, rounds)
    winner = heats["the other options"][0].candidate
    figures = {config: value for config, value in evaluator.figures.items() if config in (winner, candidates.default)}
    found = Tuned(
        candidates, shape, limits, winner, figures, figures[candidates.default] / figures[winner], heats, winner,
        failures=evaluator.failures,
    )  # fmt: skip
    if limits.device == "gpu":
        _confirm(found, evaluator)
    found.record = evaluator.records[found.best]
    return found


def _halvings(count: int) -> int:
    """Returns about how many times a race of so many candidates measures one."""
    return count + _halvings(count // 2) if count > 1 else 0


def _spread(variants: Sequence[KernelConfig], count: int) -> list[KernelConfig]:
    """Picks ``count`` variants, evenly over the list, which goes option by option."""
    step = max(1.0, len(variants) / max(count, 1))
    return [variants[int(n * step)] for n in range(min(count, len(variants)))]


def _confirm(found: Tuned, evaluator: _Evaluator) -> None:
    """Measures the winner against the default in fresh processes. Without a difference the default is best."""
    default, winner = found.default, found.best
    if winner == default:
        found.gain = 1.0
        return
    evaluator.say(f"confirming in {PROCESSES} fresh processes")
    timings: dict[KernelConfig, list[Record]] = {default: [], winner: []}
    for number in range(PROCESSES):  # the first to be timed takes turns
        for config, record in evaluator.records_of([default, winner][:: 1 if number % 2 else -1]):
            if record is not None:
                timings[config].append(record["timing"])
    found.verdict = compare_times({"processes": timings[default]}, {"processes": timings[winner]})
    found.figures |= {config: _median(those) for config, those in timings.items() if those}
    ratio = found.verdict.interval.ratio if found.verdict.interval else 1.0
    if found.verdict.verdict == "FASTER":
        found.gain = 1 / ratio
    else:
        found.best, found.gain = default, 1.0


def _median(processes: Sequence[Record]) -> float:
    seconds = sorted(one["seconds"] for one in processes)
    return seconds[len(seconds) // 2]


class _Evaluator:
    """Compiles candidates and gets their figures. ``figures`` holds the latest of each. ``later`` is about how many
    measurements follow the present race, of which the user is told.
    """

    def __init__(self, shape: Shape, limits: TuningLimits, engine: Engine, say: Say, folder: Path) -> None:
        self.shape, self.limits, self.engine, self.say, self.folder = shape, limits, engine, say, folder
        self.figures: dict[KernelConfig, float] = {}
        self.failures: dict[KernelConfig, str] = {}
        self.records: dict[KernelConfig, Record] = {}
        self.later = 0
        self._random = random.Random(0)
        self._seconds_each = 0.0

    def race(self, configs: Sequence[KernelConfig], rounds: int) -> list[Runner[KernelConfig]]:
        configs = list(dict.fromkeys(configs))
        self._compile(configs)
        runners = race(configs, self._measure, rounds)
        if not runners[0].values:
            raise CannotRun(f"no candidate has a result; of the first: {self.failures[configs[0]]}")
        return runners

    def _compile(self, configs: Sequence[KernelConfig]) -> None:
        self.say(f"compiling {len(configs)} configurations")
        for _, failed in compile_all(self.engine, configs, self.limits.workers):
            self.failures |= failed

    def _measure(self, configs: Sequence[KernelConfig]) -> Iterator[tuple[KernelConfig, float | None]]:
        """Measures each candidate once, in a random order for each round, so that drifts affect all alike."""
        left = [config for config in configs if config not in self.failures]
        if self.limits.device == "gpu":
            self._random.shuffle(left)
        self.say(f"{len(left)} candidates{self._left(len(left))}")
        for config in configs:
            if config in self.failures:
                yield config, None
        for config, record in self.records_of(left):
            if record is not None:
                self.figures[config] = self._figure(record)
            yield config, None if record is None else self.figures[config]

    def _left(self, alive: int) -> str:
        """Returns how long the measurements will take by those so far."""
        seconds = self._seconds_each * (_halvings(alive) + self.later)
        return f", about {seconds:.0f} s of measuring left" if seconds else ""

    def records_of(self, configs: Sequence[KernelConfig]) -> Iterator[tuple[KernelConfig, Record | None]]:
        """Yields a new record of each, or None without a right result; `failures` has the reason. On a GPU one process
        times all of them.
        """
        for config, found in (self._round if self.limits.device == "gpu" else self._jobs)(configs):
            if isinstance(found, str):
                self.failures[config] = found
                yield config, None
            else:
                self.records[config] = found
                yield config, found

    def _round(self, configs: Sequence[KernelConfig]) -> Iterator[tuple[KernelConfig, Record | str]]:
        if not configs:
            return
        start, sources = time(), made_by(configs[0].sources.root)
        asked = Round(tuple(configs), self.shape, self.limits.inputs, sources, self.folder)
        limit = self.limits.limit and self.limits.limit * len(configs)
        [done] = self.engine.map(time_round, [asked], limit, "GPU")
        if isinstance(done.error, SourceMismatch):
            raise done.error
        self._seconds_each = (time() - start) / len(configs)
        yield from zip(configs, [_reason(done.error)] * len(configs) if done.error else done.value, strict=True)

    def _jobs(self, configs: Sequence[KernelConfig]) -> Iterator[tuple[KernelConfig, Record | str]]:
        kind: Kind = "predict" if self.limits.device == "model" else "run"
        jobs = (
            Job(
                config,
                self.shape,
                self.limits.inputs,
                kind=kind,
                device=self.limits.device,
                made_by=made_by(config.sources.root),
            )
            for config in configs
        )
        for done in self.engine.map(perform, jobs, self.limits.limit):
            if isinstance(done.error, SourceMismatch):
                raise done.error
            is_wrong = not done.error and (done.value.get("validation") or {}).get("passed") is False
            problem = _reason(done.error) if done.error else "the result is wrong" if is_wrong else ""
            yield done.item.config, problem or done.value

    def _figure(self, record: Record) -> float:
        """Returns the figure to compare (smaller is better). On a GPU it is the time alone, because alternating with a
        library that draws less power favours kernels that draw more.
        """
        if self.limits.device == "model":
            return float(record["predicted"]["seconds"])
        if self.limits.device == "gpu":
            return float(record["timing"]["seconds"])
        counters = record["counters"]
        return float(counters["tma_global_bytes_read"] + counters["tma_global_bytes_written"])


def _reason(error: Exception) -> str:
    return f"{error}; give it more with --timeout" if isinstance(error, JobTimeout) else str(error)


def evidence_of(found: Tuned) -> Record:
    """Returns the evidence for a configuration: how it was found, and the comparison."""
    record, verdict = found.record, found.verdict
    evidence: Record = {
        "time": new_record(git=None)["time"],
        "device": record["device"]["name"],
        "driver": record["device"]["driver"],
        "shape": [found.shape.m, found.shape.n, found.shape.k],
        "inputs": found.limits.inputs,
        "seconds": found.figures[found.best],
        "default_seconds": found.figures[found.default],
        "default": found.default.label,
        "gain": round(found.gain, 4),
        "candidates": len({runner.candidate for runners in found.heats.values() for runner in runners}),
        "toolchain": {name: version for name, version in versions().items() if version},
    }
    if verdict is not None and verdict.interval is not None:
        evidence |= {"verdict": verdict.verdict, "processes": PROCESSES}
        evidence["interval"] = [round(1 / verdict.interval.high, 4), round(1 / verdict.interval.low, 4)]
    commit = (record.get("git") or {}).get("commit")
    return evidence | ({"commit": commit} if commit else {})


def _one(found: Tuned, config: KernelConfig) -> Record:
    return {
        "config": config.as_dict(),
        "label": config.label,
        found.unit: found.figures[config],
        "status": FIGURES[found.limits.device],
    }


def as_dict(found: Tuned) -> Record:
    """Returns the outcome as plain data for JSON."""
    return {
        "best": _one(found, found.best),
        "default": _one(found, found.default),
        "gain": found.gain,
        "kernel": found.candidates.kernel,
        "shape": [found.shape.m, found.shape.n, found.shape.k],
        "device": found.limits.device,
        "verdict": asdict(found.verdict) if found.verdict else None,
        "heats": [
            {
                "what": what,
                "ranking": [{"label": r.candidate.label, "values": r.values, "out": r.out} for r in runners],
            }
            for what, runners in found.heats.items()
        ],
        "failures": {config.label: reason for config, reason in found.failures.items()},
    }
