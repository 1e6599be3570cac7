"""CTAs end: what can still reach them, and what they leave behind."""

from __future__ import annotations

from harness.check.clocks import EXECUTION, VISIBLE, Clock
from harness.check.copies import RESPONSE
from harness.check.model import Model
from harness.emulator.machine.events import Agent, CtaEnded, Missed, Site

_MEND = "a cluster barrier at the end of the kernel, or a wait for the last signal that can come"


def check_ended(model: Model, event: CtaEnded) -> None:
    """All that comes from outside must be known to be over by a thread of the CTA."""
    cta = model.threads.cta(event.cluster, event.cta)
    known = cta.ended
    assert known is not None
    for who, one in model.incoming[event.cluster, event.cta].items():
        if not known.knows(known.space, who, one.time, EXECUTION):
            rule = "clc-exit-pending" if one.what == RESPONSE else "peer-exited"
            model.say(
                rule, "error", f"{one.what} can reach CTA {event.cta} after it has exited",
                (one.site, one.agent), missing=f"no thread of CTA {event.cta} knows that it is over", mend=_MEND,
            )  # fmt: skip
    for (cluster, rank, offset), barrier in model.barriers.items():
        if (cluster, rank) != (event.cluster, event.cta):
            continue
        for arrival in barrier.unseen:
            _judge(model, known, offset, rank, arrival.who, arrival.time, arrival.commit, arrival.site, arrival.agent)


def _judge(
    model: Model, known: Clock, offset: int, rank: int, who: int, time: int, commit: bool, site: Site, agent: Agent
) -> None:
    """An arrival at a barrier of a CTA, in a phase whose end no thread of the CTA has waited for."""
    if not commit and (agent.cta == rank or known.knows(known.space, who, time, VISIBLE)):
        return
    # What comes later from the same thread has been waited for: in practice it does not overtake this.
    later = known.knows(known.space, who, time, EXECUTION)
    what = "tcgen05.commit arrives" if commit else "an arrival comes"
    model.say(
        "peer-exited",
        "warning" if later else "error",
        f"{what} at {model.names.shared(offset, rank)}, and the CTA may have exited",
        (site, agent),
        missing=f"no thread of CTA {rank} waits for the phase it belongs to",
        mend=_MEND,
    )


def missed(model: Model, event: Missed, who: int, time: int) -> None:
    """An arrival has come to a CTA that has exited."""
    known = model.threads.cta(event.agent.cluster, event.cta).ended
    assert known is not None
    if event.cta == event.agent.cta and event.operation is not None and event.operation.kind == "cp.async.arrive":
        model.say(
            "peer-exited", "warning", "the CTA exits before an arrival that its copies make", (event.site, event.agent),
            missing="no wait for the phase it belongs to", mend="cp.async.wait_all before the exit",
        )  # fmt: skip
        return
    commit = event.operation is not None
    _judge(model, known, event.offset, event.cta, who, time, commit, event.site, event.agent)
