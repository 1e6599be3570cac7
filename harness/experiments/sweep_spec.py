"""Reads the specification of a sweep from a file (SWEEP.toml), from options, or from both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from emugpu.errors import UsageProblem
from emugpu.launch.launching import LARGEST_SEED
from harness.compile.catalog import ARCHITECTURES, KERNELS, kernels_of
from harness.compile.config import find_kernel
from harness.compile.options import TUNABLE
from harness.compile.presets import find_preset
from harness.experiments.job import KINDS, Device, Kind
from harness.experiments.ranges import parse_numbers, parse_shapes, parse_values, several
from harness.problem import KINDS as INPUTS
from harness.toml_files import as_words, read_toml

SCHEMA = 1
DEVICES = ("emulator", "gpu", "model")


@dataclass(frozen=True)
class Sweep:
    """A requested sweep, not yet planned: it has a job for each combination.

    ``shapes`` are texts for `parse_shapes`. ``options`` holds values by the names of `make_config`; the kernel chooses
    the others. ``schedule_seeds`` are those of random schedules; None, also in a list, is the order of issue.
    """

    name: str
    kernels: tuple[str, ...]
    shapes: tuple[str, ...]
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    kind: Kind = "run"
    device: Device = "emulator"
    arch: str = "auto"
    preset: str | None = None
    inputs: tuple[str, ...] = ("integer",)
    seeds: Sequence[int] = (0,)
    schedule_seeds: Sequence[int | None] | None = None

    @property
    def id(self) -> str:
        """Returns a name computed from its content, so that the same sweep is found again."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        text = json.dumps(values, default=lambda value: [*value] if len(value) < 1000 else str(value), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _one_of(what: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(word: str) -> str:
        if word not in known:
            raise UsageProblem(f"there is no {what} {word!r}; use one of: {', '.join(known)}")
        return word

    return lambda text: parse_values(text, parse)


_PLAIN = ("kind", "device", "arch", "preset")
_KEYS = ("schema", "kernels", "shapes", "inputs", "seeds", "schedule_seeds", "options", *_PLAIN)


def read_sweep(path: Path, by: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a file. Errors name it and the key. ``by`` holds arguments of `make_sweep` that override it, options one by
    one.
    """
    return read_toml(path, f"sweep {path}", lambda data: _sweep(path.stem, data, by or {}))


def _sweep(name: str, data: Mapping[str, Any], by: Mapping[str, Any]) -> Sweep:
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise UsageProblem(f"there is no key {unknown[0]!r}; use: {', '.join(_KEYS)}")
    if data.get("schema") != SCHEMA:
        found = f"schema is {data['schema']!r}" if "schema" in data else "there is no schema"
        raise UsageProblem(f"{found}; this harness reads schema = {SCHEMA}")
    given: dict[str, Any] = {key: _words(key, data.get(key, ())) for key in ("kernels", "shapes")}
    given |= {key: as_words(key, data[key]) for key in ("inputs", "seeds", "schedule_seeds") if key in data}
    given |= {key: str(data[key]) for key in _PLAIN if key in data}
    table = data.get("options", {})
    if not isinstance(table, Mapping):
        raise UsageProblem(f"options is {table!r}; write a table, [options], with a line for each")
    options = {key: as_words(key, value) for key, value in table.items()}
    return make_sweep(name, **{**given, **by, "options": {**options, **by.get("options", {})}})


def _words(key: str, value: object) -> list[str]:
    values = [value] if isinstance(value, str | int) else value
    if not isinstance(values, Sequence) or not all(isinstance(one, str | int) for one in values):
        raise UsageProblem(f"{key} is {value!r}; write a list of texts")
    return [str(one) for one in values]


def make_sweep(
    name: str,
    *,
    kernels: Sequence[str],
    shapes: Sequence[str],
    options: Mapping[str, str],
    kind: str = "run",
    device: str | None = None,
    arch: str = "auto",
    preset: str | None = None,
    inputs: str | None = None,
    seeds: str | None = None,
    schedule_seeds: str | None = None,
) -> Sweep:
    """Makes a sweep from texts. With a ``device`` of None the kind of sweep decides it. Raises `UsageProblem` for
    unreadable texts.
    """
    if not kernels:
        raise UsageProblem(f"no kernel is named; name some of {', '.join(KERNELS)}, or all")
    named = [name for word in kernels for name in (kernels_of(options.get("dtype")) if word == "all" else [word])]
    named = list(dict.fromkeys(find_kernel(name).word for name in named))
    for key in options:
        if key not in TUNABLE:
            raise UsageProblem(f"there is no option {key!r}; use: {', '.join(TUNABLE)}")
    values = {key: several(TUNABLE[key], text) for key, text in options.items()}
    for shape in shapes:
        parse_shapes(shape)
    suits = {"run": ("emulator", "gpu"), "check": ("emulator",), "predict": ("model",)}
    _known("kind", kind, KINDS)
    device = device or suits[kind][0]
    _known("device", device, DEVICES)
    if device not in suits[kind]:
        raise UsageProblem(f"kind {kind} is not for device {device}; use --device {' or '.join(suits[kind])}")
    _known("arch", arch, ("auto", *ARCHITECTURES))
    if preset is not None:
        find_preset(preset)
    found_inputs = _one_of("kind of inputs", INPUTS)(
        ("normal" if device == "gpu" else "integer") if inputs is None else inputs
    )
    if schedule_seeds is not None and device != "emulator":
        raise UsageProblem(f"schedules are the emulator's; leave the seeds {schedule_seeds} out with device {device}")
    found_seeds = _seeds("0" if seeds is None else seeds, "seed")
    found_schedule_seeds = None if schedule_seeds is None else _seeds(schedule_seeds, "seeds")
    if not shapes:  # checked last, because a wrong value matters more than a missing one
        raise UsageProblem("no shape is named; say for example --shape 512:2048:512")
    return Sweep(
        name=name,
        kernels=tuple(named),
        shapes=tuple(dict.fromkeys(shapes)),
        options=values,
        kind=cast(Kind, kind),
        device=cast(Device, device),
        arch=arch,
        preset=preset,
        inputs=tuple(found_inputs),
        seeds=found_seeds,
        schedule_seeds=found_schedule_seeds,
    )


def _seeds(text: str, what: str) -> Sequence[int]:
    found = parse_numbers(text, what)
    if max(found) > LARGEST_SEED:
        raise UsageProblem(f"{what} {text!r}: the largest is {LARGEST_SEED}")
    return found


def _known(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise UsageProblem(f"{what} is {word!r}; use one of: {', '.join(known)}")
