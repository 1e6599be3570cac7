"""Operands of MMAs and wgmmas in shared memory, which somebody must have written."""

from __future__ import annotations

from harness.check.accesses import Observer, Record
from harness.check.model import Model
from harness.emulator.machine.events import Operation, SharedChunks


def read_operand(
    model: Model, operation: Operation, region: SharedChunks, record: Record, observer: Observer
) -> None:  # fmt: skip
    memory = model.shared[operation.agent.cluster, region.cta]
    if not memory.access_chunks(region.chunks, record, observer):
        model.say(
            "stage-read-early", "error", "the MMA reads shared memory that nobody has written yet",
            (operation.site, operation.agent), missing="no wait for whatever is to write it",
            mend="wait for the mbarrier that counts the bytes of the copies",
        )  # fmt: skip
