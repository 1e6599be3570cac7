"""The end of CTAs and runs: operations that can still reach a CTA, and errors that concern synchronisation."""

from __future__ import annotations

import re

from emugpu.check.barriers import report_wrong_bytes
from emugpu.check.clocks import EXECUTION, VISIBLE, Clock
from emugpu.check.copies import RESPONSE
from emugpu.check.mbarrier import Arrival, TrackedMBarrier
from emugpu.check.model import Model
from emugpu.emulator.errors import Deadlock, Fault
from emugpu.emulator.machine.events import Agent, CtaEnded, Missed, Site, Suspended
from emugpu.emulator.rules import RULES

_FIX = "a cluster barrier at the end of the kernel, or a wait for the last signal that can come"


def check_ended(model: Model, event: CtaEnded) -> None:
    """Reports operations from outside that no thread of the CTA knows to be over."""
    cta = model.threads.cta(event.cluster, event.cta)
    known = cta.ended
    assert known is not None
    for who, one in model.incoming[event.cluster, event.cta].items():
        if not known.knows(known.space, who, one.time, EXECUTION):
            rule = "clc-exit-pending" if one.what == RESPONSE else "peer-exited"
            model.say(
                rule, "error", f"{one.what} can reach CTA {event.cta} after it has exited",
                (one.site, one.agent), missing=f"no thread of CTA {event.cta} knows that it is over", fix=_FIX,
            )  # fmt: skip
    for (cluster, rank, offset), barrier in model.barriers.items():
        if (cluster, rank) != (event.cluster, event.cta):
            continue
        for arrival in barrier.unseen:
            _check_arrival(model, known, offset, rank, arrival)


def _check_arrival(model: Model, known: Clock, offset: int, rank: int, arrival: Arrival) -> None:
    """Checks an arrival at a barrier of a CTA, in a phase whose end no thread of the CTA has waited for.

    Kernels that run well may end like this, so the checker only warns, as the machine does.
    """
    is_known = arrival.agent.cta == rank or known.knows(known.space, arrival.who, arrival.time, VISIBLE)
    if is_known and not arrival.commit:
        return
    what = "tcgen05.commit arrives" if arrival.commit else "an arrival comes"
    model.say(
        "peer-exited", "warning", f"{what} at {model.names.shared(offset, rank)}, and the CTA may have exited",
        (arrival.site, arrival.agent), missing=f"no thread of CTA {rank} waits for the phase it belongs to", fix=_FIX,
    )  # fmt: skip


def check_missed(model: Model, event: Missed, arrival: Arrival) -> None:
    """Reports an arrival at a CTA that has exited."""
    known = model.threads.cta(event.agent.cluster, event.cta).ended
    assert known is not None
    if event.cta == event.agent.cta and event.operation is not None and event.operation.kind == "cp.async.arrive":
        model.say(
            "peer-exited", "warning", "the CTA exits before an arrival that its copies make", (event.site, event.agent),
            missing="no wait for the phase it belongs to", fix="cp.async.wait_all before the exit",
        )  # fmt: skip
        return
    _check_arrival(model, known, event.offset, event.cta, arrival)


_RULES = {
    "mbarrier-init": "init",
    "mbarrier-count": "count",
    "mbarrier-bytes": "bytes",
    "bytes-left": "bytes",
    "mbarrier-overwritten": "overwritten",
    "mbarrier-after-inval": "inval",
    "tmem-alloc": "tmem-alloc-order",
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
"""The checker's rules for the machine's faults that concern synchronisation."""


def note_error(model: Model, error: Exception, waiting: dict[Agent, Suspended]) -> None:
    """Reports what the error that ended a run means for synchronisation."""
    if isinstance(error, Fault):
        _note_fault(model, error)
    elif isinstance(error, Deadlock):
        model.findings.hung = True
        _note_deadlock(model, error, waiting)


def _note_fault(model: Model, error: Fault) -> None:
    text = str(error)
    rule = _RULES.get(error.rule, "")
    if error.rule == "cluster":
        rule = "peer-exited" if "already exited" in text else "mask"
    elif error.rule == "exit" and "tensor memory" in text:
        rule = "tmem-alloc-order"
    if rule == "peer-exited":
        _note_phases_too_short(model)
    if not rule or model.findings.has(rule) or (rule == "memory" and model.findings.report().errors):
        return
    lines = text.split("\n")
    head = re.search(r"PTX line (\d+): (.*)", lines[0])
    who = re.search(r"\(rank (\d+) of its cluster\), warp (\d+)", text)
    if head is None or who is None:
        if rule == "bytes":
            for (_, rank, offset), barrier in model.barriers.items():
                if barrier.bytes:
                    report_wrong_bytes(model, barrier, rank, offset)
        return
    message = lines[2].strip() if len(lines) > 2 else lines[0]
    site = Site(-1, int(head[1]), head[2].split(";")[0] + ";", "", (), "", "", "")
    agent = Agent(0, int(who[1]), int(who[2]), 0)
    model.say(rule, "error", message, (site, agent), fix=RULES[error.rule].fix)


def _note_phases_too_short(model: Model) -> None:
    """Reports mbarriers that expect no more bytes while operations that signal them are in flight."""
    for (_, rank, offset), barrier in model.barriers.items():
        if barrier.coming and barrier.bytes <= 0 and barrier.last_expect is not None:
            model.say(
                "bytes", "error",
                f"phase {barrier.phase - 1} of {model.names.shared(offset, rank)} ends before all bytes that signal it "
                "have landed",
                barrier.last_expect,
                fix="expect_tx with the bytes of all copies that signal this barrier in a phase",
            )  # fmt: skip


def _note_deadlock(model: Model, error: Deadlock, waiting: dict[Agent, Suspended]) -> None:
    """Reports the incomplete phases, with the agents that wait for them.

    If an agent waits for the wrong phase, bytes that nobody has sent are no finding of their own.
    """
    waits = []
    for agent, event in waiting.items():
        if event.mbarrier is not None:
            offset, phase = event.mbarrier
            barrier = model.barriers.get((agent.cluster, agent.cta, offset))
            if barrier is not None:
                waits.append((agent, event, offset, phase, barrier, _is_lapped(model, agent, barrier, phase)))
    for agent, event, offset, phase, barrier, is_lapped in waits:
        name = model.names.shared(offset, agent.cta)
        if is_lapped:
            ended = f"phases {phase - 2} and {phase - 1}" if phase > 1 else "phase 0"
            model.say(
                "phase-lapped", "error", f"{ended} of {name} ended before this wait looked: it waits for phase {phase}",
                (event.site, agent),
                fix="let the waiting thread arrive at a barrier that the next phase depends on, or correct the parity",
            )  # fmt: skip
            continue
        if barrier.bytes and not barrier.pending and not any(lapped for *_, lapped in waits):
            report_wrong_bytes(model, barrier, agent.cta, offset)
        lacks = []
        if barrier.pending:
            lacks.append(f"{barrier.pending} of {barrier.expected} arrivals")
        if barrier.bytes:
            lacks.append(f"{barrier.bytes} bytes")
        who = error.missing.get((agent.cluster, agent.cta, offset), "")
        what = f"it lacks {' and '.join(lacks) or 'nothing'}{f': {who}' if who else ''}"
        model.say(
            "phase-unobserved", "error", f"waits for phase {phase} of {name}, which never ends: {what}",
            (event.site, agent), fix="find the thread that should arrive there, or correct the parity of the wait",
        )  # fmt: skip


def _is_lapped(model: Model, agent: Agent, barrier: TrackedMBarrier, phase: int) -> bool:
    """Returns whether an agent waits for a phase after ones whose end it has not seen."""
    # Before phase 0 ends, a wait for the parity of the phase before it succeeds.
    untouched = barrier.pending == barrier.expected and not barrier.bytes
    return phase > (0 if untouched else 1) and not _has_seen(model, agent, barrier, max(phase - 2, 0))


def _has_seen(model: Model, agent: Agent, barrier: TrackedMBarrier, phase: int) -> bool:
    """Returns whether the agent knows that a phase is over."""
    clock = model.threads.of(agent).clock
    return clock.knows(clock.space, barrier.component, phase + 1, EXECUTION)
