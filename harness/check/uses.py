"""An mbarrier is used: its initialisation must have happened before, and be visible to the one who uses it."""

from __future__ import annotations

from harness.check.clocks import EXECUTION, INITIALISED, VISIBLE, Clock
from harness.check.mbarrier import MBarrier
from harness.check.model import Model
from harness.emulator.machine.events import Agent, Site


def check_use(model: Model, barrier: MBarrier, clock: Clock, site: Site, agent: Agent, what: str) -> None:
    init = barrier.init

    def knows(row: int) -> bool:
        return clock.knows(init.space, init.who, init.time, row)

    visible, published = knows(VISIBLE), knows(INITIALISED)
    if visible and (published or agent.cta == barrier.cta):
        return
    if published and knows(EXECUTION):
        return
    place = model.names.shared(barrier.offset, barrier.cta)
    model.say(
        "init",
        "warning" if visible else "error",
        f"{what} {place}, whose initialisation {'was not published for other CTAs' if visible else 'may come later'}",
        (init.site, init.agent),
        (site, agent),
        place,
        "no fence.mbarrier_init on the path" if visible else "no path from the initialisation to the use",
        "fence.mbarrier_init.release.cluster after the initialisation, and a cluster barrier (a CTA barrier is enough "
        "for the threads of one CTA)",
        every_first=False,
    )
