"""The checker's findings: breaches of rules at named places, as data and in SARIF.

An *error* is a fault of the program. A *warning* breaks the rules but is not known to fail on hardware. A *note* says
what could be better. One rule may give findings of several severities; ``severity`` of a rule is the most severe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from emugpu.emulator import rules
from emugpu.emulator.machine.events import Agent, Site
from emugpu.emulator.rules import RuleWarning

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class SynchronisationRule:
    """A rule of synchronisation: an id, the most severe of its severities, and a sentence that states the rule."""

    id: str
    severity: Severity
    summary: str


_ERRORS = {
    "race-shared": "Conflicting accesses to shared memory are ordered.",
    "race-global": "Conflicting accesses to global memory are ordered.",
    "incoherent-load": "Nothing that a kernel loads by ld.global.nc or ldu is written while it runs.",
    "race-launches": "Launches and copies that touch the same memory are ordered: by a stream, an event, or the host.",
    "stage-read-early": "An MMA reads a stage only after its thread has waited for the copies into it.",
    "stage-refilled-early": "A stage is written again only after the MMAs that read it are known to be complete.",
    "store-source-reused": "The source of a bulk store is rewritten only after its issuer has waited for the read.",
    "proxy-write-read": "A proxy fence stands between generic writes of shared memory and their asynchronous readers.",
    "proxy-global": "A proxy fence stands between generic writes of global memory and their asynchronous readers.",
    "tensormap": "A tensor map in global memory is released and acquired with fence.proxy.tensormap before it is used, "
    "and is not written while a copy may read it.",
    "proxy-read-overwrite": "A proxy fence stands between reading a launch-control response and the next one.",
    "scope": "Generic accesses that pass data to another CTA synchronise in cluster scope on both sides.",
    "signal-for-lanes": "A lane that arrives for other lanes of its warp, or releases what they did, has met them.",
    "wait-for-lanes": "A lane that relies on a wait by other lanes of its warp has met them after it.",
    "race-lanes": "Lanes of a warp that exchange data through shared memory meet between the write and the read.",
    "register-before-wait": "Registers of asynchronous loads and multiplications are not used before their wait.",
    "phase-unobserved": "Every phase that a thread waits for can complete.",
    "phase-repeated": "A thread does not wait again for a phase that it has seen end, in place of the next one.",
    "phase-lapped": "A thread that waits for a phase looks before the next phase can complete.",
    "barrier-repeated": "A warp arrives at a barrier of threads once in each of its phases.",
    "count": "A phase of an mbarrier gets as many arrivals as it was initialised for.",
    "bytes": "The bytes a phase expects are the bytes that arrive, and fewer than 2^20.",
    "init": "An mbarrier is initialised once, and its initialisation is visible to every thread that uses it.",
    "overwritten": "Nothing is written over a live mbarrier.",
    "peer-not-started": "An operation reaches another CTA only after a cluster barrier has proved that it runs.",
    "peer-exited": "Nothing can reach a CTA that may have exited.",
    "mask": "Masks and addresses name CTAs of the cluster that the instruction may reach.",
    "tmem-race": "Conflicting accesses to tensor memory are ordered.",
    "tmem-uninit": "Tensor memory is written before it is read.",
    "tmem-alloc-order": "Tensor memory is allocated, used and freed in an order that both CTAs of a pair keep.",
    "convergence": "The lanes that an instruction needs execute it together, with agreeing operands.",
    "clc-slot": "A launch-control response is overwritten only after all its readers have released it.",
    "clc-opaque": "A launch-control response is read as a whole, and what it says is left to query_cancel.",
    "clc-after-failure": "A CTA that has seen a failed launch-control request does not make another.",
    "clc-exit-pending": "A CTA does not exit while one of its launch-control requests is in flight.",
    "clc-failed-coordinates": "The coordinates of a failed launch-control request are not used.",
    "clc-declined": "Work that launch control has not handed out is done by clusters that start later.",
    "memory": "Memory is written before it is read.",
}
_WARNINGS = {
    "proxy-overwrite": "A proxy fence stands between generic writes and an asynchronous write over them.",
    "tmem-fence": "tcgen05.fence surrounds a synchronisation between tcgen05 operations of two threads.",
    "exit-pending": "A thread waits for the reads of its bulk stores before it exits.",
    "start-order": "CTAs wait only for CTAs that have started, in whatever order they start.",
    "inval": "Nothing arrives at an mbarrier after mbarrier.inval.",
    "proxy-war": "A proxy fence stands between generic reads and an asynchronous write that follows them.",
}
_OF_THE_EMULATOR = (
    "wgmma-fence", "generic-address", "registers-differ", "scale-copies", "sparse-metadata", "type-code",
    "tmem-address", "tmem-outside",
)  # fmt: skip
"""The emulator's warnings that are findings under their own names. For the others the checker has a rule."""
_WARNINGS |= {id: rules.RULES[id].summary for id in _OF_THE_EMULATOR}
_NOTES = {
    "waste": "Every fence, barrier and wait orders something.",
}
_BY_SEVERITY: tuple[tuple[Severity, dict[str, str]], ...] = (
    ("error", _ERRORS),
    ("warning", _WARNINGS),
    ("note", _NOTES),
)
RULES = {
    id: SynchronisationRule(id, severity, summary) for severity, rules in _BY_SEVERITY for id, summary in rules.items()
}


@dataclass(frozen=True)
class Place:
    """The agent that executed a PTX instruction, and the instruction with its source line, if it has one.

    ``lanes`` is a mask. ``role`` names the warp, if a plan gives it a role. ``cluster`` is its number in the grid,
    ``cta`` the rank in it. ``block`` is the CTA's place in the grid (%ctaid), if a finding is about two clusters.
    """

    line: int
    text: str
    source: str
    cluster: int
    cta: int
    warp: int
    lanes: int
    role: str = ""
    block: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        who = f"CTA {self.cta if self.block is None else self.block} warp {self.warp}"
        if self.role:
            who += f" ({self.role})"
        source = f", {self.source}" if self.source else ""
        return f"PTX line {self.line}: {self.text}{source}, by {who}"


@dataclass(frozen=True)
class Finding:
    """A breach of a rule. ``first`` should happen before ``second``; ``second`` is None if one place alone breaks the
    rule.

    ``bytes`` names the memory that both touch. ``missing`` is the missing happens-before edge, ``fix`` the shortest
    fix. ``count`` is the number of occurrences in all warps, CTAs and phases.
    """

    rule: str
    severity: Severity
    message: str
    first: Place | None
    second: Place | None = None
    bytes: str = ""
    missing: str = ""
    fix: str = ""
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data. The key of the fix is "mend", as in existing records."""
        return {"mend" if name == "fix" else name: value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Suspect:
    """What is no error by itself, and the cause of errors that follow from it. ``agents``: the CTA ranks and warps that
    did it. ``others``: those that arrive at the same barrier.
    """

    finding: Finding
    agents: frozenset[tuple[int, int]]
    others: frozenset[tuple[int, int]]

    def explains(self, other: Finding) -> bool:
        """Returns whether another finding may follow from this one."""
        agents = {(place.cta, place.warp) for place in (other.first, other.second) if place is not None}
        if self.finding.rule == "barrier-repeated":
            is_here = bool({cta for cta, _ in agents} & {cta for cta, _ in self.agents})
            return other.rule in (*_RACES, *_OF_PHASES) and is_here
        if other.rule in _OF_PHASES:
            return bool(agents & (self.agents | self.others))
        pairs = ((one, two) for one in agents & self.agents for two in agents & self.others)
        return other.rule in _RACES and any(one != two for one, two in pairs)


_OF_PHASES = ("phase-unobserved", "phase-lapped", "count", "bytes", "convergence")
_RACES = ("race-shared", "race-global", "stage-read-early", "stage-refilled-early", "store-source-reused", "tmem-race")


@dataclass(frozen=True)
class Report:
    """All findings of a run, the most severe first.

    ``suspects`` are those that explain no finding so far. ``hung``: the run ended because no thread could go on.
    """

    findings: tuple[Finding, ...]
    suspects: tuple[Suspect, ...] = ()
    hung: bool = False

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self.of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.of("warning")

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)


class CollectedFindings:
    """Collects findings, and counts those with equal rule, severity and instructions as one.

    ``on_finding`` is called with each new one.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[Any]] = {}
        self._suspects: dict[tuple[Any, ...], list[Any]] = {}
        self.hung = False
        self.on_finding: Callable[[Finding], None] = lambda finding: None

    def seen(self, rule: str, severity: Severity, first: Any, second: Any) -> bool:
        """Counts a finding at two sites. Returns False if it is new and the caller has to add it."""
        known = self._found.get((rule, severity, first, second))
        if known is None:
            return False
        known[1] += 1
        return True

    def add(self, finding: Finding, first: Any, second: Any) -> None:
        assert finding.rule in RULES, finding.rule
        self._found[finding.rule, finding.severity, first, second] = [finding, finding.count]
        self.on_finding(finding)

    def suspect(self, finding: Finding, agent: tuple[int, int], others: Iterable[tuple[int, int]]) -> None:
        """Adds a suspect, and counts those with equal rule and instructions as one."""
        assert finding.first is not None and finding.second is not None
        key = (finding.rule, finding.first.line, finding.second.line)
        known = self._suspects.setdefault(key, [finding, set(), set(), 0])
        known[1].add(agent)
        known[2].update(others)
        known[3] += 1

    def has(self, rule: str) -> bool:
        return any(key[0] == rule for key in self._found)

    def report(self) -> Report:
        found = [replace(finding, count=count) for finding, count in self._found.values()]
        found.sort(key=_rank)
        suspects = tuple(
            Suspect(replace(finding, count=count), frozenset(agents), frozenset(others))
            for finding, agents, others, count in self._suspects.values()
        )
        return Report(tuple(found), suspects, self.hung)


def _rank(finding: Finding) -> tuple[int, str, int, int]:
    return (
        ORDER.index(finding.severity),
        finding.rule,
        finding.first.line if finding.first else 0,
        finding.second.line if finding.second else 0,
    )


def merged(reports: list[Report]) -> Report:
    """Joins the findings of several runs of one program. Equal findings become one, with the largest count.

    The suspects that may explain findings come first; these stay, because a suspect may be harmless.
    """
    found: dict[tuple[Any, ...], Finding] = {}
    for report in reports:
        for finding in report.findings:
            key = (
                finding.rule,
                finding.severity,
                finding.first.line if finding.first else finding.message,
                finding.second.line if finding.second else 0,
            )
            known = found.get(key)
            if known is None or known.count < finding.count:
                found[key] = finding
    findings = sorted(found.values(), key=_rank)
    suspects = _merged_suspects(suspect for report in reports for suspect in report.suspects)
    hung = any(report.hung for report in reports)
    errors = [finding for finding in findings if finding.severity == "error"]
    told = {_rank(finding) for finding in errors}
    causes = [
        suspect
        for suspect in suspects
        if _rank(suspect.finding) in told
        or (hung and suspect.finding.rule == "barrier-repeated")
        or any(suspect.explains(error) for error in errors)
    ]
    told = {_rank(cause.finding) for cause in causes}
    left = (finding for finding in findings if _rank(finding) not in told)
    return Report((*(cause.finding for cause in causes), *left), suspects, hung)


def _merged_suspects(suspects: Iterable[Suspect]) -> tuple[Suspect, ...]:
    found: dict[tuple[Any, ...], Suspect] = {}
    for suspect in suspects:
        one = suspect.finding
        assert one.first is not None and one.second is not None
        key = (one.rule, one.first.line, one.second.line)
        known = found.get(key)
        if known is not None:
            more = replace(known.finding, count=max(known.finding.count, one.count))
            suspect = Suspect(more, known.agents | suspect.agents, known.others | suspect.others)
        found[key] = suspect
    return tuple(found.values())


def by_cause(findings: Iterable[Finding]) -> list[tuple[Finding, ...]]:
    """Groups findings that lack the same edge between instructions of the same kinds, as in an unrolled loop."""
    causes: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        places = [place for place in (finding.first, finding.second) if place is not None]
        if finding.rule == "tmem-alloc-order":
            # The cause is the allocation, which is unordered, whichever instruction uses the columns.
            places = [place for place in places if "alloc" in place.text.split()[0]] or places
        kinds = [(place.text.split()[0], place.role) for place in places]
        what = finding.missing or finding.message
        causes.setdefault((finding.rule, finding.severity, what, *kinds), []).append(finding)
    return [tuple(cause) for cause in causes.values()]


class Names:
    """Names the regions of memory and the agents.

    ``regions`` holds (name, offset in dynamic shared memory, bytes), ``roles`` (name, warps).
    """

    def __init__(self, regions: Sequence[Any], roles: Sequence[Any]) -> None:
        self.regions = sorted(regions, key=lambda region: region.offset)
        self._starts = [region.offset for region in self.regions]
        self.dynamic_start = 0
        self.blocks: dict[tuple[int, int], tuple[int, int, int]] = {}
        """The place of each CTA in the grid, by its cluster and its rank."""
        self._roles: dict[int, str] = {warp: role.name for role in roles for warp in role.warps}

    def shared(self, offset: int, cta: int, nbytes: int = 0) -> str:
        """Names bytes of a CTA's shared memory, given their offset in its window."""
        name, rest = self._find(offset)
        where = f"{name} + {rest}" if rest else name
        size = f" ({nbytes} bytes)" if nbytes else ""
        return f"{where} of CTA {cta}{size}"

    def region(self, offset: int) -> str:
        """Returns the name of the region that holds an offset, or else the offset."""
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

    def place(self, site: Site, agent: Agent, in_grid: bool = False) -> Place:
        """Returns a place. ``in_grid``: it names the CTA by its place in the grid."""
        block = self.blocks.get(agent[:2]) if in_grid else None
        return Place(site.line, site.text, site.source, *agent, self.role(agent.warp), block)


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(reports: Iterable[tuple[str, Report]]) -> dict[str, Any]:
    """Returns findings in the Static Analysis Results Interchange Format (SARIF), which code-scanning services read.

    ``reports`` pairs each report with the file of its PTX. A place with a source line names that in place of the PTX
    line.
    """
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.summary},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in RULES.values()
    ]
    results = [_result(finding, file) for file, report in reports for finding in report.findings]
    driver = {"name": "emugpu verify", "rules": rules}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding, file: str) -> dict[str, Any]:
    # The later place is the one to fix: its access comes too early.
    places = [place for place in (finding.second, finding.first) if place is not None]
    text = ". ".join(part for part in (finding.message, finding.missing, finding.fix) if part)
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.severity,
        "message": {"text": text},
        "occurrenceCount": finding.count,
        "locations": [_location(place, file) for place in places[:1]],
        "relatedLocations": [
            {"id": n, **_location(place, file), "message": {"text": str(place)}} for n, place in enumerate(places)
        ],
    }


def _location(place: Place, file: str) -> dict[str, Any]:
    name, line = file, place.line
    path, _, number = place.source.rpartition(":")
    if path and number.isdecimal():
        name, line = path, int(number)
    return {"physicalLocation": {"artifactLocation": {"uri": name}, "region": {"startLine": max(1, line)}}}


def emulator_warnings(warnings: Iterable[RuleWarning]) -> tuple[Finding, ...]:
    """Returns the emulator's warnings that a verdict shows as findings: those for which the checker has no rule."""
    shown = {"uninitialised": "memory", "mbarrier-after-inval": "inval", **{id: id for id in _OF_THE_EMULATOR}}
    return tuple(
        Finding(shown[warning.rule], "warning", warning.message, None, count=warning.count)
        for warning in warnings
        if warning.rule in shown
    )
