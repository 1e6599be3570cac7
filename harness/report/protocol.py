"""Writes the hand-offs of a run for a person."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from emugpu.check.protocol import Protocol

TITLE = "hand-offs of a run: who signals whom, through which barrier, and what has been done to memory before"


def as_text(protocol: Protocol, width: int = 110) -> str:
    """Writes the hand-offs in lines of at most this many columns."""
    lines = [TITLE]
    for handover in protocol.handovers.values():
        counted = f", {handover.nbytes:,} bytes counted" if handover.nbytes else ""
        phases = f"{handover.rounds} phase{'s' if handover.rounds != 1 else ''}"
        lines += ["", f"{handover.barrier}: {phases}{counted}"]
        for label, found in (
            ("signals", _counted(handover.arrives.items())),
            ("after", handover.gives),
            ("waits", _counted(handover.waits.items())),
        ):
            for text in found:
                lines += wrap(text, width, initial_indent=f"  {label:7}  ", subsequent_indent=" " * 11)
    lines += ["", "fences"]
    for text in _counted(protocol.fences.items()) or ["none"]:
        lines += wrap(text, width, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


def _counted(found: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{count} x {what}" for what, count in found]
