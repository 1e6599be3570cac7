"""Names of what lies in memory: regions of dynamic shared memory, allocations, columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from harness.check.findings import Place
from harness.emulator.machine.events import Agent, Site


class Names:
    """``regions``: (name, offset in dynamic shared memory, bytes). ``roles``: (name, warps)."""

    def __init__(self, regions: Sequence[Any], roles: Sequence[Any]) -> None:
        self.regions = sorted(regions, key=lambda region: region.offset)
        self._starts = [region.offset for region in self.regions]
        self.dynamic_start = 0
        self._roles = {warp: role.name for role in roles for warp in role.warps}

    def shared(self, offset: int, cta: int, nbytes: int = 0) -> str:
        """Bytes of a CTA's shared memory by name, from an offset in its window."""
        name, rest = self._find(offset)
        where = f"{name} + {rest}" if rest else name
        size = f" ({nbytes} bytes)" if nbytes else ""
        return f"{where} of CTA {cta}{size}"

    def region(self, offset: int) -> str:
        """The region that holds an offset, or the offset."""
        return self._find(offset)[0]

    def _find(self, offset: int) -> tuple[str, int]:
        inside = offset - self.dynamic_start
        position = bisect_right(self._starts, inside) - 1
        if position >= 0:
            region = self.regions[position]
            if inside - region.offset < region.nbytes:
                return region.name, inside - region.offset
        return f"shared memory at 0x{offset:x}", 0

    def role(self, warp: int) -> str:
        return self._roles.get(warp, "")

    def place(self, site: Site, agent: Agent) -> Place:
        return Place(
            site.line,
            site.text,
            site.source,
            agent.cluster,
            agent.cta,
            agent.warp,
            agent.lanes,
            self.role(agent.warp),
        )
