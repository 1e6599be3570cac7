"""Truth tables: small hand-off programs with every fence, wait and barrier as a switch.

A `Table` is a generator of PTX and, written beside it, a formula: which error findings a checker must report for which
setting of the switches, and how the run ends. Neither knows anything of the checker. All settings of a table are
entries of one module, so that they are parsed, and assembled by ptxas, at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from emugpu.check import Checker, Report
from emugpu.emulator import Deadlock, Device, Fault, Livelock, Module, TensorMap

Setting = SimpleNamespace
"""One value for every switch."""

HEADER = """.version 8.8
.target {target}
.address_size 64
"""
ENTRY = """
.visible .entry {name}({parameters}) {directives}
{{
.shared .align 1024 .b8 data[{data}];
.shared .align 8 .b64 bars[16];
.shared .align 16 .b32 slot[4];
.reg .pred %p<16>;
.reg .b16 %h<8>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %d<16>;
.reg .b64 %m<4>;
.reg .b128 %q<2>;
.reg .b32 %thread, %warp, %lane, %rank;
mov.u32 %thread, %tid.x;
shr.u32 %warp, %thread, 5;
and.b32 %lane, %thread, 31;
mov.u32 %rank, %cluster_ctarank;
{take}
{body}
ret;
}}
"""


@dataclass(frozen=True)
class Outcome:
    """The ids of the error findings, and how the run ended: "ends", "hangs", or "stops" (the machine refused).

    In a formula an id may be "this|that": where two accesses have no order at all, it is a matter of view which of them
    comes too early, and either name will do.
    """

    errors: frozenset[str]
    end: str = "ends"

    def __str__(self) -> str:
        return f"{{{', '.join(sorted(self.errors))}}} {self.end}"

    def allows(self, seen: Outcome) -> bool:
        """Whether each of these errors has been seen, under one of its names, and no other."""
        names = [set(error.split("|")) for error in self.errors]
        all_found = all(names_of_one & seen.errors for names_of_one in names)
        return self.end == seen.end and all_found and seen.errors <= set().union(*names)


def outcome(*errors: str, end: str = "ends") -> Outcome:
    """Leaves out empty names, so that a formula can say ``not fence and "rule"``. What hangs, hangs at an mbarrier."""
    return Outcome(frozenset(filter(None, (*errors, end == "hangs" and "phase-unobserved"))), end)


@dataclass(frozen=True)
class Table:
    """``switches``: the values of each, the right one first. ``body``: PTX of a setting. ``expected``: its formula.

    ``arguments``: one per kernel parameter, made for a device. In the PTX they are ``%m0``, ``%m1`` ...: a value, or
    the generic address of a tensor map.
    """

    name: str
    switches: dict[str, Sequence[Any]]
    body: Callable[[Setting], str]
    expected: Callable[[Setting], Outcome]
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    targets: tuple[str, ...] = ("sm_100a",)
    data: int = 8192
    arguments: Callable[[Device], list[Any]] = lambda device: []
    launch: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Iterator[Setting]:
        for values in itertools.product(*self.switches.values()):
            yield Setting(**dict(zip(self.switches, values, strict=True)))

    def text(self, target: str, first: int | None = None) -> str:
        """A module; an entry for each setting, or for the ``first`` ones."""
        return HEADER.format(target=target) + "".join(self._entries[:first])

    @cached_property
    def _entries(self) -> list[str]:
        parameters, take = [], ""
        for n, argument in enumerate(self.arguments(Device())):
            if isinstance(argument, TensorMap):
                parameters.append(f".param .align 64 .b8 p{n}[128]")
                take += f"mov.b64 %m{n}, p{n}; cvta.param.u64 %m{n}, %m{n};"
            else:
                parameters.append(f".param .u64 p{n}")
                take += f"ld.param.u64 %m{n}, [p{n}];"
        cluster = f".explicitcluster .reqnctapercluster {self.cluster},1,1" if self.cluster > 1 else ""
        return [
            ENTRY.format(
                name=f"setting{number}",
                parameters=", ".join(parameters),
                take=take,
                directives=cluster,
                data=self.data,
                body=self.body(setting).replace(";", ";\n"),
            )
            for number, setting in enumerate(self.settings)
        ]

    def disagreements(
        self, target: str, schedules: Sequence[tuple[str, int]] = (("fifo", 0),), warnings: bool = False
    ) -> list[str]:
        """Settings whose run does not come out as the formula says. ``warnings``: they count as errors do."""
        module, found = Module.from_text(self.text(target)), []
        for number, setting in enumerate(self.settings):
            for schedule, seed in schedules:
                device = Device(schedule=schedule, seed=seed)  # type: ignore[arg-type]
                seen = self._run(device, module, f"setting{number}", warnings)
                if not self.expected(setting).allows(seen):
                    values = ", ".join(f"{name}={value}" for name, value in vars(setting).items())
                    found.append(f"{values} [{schedule} {seed}]: expected {self.expected(setting)}, found {seen}")
        return found

    def _run(self, device: Device, module: Module, entry: str, warnings: bool) -> Outcome:
        report, end = self.report(device, module, entry)
        findings = (*report.errors, *(report.warnings if warnings else ()))
        return Outcome(frozenset(finding.rule for finding in findings), end)

    def report(self, device: Device, module: Module, entry: str) -> tuple[Report, str]:
        """What the checker says of one run, and how it ended."""
        checker = Checker()
        end = "ends"
        try:
            device.launch(
                module, entry, grid=self.grid, cluster=self.cluster, block=self.threads,
                arguments=self.arguments(device), sinks=[checker], max_steps=20_000, **self.launch,
            )  # fmt: skip
        except (Deadlock, Livelock) as error:
            checker.failed(error)
            end = "hangs"
        except Fault as error:
            checker.failed(error)
            end = "stops"
        return checker.report(), end


# ---- pieces of PTX ----

_numbers = itertools.count()


def only(condition: str, text: str) -> str:
    """For the threads of which ``condition`` is true: "%warp eq 0"."""
    left, operator, right = condition.split()
    label = f"SKIP{next(_numbers)}"
    return f"""
    setp.{operator}.u32 %p15, {left}, {right};
    @!%p15 bra {label};
    {text}
    {label}:
    """


def wait(barrier: str, parity: int | str = 0, order: str = "") -> str:
    """Until a phase of that parity is over. ``order``: ".relaxed.cta" and the like."""
    label = f"WAIT{next(_numbers)}"
    return f"""
    {label}:
    mbarrier.try_wait.parity{order}.shared::cta.b64 %p14, [{barrier}], {parity};
    @!%p14 bra {label};
    """


CTA_BARRIER = "bar.sync 0;\n"
CLUSTER_BARRIER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
FENCE = "fence.proxy.async.shared::cta;\n"


# ---- boxes of words, copied by TMA ----

BOX = 32
"""Words of a box: 128 bytes."""


def words(device: Device) -> list[TensorMap]:
    """A tensor of eight boxes to load from."""
    return [TensorMap.tiled(device.upload(np.arange(8 * BOX, dtype=np.uint32)), "u32", (8 * BOX,), (BOX,))]


def target(device: Device) -> list[TensorMap]:
    """A tensor of eight boxes to store to."""
    return [TensorMap.tiled(device.alloc(8 * 4 * BOX), "u32", (8 * BOX,), (BOX,))]


LOAD = """
mov.b32 %r20, {};
cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{}], [%m0, {{%r20}}], [{}];
"""
STORE = """
mov.b32 %r20, {};
cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {{%r20}}], [{}];
"""
CLEAR = (
    "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
    + only("%warp eq 1", "st.shared.b32 [%r1], 0; st.shared.b32 [%r1+1024], 0;")
    + FENCE
    + CTA_BARRIER
)
"""Two stages, `data` and `data+1024`, hold zeros before anything else: a load too early finds something. %r1: a word of
the lane's own in the first."""


# ---- flags in memory ----

INIT_FENCE = "fence.mbarrier_init.release.cluster;"
_numbers = itertools.count()


def spin(load: str) -> str:
    """Loads %r5 until it is not 0."""
    label = f"SPIN{next(_numbers)}"
    return f"{label}: {load} setp.eq.u32 %p13, %r5, 0; @%p13 bra {label};"


def flag_words(device: Device) -> list[int]:
    """64 words of data, and two flags."""
    return [device.upload(np.zeros(64, np.uint32)), device.upload(np.zeros(2, np.uint32))]
