"""Constants of the timing model that follow from micro-benchmarks by arithmetic alone.

What a kernel's whole course is needed for (how long a waiting warp takes to wake, what a launch costs beside its CTAs)
is not here: that is fitted, and stays as the file has it that the constants are put into.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.timing.constants import Constant, Gpu
from harness.timing.survey_archive import Survey
from metrology.survey.micro.stores import LONG
from metrology.survey.micro.tma import SMS

Entry = dict[str, Any]
BARRIERS = 8
"""That the kernel of `metrology.survey.micro.starts` initialises."""
LARGE_MIB = 512
"""Of the benchmark of loads beside stores: what is in DRAM and not in L2."""
WARPS_OF_EIGHT = 2
"""That share a sub-partition."""
MORE_STORES = 4
DONE_CYCLES = 128
"""Until a store of an SM alone is done, without the cycles of its bytes (8 KiB take 384, of which 256 for these)."""
SURELY_ROOM = 4
"""wgmma that are surely issued without waiting for one another."""
LINE = 128


class Benchmarks:
    """What the micro-benchmarks of an archive answered."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey

    def all(self, benchmark: str, **about: Any) -> list[Entry]:
        """The launches of a benchmark that this is true of."""
        found = self.survey.json(f"{benchmark}.json") or {"launches": []}
        return [e for e in found["launches"] if all(e.get(name) == value for name, value in about.items())]

    def one(self, benchmark: str, **about: Any) -> Entry | None:
        return next(iter(self.all(benchmark, **about)), None)


def derive(survey: Survey) -> dict[str, Constant]:
    """By name. A constant whose benchmark is not in the archive is not there."""
    found: dict[str, Constant] = {}
    benchmarks = Benchmarks(survey)
    steps = (_launches, _instructions, _barriers, _write_out, _tensor, _issue, _copies, _memory, _shared, _board)
    for step in steps:
        for name, value, unit, source in step(benchmarks):
            where = f"{survey.gpu.get('name', 'GPU')}, survey of {survey.manifest['time'][:10]}: {source}"
            found[name] = Constant(float(f"{value:.4g}"), unit, where, "measured")
    return found


Found = Iterator[tuple[str, float, str, str]]
"""Name, value, unit, and what was measured."""


def _launches(of: Benchmarks) -> Found:
    waves = [e for e in of.all("launches", what="bare") if e["spin_cycles"] and e["cluster"] <= 2]
    if waves:
        value = statistics.fmean(e["median_follow_cycles"] for e in waves)
        yield "launch.cta", value, "cycles", "from a CTA's end to the first instruction of the next on its SM"
    starts = of.all("cta_starts", tensor_map="not prefetched", caches="in a row")
    arrive = of.one("barriers", what="arrive")
    if starts and arrive:
        value = min(e["barriers_ready_cycles"] for e in starts) - BARRIERS * arrive["cycles"]
        yield "issue.barrier_init_fence", value, "cycles", "eight mbarriers and their fence, less eight arrivals"


def _instructions(of: Benchmarks) -> Found:
    for name, what, warps, factor in (
        ("issue.shared_latency", "ld.shared, each from the one before", 1, 1.0),
        ("issue.convert_cycles", "cvt.rn.bf16x2.f32", 8, 1 / WARPS_OF_EIGHT),
        ("issue.matrix_cycles", "stmatrix.x4", 8, 1 / WARPS_OF_EIGHT),
    ):
        if e := of.one("shared_memory", what=what, warps=warps):
            value = factor * e["cycles_per_instruction_of_a_warp"]
            yield name, value, "cycles", f"{what}, {warps} warps; of a sub-partition"


def _barriers(of: Benchmarks) -> Found:
    def cycles(what: str, **about: Any) -> float | None:
        entry = of.one("barriers", what=what, **about)
        return entry["cycles"] if entry else None

    simple: tuple[tuple[str, str, dict[str, int]], ...] = (
        ("barrier.arrive", "arrive", {}),
        ("barrier.try_wait", "try_wait, its answer used", {}),
        ("barrier.cta", "bar.sync", {"threads": 128}),
        ("barrier.cluster", "cluster barrier, relaxed", {"threads": 384, "cluster": 2}),
        ("issue.proxy_fence", "fence.proxy.async", {}),
    )
    for name, what, about in simple:
        if (value := cycles(what, **about)) is not None:
            words = "".join(f", {key} {number}" for key, number in about.items())
            yield name, value, "cycles", f"{what}{words}"
    relaxed, full = (cycles(f"cluster barrier{how}", threads=384, cluster=2) for how in (", relaxed", ""))
    if relaxed is not None and full is not None:
        yield (
            "issue.gpu_fence",
            full - relaxed,
            "cycles",
            "what a cluster barrier takes longer with release and acquire",
        )
    near, far = cycles("message between warps"), cycles("message between CTAs", cluster=2)
    if near is not None and far is not None:
        yield "barrier.remote", far - near, "cycles", "what a message takes longer to another CTA than within one"


def _write_out(of: Benchmarks) -> Found:
    """Of a warpgroup; the loop is taken off, and where one thread is elected, its election and branch."""
    loop, elected = "the loop and a store", "elected: a store"
    turns = {e["what"]: e["cycles"] for e in of.all("write_out", warps=4)}
    for name, what, without, words in (
        ("tma.commit_group", "elected: commit_group", elected, "an elected thread commits a group of nothing"),
        ("tma.wait_group", "elected: wait_group.read", elected, "an elected thread waits for groups that are done"),
        ("barrier.release", "arrive, release.cluster", loop, "an arrival with release at cluster scope on the own CTA"),
    ):
        if {what, without} <= turns.keys():
            yield name, turns[what] - turns[without], "cycles", words
    one, more = (turns.get(f"{count} stmatrix, fence") for count in (1, MORE_STORES))
    if one is not None and more is not None and loop in turns:
        value = one - (more - one) / (MORE_STORES - 1) - turns[loop]
        yield "issue.proxy_fence_stored", value, "cycles", "fence.proxy.async behind stmatrix, less that"


def _tensor(of: Benchmarks) -> Found:
    steady = of.all("wgmma", a_from="shared", per_group=4, pending=1, warpgroups=2, ctas=1)
    if len(steady) > 1:
        more = statistics.fmean(e["cycles_per_wgmma_of_the_sm"] - e["n"] / 2 for e in steady)
        yield "tensor.per_instruction", more, "cycles", "wgmma m64nNk16 in groups of four by two warpgroups, less N / 2"
        first, last = steady[0], steady[-1]
        slope = last["cycles_per_wgmma_of_the_sm"] - first["cycles_per_wgmma_of_the_sm"]
        yield "tensor.overhead", slope / (last["n"] - first["n"]) * 2, "ratio", "their growth with N over N / 2"


def _issue(of: Benchmarks) -> Found:
    """As long as there is room, each more takes as long to issue as the one before. Of the longest wgmma, which leave
    room late: a count that takes longer than so by more than an instruction is one too many.
    """
    asked = of.all("wgmma_issue", descriptors="the same", warpgroups=1)
    longest = max((e["n"] for e in asked), default=0)
    cycles = {e["count"]: e["issue_cycles"] for e in asked if e["n"] == longest}
    if not {1, SURELY_ROOM} <= cycles.keys():
        return
    each = (cycles[SURELY_ROOM] - cycles[1]) / (SURELY_ROOM - 1)
    yield "issue.wgmma", each, "cycles", f"each more of up to {SURELY_ROOM} wgmma m64n{longest}k16, not waited for"
    waits = [count for count in cycles if cycles[count] > cycles[1] + each * count]
    if waits:
        room = max(count for count in cycles if count < min(waits))
        yield (
            "tensor.queue",
            room,
            "count",
            f"wgmma m64n{longest}k16 that are issued before one waits for another's end",
        )


def _copies(of: Benchmarks) -> Found:
    if e := of.one("tma_loads", how="loads", box_bytes=32768, in_flight=4, ctas=1, where="L2"):
        yield "tma.rate", e["bytes_per_cycle_per_sm"], "byte/cycle", "loads of 32 KiB from L2 by one SM, four in flight"
    alone = of.all("tma_loads", how="loads", in_flight=1, ctas=1, where="L2")
    if alone:
        value = statistics.median(e["first_load_cycles"] - e["median_latency_cycles"] for e in alone)
        yield "tma.descriptor", value, "cycles", "the first load of a CTA against its later ones"
    if e := of.one("tma_stores", waits_until="read", pending=3, box_bytes=16384, box_columns=64, ctas=1):
        yield "tma.store_rate", e["bytes_per_cycle_per_sm"], "byte/cycle", "stores of 16 KiB by one SM"


def _memory(of: Benchmarks) -> Found:
    loads = [e for e in of.all("tma_loads", how="loads", data="each its own") if e["ctas"] > 100]
    for name, where in (("l2.bandwidth", "L2"), ("dram.bandwidth", "DRAM")):
        rates = [e["gigabytes_per_second"] for e in loads if e["where"] == where and e["gigabytes_per_second"]]
        if rates:
            yield name, max(rates) * 1e9, "byte/s", f"loads from {where} by all SMs, each its own data"
    latency = {
        (e["where"], e["box_bytes"]): e["median_latency_cycles"] / e["sm_clock_mhz"] / 1e6
        for e in of.all("tma_loads", how="loads", in_flight=1, ctas=1)
        if e["sm_clock_mhz"]
    }
    longer = [latency["DRAM", size] - latency["L2", size] for where, size in latency if where == "L2" and size >= 8192]
    if longer:
        yield "dram.latency", statistics.fmean(longer), "s", "boxes of 8 to 32 KiB from DRAM against the same from L2"
    cold = [e for e in of.all("cta_starts", caches="cold") if e["ctas"] == SMS]
    if cold:
        value = statistics.median(e["load_0_cycles"] - e["load_1_cycles"] for e in cold)
        yield "dram.cold", value, "cycles", "the first loads of all SMs at once from DRAM against their next ones"
    both = [e for e in of.all("tma_mixed", load_mib=LARGE_MIB, store_mib=LARGE_MIB, data="each its own") if e["stores"]]
    read = of.one("tma_mixed", load_mib=LARGE_MIB, stores=0, data="each its own")
    if both and read:
        whole = read["loaded_gigabytes_per_second"]
        rates = [e["stored_gigabytes_per_second"] / (1 - e["loaded_gigabytes_per_second"] / whole) for e in both]
        value = statistics.fmean(rates) * 1e9
        yield "dram.write_bandwidth", value, "byte/s", "what is written beside reads, in the time that these leave"
    stores = [e for e in of.all("tma_stores", where="L2", pending=3) if e["ctas"] > 100]
    yield from _writes([e for e in stores if e["stores"] == LONG])
    yield from _bursts(stores)


def _shared(of: Benchmarks) -> Found:
    """By the bytes that all rows of a tensor begin at multiples of."""
    for row in (LINE, 64, 32, 16):
        loads = of.all("shared_loads", over=row % LINE, late_cycles=0)
        rates = [e["gigabytes_per_second"] for e in loads if e["gigabytes_per_second"]]
        if rates:
            words = (
                f"loads by all SMs from L2 whose rows begin every {row} bytes, in groups of the same boxes: the best"
            )
            yield f"l2.rows_of_{row}", max(rates) * 1e9, "byte/s", words


def _writes(stores: list[Entry]) -> Found:
    """Seconds a byte are (1 + row_cost / row) / rate: a straight line over 1 / row, by least squares."""
    rows = [1 / (2 * e["box_columns"]) for e in stores]
    if len(set(rows)) < 2:
        return
    line = statistics.linear_regression(rows, [1e-9 / e["gigabytes_per_second"] for e in stores])
    yield "l2.write_bandwidth", 1 / line.intercept, "byte/s", "stores by all SMs into L2, as rows of boxes get long"
    yield "l2.write_row", line.slope / line.intercept, "byte", "what each row of a box costs beside its bytes"


def _bursts(stores: list[Entry]) -> Found:
    """How much sooner L2 has taken a few stores of all SMs than at its rate in the long run: what a straight line over
    their bytes falls short of the wait for a store at none."""
    sooner: dict[str, list[float]] = {"l2.write_slack": [], "l2.write_slack_parts": []}
    for columns in sorted({e["box_columns"] for e in stores}):
        box = min(e["box_bytes"] for e in stores if e["box_columns"] == columns)
        alike = [e for e in stores if (e["box_columns"], e["box_bytes"]) == (columns, box)]
        nbytes = [e["stores"] * box for e in alike]
        if len(set(nbytes)) > 1:
            cycles = [n / e["bytes_per_cycle_per_sm"] for n, e in zip(nbytes, alike, strict=True)]
            line = statistics.linear_regression(nbytes, cycles)
            name = "l2.write_slack" if 2 * columns >= LINE else "l2.write_slack_parts"
            sooner[name].append(DONE_CYCLES - line.intercept)
    for name, found in sooner.items():
        if found:
            rows = "lines" if name == "l2.write_slack" else "parts of lines"
            words = f"how much sooner than at its rate L2 takes a burst of stores in boxes whose rows are {rows}"
            yield name, statistics.fmean(found), "cycles", words


def _board(of: Benchmarks) -> Found:
    clocks = [e["sm_clock_mhz"] for e in of.all("tma_loads") if e["sm_clock_mhz"]]
    if clocks:
        yield "clock.max", statistics.median(clocks) * 1e6, "Hz", "SM cycles over time where only copies run"
    power = of.survey.json("power.json") or {}
    if "power_limit_w" in power.get("idle", {}):
        yield "power.limit", power["idle"]["power_limit_w"], "W", "the board's limit, as NVML says"


# ---- the file ----


def put_into(base: Gpu, found: dict[str, Constant], survey: Survey) -> Gpu:
    """The constants of a GPU with those that were measured in place of what it had. What the model has not, or in
    another unit, is left; `metrology.survey.reading.findings` says so.
    """
    known = {name: c for name, c in found.items() if name in base.constants and base.constants[name].unit == c.unit}
    title = survey.gpu.get("name") or base.title
    return replace(base, title=title, constants={**base.constants, **known})


def as_toml(gpu: Gpu) -> str:
    """A file that `harness.timing.constants.read` reads."""
    lines = [
        "[gpu]",
        f'facts = "{gpu.name}"',
        f"spare = {gpu.spare}",
    ]
    table = ""
    for name, constant in gpu.constants.items():
        group, _, key = name.partition(".")
        if group != table:
            lines += ["", f"[{group}]"]
            table = group
        source = constant.source.replace("\\", "/").replace('"', "'")
        value = f'value = {constant.value!r}, unit = "{constant.unit}", status = "{constant.status}"'
        lines.append(f'{key} = {{ {value}, source = "{source}" }}')
    return "\n".join(lines) + "\n"
