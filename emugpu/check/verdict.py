"""The verdict on kernels that ran with the checker on, and its basis.

*clean*: every launch ended, every compared result is right, and the synchronisation is sound, under all schedules that
were tried. *wrong*: a result is wrong, or the program broke a rule of the machine. *racy*: the checker found an error.
*hung*: no thread could continue. *incomplete*: something was not checked, so there is no verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from emugpu.check.findings import Finding, Report, by_cause
from emugpu.emulator.errors import Deadlock, Fault
from emugpu.emulator.ptx.ast import Instruction, PtxKernel, Special

Word = Literal["clean", "wrong", "racy", "hung", "incomplete"]
EXIT_CODES: dict[Word, int] = {"clean": 0, "racy": 1, "hung": 3, "wrong": 4, "incomplete": 5}
ORDER: tuple[Word, ...] = ("hung", "wrong", "racy", "incomplete")
"""If several apply, the first of these is the verdict."""
SCHEMA = 1

Trust = Literal["exact", "bounded", "by the ISA alone", "not modelled", "computed by NumPy"]
_TIME = ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
_BLACKWELL = ("tcgen05", "clusterlaunchcontrol")
_CONSUMER = "sm_12"
"""How the targets of consumer Blackwell begin."""


def trust(i: Instruction, gpu: str) -> Trust:
    """Returns how far an instruction's result can be trusted on the GPU of a target.

    exact: as observed on an H200, or as the ISA fully defines it. bounded: an approximate function; its result is
    rounded correctly here, and lies within the error that the ISA allows on hardware. by the ISA alone: an instruction
    that only Blackwell has; for the sums of tcgen05.mma, others have published the results of B200s. So are the sums of
    floats of mma.sync and wmma on consumer Blackwell, where nobody has observed them; for some kinds, others have
    published the places of elements. not modelled: it reads a clock.
    """
    if any(isinstance(o, Special) and o.name in _TIME for o in i.operands):
        return "not modelled"
    if i.has("approx"):
        return "bounded"
    multiplies = i.opcode == "mma" or (i.opcode == "wmma" and i.modifiers[0] == "mma")
    unobserved = gpu.startswith(_CONSUMER) and multiplies and "s32" not in i.modifiers
    return "by the ISA alone" if i.opcode in _BLACKWELL or unobserved else "exact"


def fidelity(kernels: Iterable[tuple[PtxKernel, str]]) -> dict[Trust, dict[str, int]]:
    """Counts the instructions of the kernels' PTX by trust and opcode; all exact ones have one count.

    With each kernel comes the target of the GPU that runs it.
    """
    found: dict[Trust, Counter[str]] = {}
    for kernel, gpu in kernels:
        for i in kernel.instructions:
            how = trust(i, gpu)
            name = "all" if how == "exact" else ".".join((i.opcode, *i.modifiers))
            found.setdefault(how, Counter())[name] += 1
    return {how: dict(names.most_common()) for how, names in found.items()}


def how_it_ended(error: BaseException | None) -> Word:
    """Returns the verdict that follows from the error that ended a program."""
    if isinstance(error, Deadlock):
        return "hung"
    return "wrong" if isinstance(error, Fault) and error.rule != "unsupported" else "incomplete"


@dataclass(frozen=True)
class Verdict:
    """The outcome of checking a target.

    ``reasons`` says why it is not clean; each comes with the verdict that follows from it. ``findings`` are the
    checker's. ``compared`` names the results that were compared. ``fidelity`` counts the instructions of the launched
    kernels. ``checked``: the synchronisation was checked. ``smaller`` is the command that shows the same in a smaller
    case, if one was found. ``by_torch`` names the operators that PyTorch computed on the CPU.
    """

    target: str
    reasons: tuple[tuple[Word, str], ...]
    findings: tuple[Finding, ...]
    launches: int
    schedules: int
    compared: tuple[str, ...]
    fidelity: dict[Trust, dict[str, int]]
    checked: bool = True
    smaller: str = ""
    by_torch: tuple[str, ...] = ()

    @property
    def word(self) -> Word:
        words = {word for word, _ in self.reasons}
        return next((word for word in ORDER if word in words), "clean")

    @property
    def untouched(self) -> bool:
        """Returns whether nothing was launched, and the verdict has no other reason."""
        return not self.launches and len(self.reasons) <= 1

    @property
    def report(self) -> Report:
        return Report(self.findings)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON; docs/verdicts.md describes its form."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "verdict": self.word,
            "reasons": [{"verdict": word, "reason": reason} for word, reason in self.reasons],
            "findings": [finding.as_dict() for finding in self.findings],
            "launches": self.launches,
            "fidelity": {
                "instructions": self.fidelity,
                "schedules": self.schedules,
                "compared": list(self.compared),
                "synchronisation": "checked" if self.checked else "not checked",
                **({"by_torch": list(self.by_torch)} if self.by_torch else {}),
            },
            **({"smaller": self.smaller} if self.smaller else {}),
        }

    def lines(self) -> list[str]:
        """Returns the lines for people: the reasons, the basis of the verdict, and the verdict in the last line."""
        found = [f"{word}: {reason}" for word, reason in self.reasons]
        for how, names in self.fidelity.items():
            total = sum(names.values())
            most = ", ".join(f"{name} ({count})" for name, count in list(names.items())[:3] if name != "all")
            what = ("call", "libraries") if how == "computed by NumPy" else ("instruction", "the kernels")
            of = f"{what[0]}{'' if total == 1 else 's'} of {what[1]}"
            found.append(f"{total:,} {of}: {how}{f': {most}' if most else ''}")
        if self.by_torch:
            found.append(f"computed by PyTorch on the CPU, not looked at: {', '.join(self.by_torch)}")
        launches = f"{self.launches} launch{'' if self.launches == 1 else 'es'}"
        schedules = f"{self.schedules} schedule{'' if self.schedules == 1 else 's'}"
        unchecked = "" if self.checked else "; the synchronisation was not checked"
        found.append(f"{launches}, {schedules}; compared: {', '.join(self.compared) or 'nothing'}{unchecked}")
        found += [f"smaller: {self.smaller}"] if self.smaller else []
        return [*found, f"{self.target}: {self.word}"]


def races(findings: Sequence[Finding]) -> list[tuple[Word, str]]:
    """Returns a reason for each cause that is an error."""
    causes = [cause for cause in by_cause(findings) if cause[0].severity == "error"]
    return [("racy", f"{cause[0].rule}: {cause[0].message}") for cause in causes]
