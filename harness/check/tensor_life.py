"""Tensor memory is allocated and freed: by each CTA for itself, or by both CTAs of a pair together."""

from __future__ import annotations

from harness.check.accesses import Observer, Record
from harness.check.clocks import ORDER
from harness.check.model import Model, drop_cluster
from harness.check.tensor_memory import LANES
from harness.check.threads import has_started
from harness.emulator.machine.events import TensorMemoryAllocated, TensorMemoryFreed

Life = TensorMemoryAllocated | TensorMemoryFreed


class TensorLife:
    """Who has allocated and freed columns in each CTA: by cluster, CTA and first column."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._made: dict[tuple[int, int, int], Record] = {}
        self._freed: dict[tuple[int, int, int], Record] = {}

    def allocated(self, event: TensorMemoryAllocated) -> None:
        record = self._act(event, "alloc")
        agent = event.agent
        key = (agent.cluster, agent.cta, event.column)
        self._made[key] = record
        if not _in_pair(event):
            return
        peer = agent.cta ^ 1
        thread = self.model.threads.of(agent)
        if not has_started(thread.clock, self.model.threads.cta(agent.cluster, peer)):
            self.model.say(
                "tmem-alloc-order", "error", f"allocates tensor memory with CTA {peer}, which may not have started",
                (event.site, agent), missing="no cluster barrier before the allocation",
                mend="a cluster barrier before tcgen05.alloc.cta_group::2",
            )  # fmt: skip
        freed = self._freed.get((agent.cluster, peer, event.column))
        if freed is not None and (agent.cluster, agent.cta, event.column) not in self._freed:
            self._too_soon(record, freed)

    def freed(self, event: TensorMemoryFreed) -> None:
        record = self._act(event, "free")
        agent = event.agent
        self._freed[agent.cluster, agent.cta, event.column] = record
        if not _in_pair(event):
            return
        made = self._made.get((agent.cluster, agent.cta ^ 1, event.column))
        clock = self.model.threads.of(agent).clock
        if made is not None and not clock.knows(made.space, made.who, made.time, ORDER):
            self._too_soon(made, record)

    def _act(self, event: Life, kind: str) -> Record:
        """Columns change hands: whoever uses them must do so afterwards, or before."""
        agent = event.agent
        thread = self.model.threads.of(agent)
        clock = thread.release()
        made = Record(clock.space, thread.own, thread.time - 1, kind, True, agent, event.site, clock.rows[ORDER].copy())
        columns = range(event.column, event.column + event.columns)
        self.model.tensor[agent.cluster, agent.cta].access(range(LANES), columns, made, Observer(clock))
        return made

    def _too_soon(self, made: Record, freed: Record) -> None:
        self.model.say(
            "tmem-alloc-order", "error",
            f"CTA {freed.agent.cta} frees tensor memory while the allocation of CTA {made.agent.cta} may be under way",
            (made.site, made.agent), (freed.site, freed.agent), missing="no path from the peer's allocation to this",
            mend="a cluster barrier between the allocation and the deallocation",
        )  # fmt: skip

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._made, self._freed)


def _in_pair(event: Life) -> bool:
    return "cta_group::2" in event.site.modifiers
