"""Counts of arrivals and bytes, and runs that do not come to their end: what that says about synchronisation."""

from __future__ import annotations

import re

from harness.check.clocks import EXECUTION
from harness.check.mbarrier import MBarrier
from harness.check.model import Model
from harness.emulator.errors import Deadlock, Fault
from harness.emulator.machine.events import Agent, Arrived, Site, Suspended

_RULES = {
    "mbarrier-init": "init",
    "mbarrier-count": "count",
    "mbarrier-bytes": "bytes",
    "mbarrier-overwritten": "overwritten",
    "mbarrier-after-inval": "inval",
    "tmem-alloc": "tmem-alloc-order",
    "tmem-wait": "tmem-race",
    "wgmma": "register-before-wait",
    "exit": "exit-pending",
    "convergence": "convergence",
    "barrier": "convergence",
    "clc-after-failure": "clc-after-failure",
    "clc-exit-pending": "clc-exit-pending",
    "clc-failed-coordinates": "clc-failed-coordinates",
    "clc-unarmed": "bytes",
    "uninitialised": "memory",
}
"""Of faults of the machine that are about synchronisation."""


def count_arrival(model: Model, barrier: MBarrier, event: Arrived) -> None:
    """Before it is counted: are there more than the phase awaits?"""
    barrier.bytes += event.expected_bytes
    if event.expected_bytes:
        barrier.last_expect = (event.site, event.agent)
    if event.arrivals > barrier.pending:
        model.say(
            "count", "error",
            f"phase {event.phase} of {model.names.shared(event.offset, event.cta)} gets more than its "
            f"{barrier.expected} arrivals",
            barrier.last or (event.site, event.agent), (event.site, event.agent),
            mend="count every arrival of a phase in mbarrier.init",
        )  # fmt: skip
    barrier.pending -= event.arrivals
    if event.drop:
        barrier.expected -= event.arrivals
    if event.arrivals:
        barrier.last = (event.site, event.agent)


def check_bytes(model: Model, cluster: int) -> None:
    """A cluster has ended: no barrier may be left with bytes."""
    for (number, rank, offset), barrier in model.barriers.items():
        if number == cluster and barrier.bytes:
            _wrong_bytes(model, barrier, rank, offset)


def _wrong_bytes(model: Model, barrier: MBarrier, rank: int, offset: int) -> None:
    more = "more" if barrier.bytes > 0 else "fewer"
    model.say(
        "bytes", "error",
        f"{model.names.shared(offset, rank)} expects {abs(barrier.bytes)} bytes {more} than arrive, "
        f"up to its phase {barrier.phase}",
        barrier.last_expect or (barrier.init.site, barrier.init.agent),
        mend="expect_tx with the bytes of all copies that signal this barrier in a phase",
    )  # fmt: skip


def note(model: Model, error: Exception, waiting: dict[Agent, Suspended]) -> None:
    """The error that has ended a run."""
    if isinstance(error, Fault):
        _note_fault(model, error)
    elif isinstance(error, Deadlock):
        _note_deadlock(model, waiting)


def _note_fault(model: Model, error: Fault) -> None:
    text = str(error)
    rule = _RULES.get(error.rule, "")
    if error.rule == "cluster":
        rule = "peer-exited" if "already exited" in text else "mask"
    elif error.rule == "exit" and "tensor memory" in text:
        rule = "tmem-alloc-order"
    if not rule or model.findings.has(rule) or (rule == "memory" and model.findings.report().errors):
        return
    lines = text.split("\n")
    head = re.search(r"PTX line (\d+): (.*)", lines[0])
    who = re.search(r"\(rank (\d+) of its cluster\), warp (\d+)", text)
    if head is None or who is None:
        if rule == "bytes":
            for (_, rank, offset), barrier in model.barriers.items():
                if barrier.bytes:
                    _wrong_bytes(model, barrier, rank, offset)
        return
    message = lines[2].strip() if len(lines) > 2 else lines[0]
    site = Site(-1, int(head[1]), head[2].split(";")[0] + ";", "", (), "", "", "")
    model.say(rule, "error", message, (site, Agent(0, int(who[1]), int(who[2]), 0)))


def _note_deadlock(model: Model, waiting: dict[Agent, Suspended]) -> None:
    """Everybody waits: phases that lack something, with those who wait for them."""
    for agent, event in waiting.items():
        if event.mbarrier is None:
            continue
        offset, phase = event.mbarrier
        barrier = model.barriers.get((agent.cluster, agent.cta, offset))
        if barrier is None:
            continue
        name = model.names.shared(offset, agent.cta)
        if phase >= 2 and not _has_seen(model, agent, barrier, phase - 2):
            model.say(
                "phase-lapped", "error",
                f"phases {phase - 2} and {phase - 1} of {name} ended before this looked: it waits for phase {phase}",
                (event.site, agent), mend="let the one who waits arrive somewhere that the next phase depends on",
            )  # fmt: skip
            continue
        if barrier.bytes and not barrier.pending:
            _wrong_bytes(model, barrier, agent.cta, offset)
        lacks = []
        if barrier.pending:
            lacks.append(f"{barrier.pending} of {barrier.expected} arrivals")
        if barrier.bytes:
            lacks.append(f"{barrier.bytes} bytes")
        model.say(
            "phase-unobserved", "error",
            f"waits for phase {phase} of {name}, which never ends: it lacks {' and '.join(lacks) or 'nothing'}",
            (event.site, agent), mend="see who should arrive there, and the parity that is waited for",
        )  # fmt: skip


def _has_seen(model: Model, agent: Agent, barrier: MBarrier, phase: int) -> bool:
    """Whether the agent knows that a phase is over."""
    clock = model.threads.of(agent).clock
    return clock.knows(clock.space, barrier.component, phase + 1, EXECUTION)
