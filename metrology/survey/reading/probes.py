"""Compares what a GPU answered to the probes with what the emulator does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from harness.timing.survey_archive import Survey
from metrology.probes.probe import HOPPER, Probe, decode
from metrology.probes.ptx import TARGETS

SHOWN = 300
"""Characters of an answer that the report shows."""


@dataclass(frozen=True)
class ProbeResult:
    """A recorded probe. probe: the same today, None if there is none or it asks something else. blackwell: whether only
    Blackwell can answer it.
    """

    name: str
    probe: Probe | None
    recorded: dict[str, Any]
    blackwell: bool

    @property
    def error(self) -> str:
        """Why there is no answer at all."""
        return self.recorded.get("error", "")

    @property
    def failed(self) -> dict[str, str]:
        """Why cases have no answer."""
        return self.recorded.get("failed", {})

    @cached_property
    def differences(self) -> list[str]:
        """Where the emulator answers otherwise."""
        from metrology.probes.comparison import compare

        return [] if self.probe is None or self.error else compare(self.probe, decode(self.recorded["outputs"]))

    @property
    def verdict(self) -> str:
        """For a table."""
        if self.error:
            return f"no answer: {self.error}"
        if self.probe is None:
            return "another probe today"
        if not self.probe.modelled:
            return f"recorded: {self._answer()}"
        if self.differences or self.failed:
            some = f"; {len(self.failed)} cases have no answer" if self.failed else ""
            return f"otherwise than the emulator, see above{some}"
        return "as the emulator"

    def _answer(self) -> str:
        said = "; ".join(f"{name}: {value}" for name, value in self.recorded.get("answer", {}).items())
        said = said or "; ".join(f"{case} failed: {message}" for case, message in self.failed.items())
        return said if len(said) <= SHOWN else f"{said[:SHOWN]} .."


@cache
def asked_probes(survey: Survey) -> list[ProbeResult]:
    """All of an archive."""
    return list(_asked(survey))


def _asked(survey: Survey) -> Iterator[ProbeResult]:
    # Making them takes a second, which every command would pay.
    from metrology.probes.catalogue import BLACKWELL, for_target

    probes = for_target(TARGETS.get(survey.gpu.get("compute_capability", ""), HOPPER))
    for name, entry in (survey.json("probes.json") or {"probes": {}})["probes"].items():
        probe = probes.get(name)
        same = probe is not None and entry["digest"] == probe.digest()
        yield ProbeResult(name, probe if same else None, entry, name in BLACKWELL)
