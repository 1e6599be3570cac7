"""Compiled kernels with one synchronising instruction left out, weakened or misplaced.

Every mutant keeps the lines of the PTX where they are, so that findings of mutant and original can be compared by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.compile.planner import Plan


@dataclass(frozen=True)
class Mutant:
    """``kind``: what was done; ``line``: where in the PTX, from 1; ``text``: the instruction there; ``which`` of those
    like it: "2 of 3".
    """

    kind: str
    line: int
    text: str
    which: str
    ptx: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}: {self.kind}"


Change = Callable[[re.Match[str]], str | None]
"""What stands there instead of a statement; None: the change does not apply to it."""


@dataclass(frozen=True)
class Kind:
    """``pattern``: of the statements it changes, from opcode to semicolon."""

    name: str
    pattern: str
    change: Change


def mutants(ptx: str, plan: Plan) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of `KINDS` and then of the lines."""
    for kind in (*KINDS, _wrong_phase(plan)):
        places = list(re.finditer(kind.pattern, ptx))
        for number, found in enumerate(places, 1):
            put = kind.change(found)
            if put is not None and put != found.group():
                yield _mutant(kind.name, ptx, found, put, f"{number} of {len(places)}")
    yield from _moved(ptx)


def _mutant(kind: str, ptx: str, found: re.Match[str], put: str, which: str) -> Mutant:
    changed = ptx[: found.start()] + put + ptx[found.end() :]
    if "relaxed" in put:
        changed = re.sub(r"\.version 8\.[0-5]", ".version 8.6", changed, count=1)
    return Mutant(kind, _line(found), _text(found), which, changed)


def _line(found: re.Match[str]) -> int:
    return found.string.count("\n", 0, found.start()) + 1


def _text(found: re.Match[str]) -> str:
    return re.sub(r"\s+", " ", found.group()).rstrip(";")


def _dropped(found: re.Match[str]) -> str:
    return "\n" * found.group().count("\n")


def _replaced(old: str, new: str) -> Change:
    return lambda found: found.group().replace(old, new)


def _with_operand(operand: str, type: str, compute: str) -> Change:
    """The operand (a group of the pattern) comes from another register; ``{}`` in ``compute`` is the one it had."""

    def change(found: re.Match[str]) -> str:
        start, end = (at - found.start() for at in found.span(operand))
        text = found.group()
        made = compute.format(found[operand])
        return f"{{ .reg .{type} changed, helper; {made} {text[:start]}changed{text[end:]} }}"

    return change


def _one_more_group(found: re.Match[str]) -> str:
    return f"{found['head']}{int(found['groups']) + 1};"


def _one_warp(change: int) -> Change:
    def other(found: re.Match[str]) -> str | None:
        threads = int(found["threads"]) + change
        return f"{found['head']}{threads};" if threads > 0 else None

    return other


_INIT = r"mbarrier\.init\.[^;]*\], (?P<count>%r\d+);"
_TRY_WAIT = (
    r"mbarrier\.try_wait\.parity(?P<order>)\.shared::cta\.b64 (?P<done>%p\d+), \[(?P<at>[^]]*)\], (?P<parity>[^;]*);"
)
_ARRIVE = r"mbarrier\.arrive\.(?:shared::cta|shared::cluster)\.b64 [^;]*;"
_EXPECT = r"mbarrier\.arrive\.expect_tx\.(?P<space>[^;]*?)\.b64 [^;]*, (?P<bytes>%r\d+);"
_MASKED = r"(?:cp\.async\.bulk\.tensor\.|tcgen05\.commit\.)[^;]*multicast::cluster[^;]*, (?P<mask>%rs\d+);"
_WAIT_GROUP = (
    r"(?P<head>(?:cp\.async\.bulk\.wait_group(?:\.read)?|wgmma\.wait_group\.sync\.aligned)\s)\s*(?P<groups>\d+);"
)
_COPY = r"tcgen05\.cp[^;]*?\[(?P<to>%r\d+)\], (?P<source>%rd\d+);"
_SCALED = r"tcgen05\.mma[^;]*block_scale[^;]*?\[(?P<d>%r\d+)\],[^;]*?, \[(?P<a>%r\d+)\], \[(?P<b>%r\d+)\], %p\d+;"
_DROPPED = (
    r"tcgen05\.cp[^;]*;",
    r"fence\.(?!mbarrier)[^;]*;",
    r"fence\.mbarrier_init[^;]*;",
    r"bar\.sync[^;]*;",
    r"bar\.arrive[^;]*;",
    r"bar\.warp\.sync[^;]*;",
    r"barrier\.cluster\.arrive[^;]*;",
    r"barrier\.cluster\.wait[^;]*;",
    r"barrier\.cluster\.arrive[^;]*;\s*barrier\.cluster\.wait[^;]*;",
    r"mbarrier\.init[^;]*;",
    r"mbarrier\.arrive\.[^;]*;",
    r"tcgen05\.commit[^;]*;",
    r"tcgen05\.wait::[^;]*;",
    r"tcgen05\.fence[^;]*;",
    r"tcgen05\.relinquish_alloc_permit[^;]*;",
    r"tcgen05\.dealloc[^;]*;",
    r"cp\.async\.bulk\.commit_group;",
    r"cp\.async\.bulk\.wait_group[^;]*;",
    r"wgmma\.(?:fence|commit_group|wait_group)[^;]*;",
)

KINDS = (
    *(Kind("dropped", rf"(?<![\w.]){pattern}", _dropped) for pattern in _DROPPED),
    Kind("leaves one more group", _WAIT_GROUP, _one_more_group),
    Kind("not waited", _TRY_WAIT, lambda found: f"setp.eq.u32 {found['done']}, 0, 0;"),
    Kind("the other parity", _TRY_WAIT, _with_operand("parity", "b32", "xor.b32 changed, {}, 1;")),
    Kind("relaxed wait", _TRY_WAIT, _replaced(".parity", ".parity.relaxed.cta")),
    Kind("relaxed arrival", _ARRIVE, _replaced("mbarrier.arrive", "mbarrier.arrive.relaxed.cluster")),
    Kind("relaxed arrival", _EXPECT, _replaced("arrive.expect_tx", "arrive.expect_tx.relaxed.cta")),
    Kind("relaxed arrival", r"barrier\.cluster\.arrive\.aligned;", _replaced("arrive", "arrive.relaxed")),
    Kind("count + 1", _INIT, _with_operand("count", "b32", "add.u32 changed, {}, 1;")),
    Kind("count - 1", _INIT, _with_operand("count", "b32", "sub.u32 changed, {}, 1;")),
    Kind("one warp more", r"(?P<head>bar\.(?:sync|arrive)\s+[^;,]*,\s*)(?P<threads>\d+);", _one_warp(32)),
    Kind("one warp less", r"(?P<head>bar\.(?:sync|arrive)\s+[^;,]*,\s*)(?P<threads>\d+);", _one_warp(-32)),
    Kind("bytes halved", _EXPECT, _with_operand("bytes", "b32", "shr.u32 changed, {}, 1;")),
    Kind("bytes doubled", _EXPECT, _with_operand("bytes", "b32", "shl.b32 changed, {}, 1;")),
    Kind("bytes + 16", _EXPECT, _with_operand("bytes", "b32", "add.u32 changed, {}, 16;")),
    Kind("bytes - 16", _EXPECT, _with_operand("bytes", "b32", "sub.u32 changed, {}, 16;")),
    Kind("lowest CTA taken from the mask", _MASKED,
         _with_operand("mask", "b16", "sub.u16 changed, {0}, 1; and.b16 changed, changed, {0};")),
    Kind("highest CTA taken from the mask", _MASKED, _with_operand(
        "mask", "b16",
        "{{ .reg .b32 m, s; cvt.u32.u16 m, {0}; bfind.u32 s, m; shl.b32 s, 1, s; xor.b32 m, m, s; "
        "cvt.u16.u32 changed, m; }}")),
    Kind("a CTA added to the mask", _MASKED,
         _with_operand("mask", "b16", "add.u16 changed, {0}, 1; or.b16 changed, changed, {0};")),
    Kind("mask moved up", _MASKED, _with_operand("mask", "b16", "shl.b16 changed, {0}, 1;")),
    Kind("mask moved to the other parity", _MASKED, _with_operand(
        "mask", "b16",
        "and.b16 changed, {0}, 0x5555; shl.b16 changed, changed, 1; and.b16 helper, {0}, 0xaaaa; "
        "shr.u16 helper, helper, 1; or.b16 changed, changed, helper;")),
    Kind("scale factors of another atom", _COPY, _with_operand("source", "b64", "add.u64 changed, {}, 32;")),
    Kind("scale factors four columns further", _COPY, _with_operand("to", "b32", "add.u32 changed, {}, 4;")),
    Kind("A's scale factors four columns further", _SCALED, _with_operand("a", "b32", "add.u32 changed, {}, 4;")),
    Kind("B's scale factors four columns further", _SCALED, _with_operand("b", "b32", "add.u32 changed, {}, 4;")),
    Kind("the other accumulator", _SCALED, _with_operand("d", "b32", "add.u32 changed, {}, 160;")),
    Kind("fence of global memory only", r"fence\.proxy\.async\.shared::cta;", _replaced("shared::cta", "global")),
)  # fmt: skip


def _wrong_phase(plan: Plan) -> Kind:
    """The parity turns one stage too late: at the first stage of a ring it is still that of the round before."""
    first = [barrier.offset for barrier in plan.barriers if barrier.count > 1]

    def change(found: re.Match[str]) -> str | None:
        symbol = re.search(r"\.extern \.shared [^;]*?(\w+)\[\];", found.string)
        if not first or symbol is None:
            return None
        tests = "".join(
            f"mov.b32 base, {symbol[1]}; add.u32 base, base, {offset}; setp.eq.u32 here, base, {found['at']}; "
            "@here xor.b32 changed, changed, 1; "
            for offset in first
        )
        waits = found.group().replace(found["parity"] + ";", "changed;")
        return f"{{ .reg .b32 changed, base; .reg .pred here; mov.b32 changed, {found['parity']}; {tests} {waits} }}"

    return Kind("the parity turns a stage too late", _TRY_WAIT, change)


def _moved(ptx: str) -> Iterator[Mutant]:
    """Work moved behind the signal that it is done: MMAs behind their commit, loads behind their arrival.

    A load moves by being repeated there, into registers of its own.
    """
    commits = list(re.finditer(r"tcgen05\.commit[^;]*;", ptx))
    for number, commit in enumerate(commits, 1):
        block = ptx.rfind("\n$L", 0, commit.start())
        mmas = list(re.finditer(r"tcgen05\.mma\.[^;]*;", ptx[block : commit.start()]))
        if mmas:
            last = mmas[-1]
            start, end = block + last.start(), block + last.end()
            moved = ptx[:start] + ptx[end : commit.end()] + last.group() + ptx[commit.end() :]
            which = f"{number} of {len(commits)}"
            yield Mutant("commit before the last MMA", _line(commit), _text(commit), which, moved)
    arrivals = list(re.finditer(_ARRIVE, ptx))
    for number, arrive in enumerate(arrivals, 1):
        loads = list(_LOAD.finditer(ptx, 0, arrive.start()))
        if not loads:
            continue
        again, end = _again(loads[-1]), arrive.end()
        if "tcgen05" in again:  # all lanes of the warp load, not only the one that arrives
            together = re.compile(r"bar\.warp\.sync[^;]*;").search(ptx, end)
            assert together
            end = together.end()
        moved = f"{ptx[:end]} {again}{ptx[end:]}"
        which = f"{number} of {len(arrivals)}"
        yield Mutant("arrival before the load", _line(arrive), _text(arrive), which, moved)


_LOAD = re.compile(
    r"ld\.shared\.b128 \w+, (?P<response>\[[^]]*\]);|(?P<head>tcgen05\.ld\.[^;{]*)\{(?P<to>[^}]*)\}, (?P<at>\[[^]]*\]);"
)
"""Of a response, or of an accumulator."""


def _again(load: re.Match[str]) -> str:
    """The same load once more, into registers of its own."""
    if load["response"]:
        return f"{{ .reg .b128 again; ld.shared.b128 again, {load['response']}; }}"
    names = ", ".join(f"again{n}" for n in range(load["to"].count(",") + 1))
    return f"{{ .reg .b32 {names}; {load['head']}{{{names}}}, {load['at']}; tcgen05.wait::ld.sync.aligned; }}"
