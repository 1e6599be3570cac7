"""The events of a run of a small program, and how to look at them."""

from __future__ import annotations

import itertools
from typing import Any

from ptx_programs import WORDS, launch

from emugpu.emulator.machine.events import Agent, BytesLanded, Issued, Site, Suspended

SCHEDULES = [("fifo", 0), ("random", 1)]

FIRST_WORD = 0x400
"""Offset of `WORDS` in shared memory."""

WHOLE_WARP = 0xFFFF_FFFF


def stream(body: str, **options: Any) -> list[Any]:
    """The events of a run, with `WORDS` in shared memory."""
    seen: list[Any] = []
    launch(body, sinks=[seen.append], **{"module_scope": WORDS, **options})
    return seen


def of(seen: list[Any], *kinds: type) -> list[Any]:
    return [event for event in seen if isinstance(event, kinds)]


def one(seen: list[Any], kind: type) -> Any:
    (event,) = of(seen, kind)
    return event


def instruction(event: Any) -> Site | None:
    """What a thread has executed, if the event is of that."""
    if isinstance(event, Issued):
        return event.operation.site
    if isinstance(event, BytesLanded) and event.operation is not None:
        return None
    return None if isinstance(event, Suspended) else getattr(event, "site", None)


def who(event: Any) -> Agent:
    return event.operation.agent if isinstance(event, Issued) else event.agent


def executed(seen: list[Any], cta: int = 0, warp: int = 0) -> list[tuple[str, str]]:
    """What a warp has done, in order: instruction as far as its first modifier, and the event that told of it. What
    is told lane by lane counts once.
    """
    done = []
    for event in seen:
        site = instruction(event)
        if site is not None and (who(event).cta, who(event).warp) == (cta, warp):
            done.append((site.index, ".".join([site.opcode, *site.modifiers[:1]]), type(event).__name__))
    return [(name, kind) for (_, name, kind), _ in itertools.groupby(done)]
