"""The order of an instruction's qualifiers.

ptxas takes the qualifiers that follow an instruction's name in any order: ``vote.ballot.sync.b32`` is
``vote.sync.ballot.b32``. Only qualifiers of one kind, such as types and state spaces, have their meaning by their
order. The parser puts them into the order of the syntax in the PTX ISA, so that nothing behind it knows another one.
"""

from __future__ import annotations

import re
from functools import cache

_TYPE = (
    r"[bsu](?:1|4|8|16|32|64|128)|[su]16x2|[su]8x4|pred|b?f16(?:x2)?|t?f32|f32x2|f64"
    r"|e[2345]m[1235](?:x[24])?|ue8m0(?:x2)?|ue4m3"
)
_SPACE = r"global|local|const|shared(?:::\w+)?|param(?:::\w+)?"
_SCOPE = r"cta|cluster|gpu|sys"
_ORDERING = r"weak|volatile|mmio|relaxed|acquire|release|acq_rel|sc"
_SHAPE = r"m\d+n\d+(?:k\d+)?"
_REDUCTION = r"and|or|xor|add|min|max|inc|dec|exch|cas|popc"
_DONE = r"mbarrier::complete_tx::bytes|bulk_group"

_DEFAULT = (
    *("pack", "bulk", r"hi|lo|wide", "cc", "proxy", r"async(?:::\w+)?|alias|mbarrier_init|tensormap::generic"),
    *(
        "expect_tx|noComplete|parity",
        r"phase_type::\w+|layout::\w+",
        r"eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan",
    ),
    *("to", "sync", "aligned", r"idx|up|down|bfly|all|any|uni|ballot", r"clamp|wrap|shiftamt", _ORDERING, _SCOPE),
    *(_SHAPE, r"x[124]", "trans", _SPACE, "nc", r"L[12]", _DONE, r"multicast::cluster(?:::all)?"),
    *(
        _REDUCTION, "noftz", r"rn[ai]?|r[zmps]i?|approx|full", "ftz", "2pi", "sat", "NaN", "xorsign", "abs", "relu",
        "satfinite", "scaled::n2::ue8m0",
    ),
    *(r"L1::\w+", r"L2::evict_\w+", "L2::cache_hint", r"L2::\d+B", r"v[248]", r"b\d+x16(?:_p\d+)?", _TYPE),
    r"f4e|b4e|rc8|rc16|ecl|ecr",
)  # fmt: skip
_TCGEN05 = (
    *("sp", "red", r"cta_group::[12]", "sync", "aligned", r"kind::\w+", "block_scale"),
    *(r"scale_vec::\w+|block(?:16|32)", "ashift", r"collector::\w+::\w+", "mbarrier::arrive::one", _SPACE),
    *("multicast::cluster", r"\d+x\d+bx?2?", r"x\d+", r"warpx\d(?:::\w+)?", r"(?:un)?pack::16b", "down"),
    *("min|max", "abs", "NaN", r"b\d+x16(?:_p\d+)?", _TYPE),
)
_MMA = (
    *(r"sp(?:::\w+)?", "sync", "aligned", _SHAPE, "row|col", r"kind::\w+", "block_scale", r"scale_vec::\w+"),
    *("satfinite", _TYPE, "and|xor", "popc"),
)
_COPY = (
    *(
        "bulk", "weak", "commit_group|wait_group", "read", "prefetch", "tensor", r"[1-5]d", "mbarrier", "arrive",
        "noinc", "ca|cg", "L2", _SPACE,
    ),
    *(r"tile(?:::\w+)?|im2col(?:\w|::)*", _DONE, "multicast::cluster", r"cta_group::[12]", "L2::cache_hint"),
    *(r"L2::\d+B", "cp_mask|ignore_oob", _TYPE),
)  # fmt: skip
_BARRIER = ("warp|cta|cluster", "sync|arrive|wait|red", "popc|and|or", _ORDERING, "aligned", _TYPE)
_SYNTAX: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"v(?!ote)\w+", ()),  # video instructions are left as they are
    (r"cp\.async", _COPY),
    (
        r"cp\.reduce\.async\.bulk\.tensor",
        (r"[1-5]d", _SPACE, _REDUCTION, r"tile|im2col\w*", "bulk_group", "L2::cache_hint"),
    ),
    (r"cp\.reduce\.async\.bulk", (_SPACE, _DONE, "L2::cache_hint", _REDUCTION, "noftz", _TYPE)),
    (r"(?:atom|red)(?=.*\.v[248]\b)", (_ORDERING, _SCOPE, _SPACE, r"v[248]", _TYPE, _REDUCTION, "noftz")),
    (r"red\.async", (_ORDERING, _SCOPE, _SPACE, _DONE, _REDUCTION, _TYPE)),
    (r"tensormap\.cp_fenceproxy", (_SPACE, "tensormap::generic", _ORDERING, _SCOPE, "sync", "aligned")),
    (r"tensormap\.replace", ("tile", r"[a-z]+_\w+|rank|elemtype", _SPACE, "b1024", _TYPE)),
    (r"barrier|bar", _BARRIER),
    (r"match", ("any|all", "sync", _TYPE)),
    (r"redux", ("sync", _REDUCTION, "abs", "NaN", _TYPE)),
    (r"wgmma\.mma_async", ("sp", "sync", "aligned", _SHAPE, _TYPE, "satfinite")),
    (r"clusterlaunchcontrol\.query_cancel", (r"is_canceled|get_first_ctaid(?:::[xyz])?", "v4", _TYPE)),
    (r"testp", (r"(?:in)?finite|number|notanumber|normal|subnormal", _TYPE)),
    (r"prefetch", (_SPACE, r"L[12](?:::\w+)?", "tensormap")),
    (r"wmma\.(?:load\.[abc]|store\.d|mma)", ("sync", "aligned", "row|col", _SHAPE, _SPACE, _TYPE, "satfinite")),
    (r"mma", _MMA),
    (r"tcgen05\.(?:mma\.ws|\w+(?:::\w+)?)", _TCGEN05),
    (r"createpolicy\.\w+", ("global", r"L2(?:::\w+)?", _TYPE)),
    (r"(?:mbarrier|clusterlaunchcontrol|setmaxnreg|griddepcontrol|wgmma)\.\w+", _DEFAULT),
    (r"(?:mul|mad|madc|mul24|mad24)\.(?:lo|hi|wide)|shf\.[lr]", _DEFAULT),
    (r"\w+", _DEFAULT),
)
"""For each instruction, by its name, the kinds of its qualifiers in the order of the ISA's syntax. The first fits."""


@cache
def in_order(words: str) -> tuple[str, ...]:
    """Returns an opcode and its qualifiers in the order of the PTX ISA, or as they are if one of them is unknown."""
    for name, kinds in _SYNTAX:
        found = re.match(rf"(?:{name})(?=\.|$)", words)
        if found is not None:
            qualifiers = words[found.end() + 1 :].split(".") if found.end() < len(words) else []
            places = [next((n for n, kind in enumerate(kinds) if re.fullmatch(kind, q)), None) for q in qualifiers]
            if None not in places:
                ordered = [q for _, q in sorted(zip(places, qualifiers, strict=True), key=lambda pair: pair[0] or 0)]
                words = ".".join((found[0], *ordered))
            break
    return tuple(words.split("."))
