"""Extracts the data of the report from the history as plain rows, without drawing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emugpu.gpus import GpuFacts, facts, names, usual_gpu
from harness.experiments import history
from harness.experiments.history import BASELINES, case_of, is_right
from harness.run.records import DamagedLine

ELEMENT_BYTES = 2
Record = Mapping[str, Any]


@dataclass(frozen=True)
class DeviceRecords:
    """The right records of one kind of device, oldest first, and the newest of every case. ``everything`` includes the
    wrong ones.
    """

    kind: str
    records: Sequence[Record]
    everything: Sequence[Record] = ()

    @property
    def emulated(self) -> bool:
        return self.kind.startswith("emulated")

    @property
    def name(self) -> str:
        return self.records[-1]["device"]["name"]

    @property
    def newest(self) -> dict[str, Record]:
        return {case_of(record): record for record in self.records}

    @property
    def newest_of_all(self) -> dict[str, Record]:
        return {case_of(record): record for record in self.everything or self.records}

    @property
    def kernels(self) -> list[str]:
        return sorted({record["kernel"] for record in self.records})


@dataclass(frozen=True)
class Results:
    """All devices, GPUs first, and the unreadable lines."""

    devices: list[DeviceRecords] = field(default_factory=list)
    damaged: list[DamagedLine] = field(default_factory=list)


def gpu_of(record: Record) -> GpuFacts:
    """Returns the GPU of the record, or the usual one for its kernels."""
    named = {gpu.title: gpu for gpu in map(facts, names())}
    return named.get(record["device"]["name"]) or usual_gpu(str(record["config"].get("arch", "sm_90a")))


def load_results(folder: Path) -> Results:
    """Reads every history in a folder. If there is no benchmark, reads the single runs. Wrong results appear only in
    the summary of the state, not in pictures.
    """
    results = Results()
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem == BASELINES:
            continue
        found = history.load(path)
        results.damaged.extend(found.damaged)
        everything = found.records or [_as_benchmark(record) for record in found.single_runs]
        right = [record for record in everything if is_right(record)]
        if right:
            results.devices.append(DeviceRecords(path.stem, right, everything))
    results.devices.sort(key=lambda device: device.emulated)
    return results


def _as_benchmark(record: Record) -> dict[str, Any]:
    """Returns a record of ``harness run`` as one of a benchmark, with a case's name and its own run."""
    config, inputs = record["config"], record["inputs"]
    tile = [f"{name}={'x'.join(map(str, config[name][:2]))}" for name in ("cluster", "mma_shape") if name in config]
    stages = [f"stages={config['stages']}"] if "stages" in config else []
    seed = [f"seed={inputs['seed']}"] if inputs["seed"] else []
    shape = "x".join(str(record["problem"][name]) for name in ("m", "n", "k"))
    case = " ".join([record["kernel"], config["dtype"], *tile, *stages, shape, inputs["kind"], *seed])
    return {**record, "bench": {"run": record["time"], "case": case}}


def tflops(record: Record) -> float | None:
    return (record.get("timing") or {}).get("tflops")


def vendor_tflops(record: Record) -> dict[str, float]:
    """Returns TFLOPS by the name of the vendor's GEMM, measured in turn with the kernel."""
    vendors = (record.get("timing") or {}).get("vendor") or {}
    return {name: vendor["tflops"] for name, vendor in vendors.items()}


def executed(record: Record) -> int | None:
    """Returns the executed warp instructions of a run, or None if it was not emulated."""
    counters = record.get("counters") or {}
    return sum(counters["instructions"].values()) if counters.get("instructions") else None


def ptx_instructions(record: Record) -> int | None:
    """Returns the instructions in the PTX, or None if they were not counted, as in a single run."""
    facts = record.get("facts")
    return sum(facts["ptx_instructions"].values()) if facts else None


def commit_label(record: Record) -> str:
    """Returns the short commit, with + if files differed from it."""
    git = record.get("git") or {}
    if not git.get("commit"):
        return "no commit"
    return git["commit"][:7] + ("+" if git.get("dirty") else "")


def version_label(record: Record) -> str:
    """Returns commit and day, for example ``a1b2c3d, 2026-11-20``."""
    return f"{commit_label(record)}, {record['time'][:10]}"


def run_labels(records: Sequence[Record]) -> list[str]:
    """Returns one label for each run, given a record of each. Equal labels get the time of day."""
    labels = [version_label(record) for record in records]
    return [
        f"{label} {record['time'][11:16]}" if labels.count(label) > 1 else label
        for label, record in zip(labels, records, strict=True)
    ]


def shape_label(record: Record) -> str:
    return compact("x".join(str(record["problem"][name]) for name in ("m", "n", "k")))


def compact(words: str) -> str:
    """Writes equal sizes as a cube: ``4096x4096x4096`` is ``4096`` with an exponent."""
    return re.sub(r"\b(\d+)x\1x\1\b", "\\1\u00b3", words)


def main_cases(device: DeviceRecords) -> dict[str, str]:
    """Returns the representative case of each kernel: the one measured most often that all kernels have in common."""
    alike: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    for record in device.records:
        rest = case_of(record).removeprefix(record["kernel"])
        alike.setdefault(rest, set()).add(record["kernel"])
        counts[rest] += 1
    if not counts:
        return {}
    first = {rest: index for index, rest in reversed(list(enumerate(counts)))}
    best = max(counts, key=lambda rest: (len(alike[rest]), counts[rest], -first[rest]))
    return {kernel: kernel + best for kernel in sorted(alike[best])}


def intensity(record: Record) -> float:
    """Returns operations per byte that DRAM must move at least: A, B and C once. Data that L2 does not hold is read
    again, so a run moves at least as many bytes.
    """
    m, n, k = (record["problem"][name] for name in ("m", "n", "k"))
    return 2 * m * n * k / (ELEMENT_BYTES * (m * k + n * k + m * n))


def global_reads(config: Mapping[str, Any], problem: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes of A and B that TMA reads, for problems that are multiples of the cluster's tile."""
    group, (cm, cn) = config["cta_group"], config["cluster"]
    rows, columns = config["mma_shape"][:2]
    # The tile of the unit that computes together: a CTA, or a pair along M.
    tiles_m, tiles_n = -(-problem["m"] // rows), -(-problem["n"] // columns)
    sharers_a, sharers_b = (cn, cm // group) if config.get("multicast", True) else (1, 1)
    row_bytes = problem["k"] * ELEMENT_BYTES
    return {
        "A": tiles_m * rows * tiles_n * row_bytes // sharers_a,
        "B": tiles_n * columns * tiles_m * row_bytes // sharers_b,
    }


@dataclass(frozen=True)
class Saving:
    """Bytes of global memory read with multicast in a cluster, and without, by operand."""

    cluster: str
    read: dict[str, int]
    alone: dict[str, int]

    def saved(self, operand: str) -> float:
        """Returns the part of the bytes that multicast saves."""
        return 1 - self.read[operand] / self.alone[operand]


def savings(device: DeviceRecords) -> tuple[str, list[Saving]]:
    """Returns the savings of multicast by cluster, for the kernel, problem and tile with most clusters: (which,
    rows).
    """
    groups: dict[tuple, dict[str, Record]] = {}
    for record in device.newest.values():
        config, counters = record["config"], record.get("counters") or {}
        if not config.get("multicast", True) or "tma_global_bytes_read_by_tensor" not in counters:
            continue
        which = (record["kernel"], config["dtype"], config["cta_group"], *config["mma_shape"], shape_label(record))
        cluster = "x".join(map(str, config["cluster"]))
        groups.setdefault(which, {})[cluster] = record
    if not groups:
        return "", []
    which, found = max(groups.items(), key=lambda item: (len(item[1]), item[0]))
    rows = [
        Saving(
            cluster,
            dict(record["counters"]["tma_global_bytes_read_by_tensor"]),
            global_reads({**record["config"], "multicast": False}, record["problem"]),
        )
        for cluster, record in sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    unit = "a pair of CTAs" if which[2] == 2 else "one CTA"
    return f"{which[0]}, {which[1]}, {which[3]}x{which[4]} MMA by {unit}, {which[-1]}", rows
