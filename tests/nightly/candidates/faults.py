"""Faults of twelve kinds, planted in PTX one at a time: what a person or a program that writes kernels gets wrong.

Each kind has patterns of statements, and what stands there instead; the lines of the PTX stay where they are. Which
places a run reaches is for the caller to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Match = re.Match[str]


@dataclass(frozen=True)
class Fault:
    """kind: one of `KINDS`. line: in the PTX, from 1. text: the statement there. ptx: with the fault."""

    kind: str
    line: int
    text: str
    ptx: str


GUARD = r"(?P<guard>@!?%?\w+\s+)?"


def faults(ptx: str, kernel: str) -> Iterator[Fault]:
    """Yields every fault that can be planted in one kernel of a PTX text, in the order of the kinds."""
    entry = re.search(rf"\.entry\s+{re.escape(kernel)}\b.*?\n}}", ptx, re.DOTALL)
    if entry is None:
        return
    for kind, changes in KINDS.items():
        for pattern, change in changes:
            for found in re.compile(GUARD + pattern).finditer(ptx, *entry.span()):
                put = change(found)
                if put is not None:
                    put += "\n" * (found.group().count("\n") - put.count("\n"))
                    line = ptx.count("\n", 0, found.start()) + 1
                    text = " ".join(found.group().split())
                    yield Fault(kind, line, text, ptx[: found.start()] + put + ptx[found.end() :])


def _dropped(found: Match) -> str:
    return ""


def _register(found: Match, group: str, kind: str, compute: str) -> str:
    """The statement with another operand in place of a group; {} in compute is the one it had."""
    start, end = (at - found.start() for at in found.span(group))
    text = found.group()
    made = compute.format(found[group])
    return f"{{ .reg .{kind} changed; {made} {text[:start]}changed{text[end:]} }}"


def _with(group: str, kind: str, compute: str) -> Callable[[Match], str]:
    return lambda found: _register(found, group, kind, compute)


def _further(found: Match) -> str:
    """The address of a load or store, an element further."""
    head, address, offset, tail = found["head"], found["address"], found["offset"], found["tail"]
    size = int(found["bits"]) // 8
    if found["many"]:  # a vector has to stay aligned
        size *= int(found["many"][2:])
    return f"{found['guard'] or ''}{head}[{address}+{int(offset or 0) + size}{tail}"


def _drains(found: Match) -> bool:
    """Returns whether nothing but waits stands behind a wait, up to where other threads or the end come together: what
    a producer does last, so that its CTA outlives what others send.
    """
    behind = re.split(r"\n\$L|\bret;", found.string[found.end() :], maxsplit=1)[0]
    works = r"mbarrier\.arrive|cp\.async|\bld\.|\bst\.|tcgen05|wgmma|elect\.sync|bar\.|clusterlaunch"
    return not re.search(works, behind)


def _not_waited(found: Match) -> str | None:
    return None if _drains(found) else f"{found['guard'] or ''}setp.eq.u32 {found['done']}, 0, 0;"


def _other_parity(found: Match) -> str | None:
    if _drains(found):
        return None
    if found["parity"] not in ("0", "1"):
        return _register(found, "parity", "b32", "xor.b32 changed, {}, 1;")
    start, end = (at - found.start() for at in found.span("parity"))
    return f"{found.group()[:start]}{1 - int(found['parity'])}{found.group()[end:]}"


def _one_more(found: Match) -> str:
    return f"{found['guard'] or ''}{found['head']}{int(found['groups']) + 1};"


def _arrives_at_once(found: Match) -> str:
    return f"{found['guard'] or ''}mbarrier.arrive.shared::cta.b64 _, {found['barrier']};"


def _behind(found: Match) -> str | None:
    return None if found["guard"] else f"{found['rest']} {found['wait']}"


_MEMORY = r"(?:\.\w+(?:::\w+)*)*?\.{space}(?:\.\w+(?:::\w+)*)*?(?P<many>\.v[248])?\.[bsuf](?P<bits>\d+)"
_PLACE = r"\[(?P<address>%?\w+)(?:\+(?P<offset>-?\d+))?(?P<tail>\][^;]*;)"
_TRY_WAIT = r"mbarrier\.(?:try|test)_wait\.parity[^;]*?(?P<done>%?\w+), (?P<at>\[[^]]*\]), (?P<parity>[%\w]+)"
_TENSOR_LOAD = r"cp\.async\.bulk\.tensor[^;]*?\.global[^;]*?mbarrier[^;]*?, \{{(?P<k>{})"

KINDS: dict[str, tuple[tuple[str, Callable[[Match], str | None]], ...]] = {
    "barrier of threads left out": (
        (r"(?<![\w.])(?:bar|barrier)\.sync[^;]*;", _dropped),
        (r"barrier\.cluster\.arrive[^;]*;\s*(?://[^\n]*\s*)*barrier\.cluster\.wait[^;]*;", _dropped),
    ),
    "proxy fence left out": ((r"fence\.proxy\.async[^;]*;", _dropped),),
    "wrong mbarrier count": (
        (r"mbarrier\.init[^;]*\],\s*(?P<count>[%\w]+);", _with("count", "b32", "add.u32 changed, {}, 1;")),
        (r"mbarrier\.init[^;]*\],\s*(?P<count>[%\w]+);", _with("count", "b32", "sub.u32 changed, {}, 1;")),
    ),
    "wrong phase parity": ((_TRY_WAIT + r"(?:,[^;]*)?;", _other_parity),),
    "wait of the tensor core left out": (
        (r"wgmma\.wait_group[^;]*;", _dropped),
        (r"tcgen05\.wait::[^;]*;", _dropped),
        (r"tcgen05\.commit[^;]*?(?P<barrier>\[[^]]*\])(?:,[^;]*)?;", _arrives_at_once),
    ),
    "stage released early": (
        (r"(?P<head>wgmma\.wait_group\.sync\.aligned\s+)(?P<groups>\d+);", _one_more),
        (r"(?P<wait>wgmma\.wait_group[^;]*;)(?P<rest>[^{}:]*?mbarrier\.arrive[^;]*;)", _behind),
        (_TRY_WAIT + r"(?:,[^;]*)?;", _not_waited),
    ),
    "commit or wait of copies left out": (
        (r"cp\.async(?:\.bulk)?\.(?:commit_group|wait_all)\s*;", _dropped),
        (r"cp\.async(?:\.bulk)?\.wait_group[^;]*;", _dropped),
        (r"(?P<head>cp\.async(?:\.bulk)?\.wait_group(?:\.read)?\s+)(?P<groups>\d+);", _one_more),
    ),
    "store an element further": (
        (r"(?P<head>(?<![\w.])st" + _MEMORY.format(space="(?:global|shared(?:::cta)?)") + r"\s+)" + _PLACE, _further),
    ),
    "wrong slice of K": (
        (r"(?P<head>(?<![\w.])ld" + _MEMORY.format(space="global") + r"\s+[^[;]*)" + _PLACE, _further),
        (_TENSOR_LOAD.format(r"%r\d+") + r"[^;]*;", _with("k", "b32", "add.u32 changed, {}, 16;")),
        (r"(?:wgmma\.mma_async|tcgen05\.mma)[^;]*?\},?[^;{}]*?(?P<descriptor>%rd\d+), %rd\d+[^;]*;",
         _with("descriptor", "b64", "add.u64 changed, {}, 2;")),
    ),
    "warps not together, or another lane": (
        (r"bar\.warp\.sync[^;]*;", _dropped),
        (r"shfl\.sync\.\w+\.b32\s+[^;]*?,\s*(?P<lane>[%\w]+),\s*[%\w]+,\s*[-%\w]+;",
         _with("lane", "b32", "and.b32 changed, {}, 0;")),
        (r"shfl\.sync[^;]*,\s*(?P<mask>[-%\w]+);", _with("mask", "b32", "and.b32 changed, {}, 0x7fffffff;")),
    ),
    "shared memory not written": (
        (r"(?<![\w.])(?:st(?:\.\w+)*?\.shared|st\.async)[^;]*;", _dropped),
        (r"(?<![\w.])cp\.async\.c[ag][^;]*;", _dropped),
        (r"(?<![\w.])stmatrix[^;]*;", _dropped),
    ),
    "wrong bytes expected": (
        (r"mbarrier\.(?:arrive\.)?expect_tx[^;]*\],\s*(?P<bytes>[%\w]+);",
         _with("bytes", "b32", "add.u32 changed, {}, 16;")),
        (r"mbarrier\.(?:arrive\.)?expect_tx[^;]*\],\s*(?P<bytes>[%\w]+);",
         _with("bytes", "b32", "shr.u32 changed, {}, 1;")),
    ),
}  # fmt: skip
