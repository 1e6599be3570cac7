"""Probes of tcgen05.alloc: the columns that it allocates, when it waits, and how CTAs on one SM affect one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.blackwell.ptx import BLANK, THREADS, by_thread_0, by_warp_0, kernel, pointer, sync
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import spin

# ---- one CTA, or a pair ----

STEPS = 12
ALLOC, FREE = 0, 1


def _sequence_body(group: int) -> str:
    step = f"""setp.ne.u32 %p0, %r1, {ALLOC};
@%p0 bra FREE;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r4], %r2;
bar.warp.sync -1;
ld.shared.b32 %r5, [%r4];
bra DONE;
FREE:
ld.shared.b32 %r5, [%r4];
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r5, %r2;
DONE:
st.global.b32 [%rd1], %r5;
"""
    # Both CTAs of a pair finish a step before either starts the next one.
    return (
        "mov.u32 %r20, %ctaid.x;\n"
        + pointer("%rd0", "steps")
        + pointer("%rd1", "found", "%r20", 4 * STEPS)
        + """mov.u32 %r0, 0;
NEXT:
ld.global.u32 %r1, [%rd0];
ld.global.u32 %r2, [%rd0+4];
ld.global.u32 %r3, [%rd0+8];
setp.eq.u32 %p1, %r2, 0;
@%p1 bra ALL;
mad.lo.u32 %r4, %r3, 4, %base;
add.u32 %r4, %r4, 128;
"""
        + by_warp_0(step)
        + sync(group)
        + f"""add.u64 %rd0, %rd0, 12;
add.u64 %rd1, %rd1, 4;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, {STEPS};
@%p1 bra NEXT;
ALL:
"""
        + sync(group)
    )


def _sequence(*steps: tuple[int, int, int]) -> np.ndarray:
    words = np.zeros((STEPS, 3), np.uint32)
    words[: len(steps)] = steps
    return words


SEQUENCES = {
    "128, 64, 32, 32": _sequence((ALLOC, 128, 0), (ALLOC, 64, 1), (ALLOC, 32, 2), (ALLOC, 32, 3), (FREE, 128, 0),
                                 (FREE, 64, 1), (FREE, 32, 2), (FREE, 32, 3)),
    "two of 32 where one of 64 was": _sequence((ALLOC, 64, 0), (ALLOC, 64, 1), (FREE, 64, 0), (ALLOC, 32, 2),
                                               (ALLOC, 32, 3), (FREE, 64, 1), (FREE, 32, 2), (FREE, 32, 3)),
    "64 behind two holes": _sequence((ALLOC, 64, 0), (ALLOC, 64, 1), (ALLOC, 64, 2), (FREE, 64, 1), (FREE, 64, 0),
                                     (ALLOC, 64, 3), (FREE, 64, 2), (ALLOC, 32, 0), (FREE, 64, 3), (ALLOC, 32, 1),
                                     (FREE, 32, 0), (FREE, 32, 1)),
    "all 512, twice": _sequence((ALLOC, 512, 0), (FREE, 512, 0), (ALLOC, 512, 1), (FREE, 512, 1)),
}  # fmt: skip


def _allocations(
    name: str, question: str, sequences: dict[str, np.ndarray], group: int, modelled: bool = True
) -> Probe:
    def read(outputs: Outputs) -> dict[str, Any]:
        answer = {}
        for case, arrays in outputs.items():
            steps = sequences[case]
            taken = (steps[:, 1] > 0) & (steps[:, 0] == ALLOC)
            answer[case] = [row[taken].tolist() for row in arrays["found"]]
        return answer

    def describe(d: Difference) -> str:
        cta, step = d.place
        kind, size, _ = sequences[d.case][step].tolist()
        what = "tcgen05.alloc" if kind == ALLOC else "tcgen05.dealloc"
        return f"step {step}, {what} of {size} columns in CTA {cta}: column {d.theirs}; the emulator: column {d.ours}"

    return Probe(
        name=name,
        question=question,
        ptx=kernel(["u64 steps", "u64 found"], _sequence_body(group)),
        cases=tuple(
            ProbeCase(
                name=case,
                buffers={"steps": steps, "found": np.full((group, STEPS), BLANK, np.uint32)},
                arguments=(Pointer("steps"), Pointer("found")),
                outputs=("found",),
                block=THREADS,
                grid=(group, 1),
                cluster=(group, 1),
                shared=1024,
            )
            for case, steps in sequences.items()
        ),
        read=read,
        explain=by_element(describe),
        modelled=modelled,
        assumption="The first hole that is large enough, at a multiple of the size: the name of a machine instruction.",
    )


GROWING = {
    "64 behind 32": _sequence((ALLOC, 32, 0), (ALLOC, 64, 1), (FREE, 32, 0), (FREE, 64, 1)),
    "128 behind 32 and 64": _sequence((ALLOC, 32, 0), (ALLOC, 64, 1), (ALLOC, 128, 2), (FREE, 32, 0), (FREE, 64, 1),
                                      (FREE, 128, 2)),
}  # fmt: skip

_SLEEP = """{
.reg .b32 tries;
.reg .pred more;
mov.u32 tries, 0;
SLEEP:
nanosleep.u32 5000;
add.u32 tries, tries, 1;
setp.lt.u32 more, tries, 40;
@more bra SLEEP;
}
"""

WAITING = kernel(
    ["u64 found"],
    pointer("%rd0", "found")
    + by_thread_0("st.shared.b32 [%base+16], 0;\n")
    + by_warp_0(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base], 512;\nbar.warp.sync -1;\n"
        "ld.shared.b32 %r0, [%base];\n"
    )
    + sync()
    + """shr.u32 %r1, %thread, 5;
setp.eq.u32 %p0, %r1, 1;
@%p0 bra SECOND;
setp.gt.u32 %p1, %r1, 1;
@%p1 bra DONE;
"""
    + _SLEEP
    + """st.volatile.shared.b32 [%base+16], 1;
bar.warp.sync -1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, 512;
bra DONE;
SECOND:
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base+8], 512;
bar.warp.sync -1;
ld.volatile.shared.b32 %r3, [%base+16];
ld.shared.b32 %r4, [%base+8];
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;
st.global.b32 [%rd0], %r3;
st.global.b32 [%rd0+4], %r4;
DONE:
bar.warp.sync -1;
"""
    + sync(),
)


def _read_waiting(outputs: Outputs) -> dict[str, Any]:
    freed, column = outputs["512 and 512"]["found"].tolist()
    return {"the second alloc waited for the first to be freed": bool(freed == 1), "it got column": column}


def _tell_waiting(d: Difference) -> str:
    what = ("the first block had been freed when the second alloc returned", "column of the second block")[d.place[0]]
    return f"{what}: {d.theirs}; the emulator: {d.ours}"


WAIT = Probe(
    name="tmem_alloc_waits",
    question="Does tcgen05.alloc wait until another warp has freed enough columns?",
    ptx=WAITING,
    cases=(
        ProbeCase(
            name="512 and 512",
            buffers={"found": np.full(2, BLANK, np.uint32)},
            arguments=(Pointer("found"),),
            outputs=("found",),
            block=THREADS,
            shared=1024,
        ),
    ),
    read=_read_waiting,
    explain=by_element(_tell_waiting),
)

# ---- two CTAs of an SM ----

SMS, SM_NUMBERS = 160, 512
"""At least the number of SMs of any GPU. The numbers of SMs may have gaps."""
HALF_AN_SM = 100 * 1024
"""Shared memory such that two CTAs fit on an SM."""
RELINQUISHED, FREED = 1, 2


def _until(condition: str) -> str:
    """Returns code that waits until ``condition`` sets ``%p3``, for some hundred microseconds at most."""
    return spin(condition, "%p3", nanoseconds=1000, tries=300)


def _neighbours(columns: int) -> str:
    """Returns code for two CTAs on an SM. The first one takes columns, gives up the right to more a while later, and
    frees the columns still later. The second requests as many, and reports how far the first one was when it got them.

    The words of an SM are: how many CTAs have come, whether the first one has its columns, what it has given up, what
    the second one saw, and its column.
    """
    alloc = f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base], {columns};\nbar.warp.sync -1;\n"
    free = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, {columns};\n"
    give_up = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    return kernel(
        ["u64 found"],
        "mov.u32 %r0, %smid;\n"
        + pointer("%rd0", "found", "%r0", 20)
        + "setp.eq.u32 %p0, %thread, 0;\nmov.u32 %r1, 0;\n@%p0 atom.global.add.u32 %r1, [%rd0], 1;\n"
        + "shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 bra SECOND;\n"
        + "setp.gt.u32 %p1, %r1, 1;\n@%p1 bra DONE;\n"
        + alloc
        + "ld.shared.b32 %r6, [%base];\n@%p0 st.volatile.global.u32 [%rd0+4], 1;\n"
        + _until("ld.volatile.global.u32 %r4, [%rd0];\nsetp.gt.u32 %p3, %r4, 1;")
        + _SLEEP
        + f"@%p0 st.volatile.global.u32 [%rd0+8], {RELINQUISHED};\nbar.warp.sync -1;\n"
        + give_up
        + _SLEEP
        + f"@%p0 st.volatile.global.u32 [%rd0+8], {FREED};\nbar.warp.sync -1;\n"
        + free
        + "bra DONE;\nSECOND:\n"
        + _until("ld.volatile.global.u32 %r4, [%rd0+4];\nsetp.eq.u32 %p3, %r4, 1;")
        + alloc
        + "ld.volatile.global.u32 %r5, [%rd0+8];\nld.shared.b32 %r6, [%base];\n"
        + give_up
        + free
        + "@%p0 st.global.u32 [%rd0+12], %r5;\n@%p0 st.global.u32 [%rd0+16], %r6;\nDONE:\nbar.warp.sync -1;\n",
    )


def _read_neighbours(outputs: Outputs) -> dict[str, Any]:
    seen = outputs["two CTAs on every SM"]["found"]
    second = seen[seen[:, 3] != BLANK]
    names = ("before the first gave up anything", "after it had relinquished", "after it had freed its columns")
    return {
        **{f"SMs whose second CTA got columns {name}": int((second[:, 3] == n).sum()) for n, name in enumerate(names)},
        "columns it got": sorted(set(second[:, 4].tolist())),
    }


def _neighbour_probe(columns: int, what: str) -> Probe:
    blank = np.full((SM_NUMBERS, 5), BLANK, np.uint32)
    blank[:, :3] = 0
    return Probe(
        name=f"tmem_neighbours_{columns}",
        question=f"When does a second CTA of an SM get {columns} columns, which {what}?",
        ptx=_neighbours(columns),
        cases=(
            ProbeCase(
                name="two CTAs on every SM",
                buffers={"found": blank},
                arguments=(Pointer("found"),),
                outputs=("found",),
                block=32,
                grid=(2 * SMS, 1),
                shared=HALF_AN_SM,
            ),
        ),
        read=_read_neighbours,
        modelled=False,
    )


PROBES = (
    _allocations(
        "tmem_alloc_addresses",
        "Which columns does tcgen05.alloc give, and which once some have been freed?",
        SEQUENCES,
        group=1,
    ),
    _allocations(
        "tmem_alloc_pair",
        "Which columns does tcgen05.alloc give to the CTAs of a pair?",
        SEQUENCES,
        group=2,
    ),
    _allocations(
        "tmem_alloc_growing",
        "Which columns does tcgen05.alloc give if it asks for more than before, which the ISA rules out?",
        GROWING,
        group=1,
        modelled=False,
    ),
    WAIT,
    _neighbour_probe(128, "are free"),
    _neighbour_probe(512, "the first one has"),
)
