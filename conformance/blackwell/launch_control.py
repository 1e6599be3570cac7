"""Probes of cluster launch control: who receives which work, the form of a refusal, and the targets of a multicast
result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.blackwell.ptx import by_thread_0, kernel, pointer
from conformance.comparison import by_answer
from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, poll

THREADS = 32
ANSWER = 64
"""The offset in shared memory; the mbarrier is at 0."""
LARGE = 200 * 1024
"""Shared memory such that one CTA fits on an SM."""
ROUNDS = 4096
"""Most requests of a CTA."""


def _wait(parity: int | str) -> str:
    """Returns code that sets ``%p1`` if the result has arrived. It polls often, because many requests follow one
    another.
    """
    return poll("%base", parity, "%p1", nanoseconds=200, tries=3000)


def _ask(multicast: bool) -> str:
    everywhere = ".multicast::cluster::all" if multicast else ""
    return (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
        f"{everywhere}.b128 [%base+{ANSWER}], [%base];\n"
    )


_DECLARED = ".reg .b128 %answer;\n.reg .b32 %x, %y, %z, %own, %parity, %round;\n"
_OWN = """mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %ctaid.y;
mov.u32 %r3, %ctaid.z;
mov.u32 %r4, %nctaid.x;
mov.u32 %r5, %nctaid.y;
mad.lo.u32 %own, %r3, %r5, %r2;
mad.lo.u32 %own, %own, %r4, %r1;
"""
_BUFFERS = ("ran", "given", "words", "refused", "late")


def _addresses() -> str:
    return "".join(pointer(f"%rd{n}", name) for n, name in enumerate(_BUFFERS))


def _add_one(buffer: str, index: str) -> str:
    return f"mad.wide.u32 %rd10, {index}, 4, {buffer};\nred.global.add.u32 [%rd10], 1;\n"


def _queue(multicast: bool) -> str:
    """Returns the code of a cluster that takes work until there is none.

    Every CTA counts its own start, the work that it received, and refusals. It keeps the words of a result for the
    first CTA that the result names.
    """
    take = (
        f"""ld.shared.b128 %answer, [%base+{ANSWER}];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %answer;
@!%p2 bra REFUSED;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%x, %y, %z, _}}, %answer;
mad.lo.u32 %r6, %z, %r5, %y;
mad.lo.u32 %r6, %r6, %r4, %x;
mul.lo.u32 %r7, %r6, 16;
cvt.u64.u32 %rd11, %r7;
add.u64 %rd11, %rd11, %rd2;
ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%base+{ANSWER}];
st.global.v4.b32 [%rd11], {{%r10, %r11, %r12, %r13}};
mov.u32 %r8, %cluster_ctaid.x;
add.u32 %r6, %r6, %r8;
"""
        + _add_one("%rd1", "%r6")
        + "bra TAKEN;\nREFUSED:\n"
        + _add_one("%rd3", "%own")
        + f"mov.u32 %round, {ROUNDS};\nTAKEN:\n"
    )
    late = _add_one("%rd4", "%own") + f"mov.u32 %round, {ROUNDS};\n"
    leader = "mov.u32 %r9, %cluster_ctarank;\nsetp.ne.u32 %p3, %r9, 0;\n@%p3 bra ASKED;\n"
    return kernel(
        [f"u64 {name}" for name in _BUFFERS],
        _DECLARED
        + _addresses()
        + _OWN
        + by_thread_0(
            _add_one("%rd0", "%own")
            + "mbarrier.init.shared::cta.b64 [%base], 1;\nfence.mbarrier_init.release.cluster;\n"
        )
        + "mov.u32 %round, 0;\nmov.u32 %parity, 0;\nNEXT:\n"
        + by_thread_0("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 16;\nfence.proxy.async.shared::cta;\n")
        + CLUSTER_SYNC
        + by_thread_0(leader + _ask(multicast) + "ASKED:\n")
        + _wait("%parity")
        + "bar.warp.sync -1;\n"
        + by_thread_0("@%p1 bra HERE;\n" + late + "bra MOST_DESCRIBED;\nHERE:\n" + take + "MOST_DESCRIBED:\n")
        # Every thread uses the result of thread 0.
        + f"""shfl.sync.idx.b32 %round, %round, 0, 31, -1;
xor.b32 %parity, %parity, 1;
add.u32 %round, %round, 1;
{CLUSTER_SYNC}setp.lt.u32 %p4, %round, {ROUNDS};
@%p4 bra NEXT;
""",
    )


def _case(grid: tuple[int, int, int], cluster: int) -> ProbeCase:
    count = grid[0] * grid[1] * grid[2]
    return ProbeCase(
        name=f"grid {grid[0]} x {grid[1]} x {grid[2]}, clusters of {cluster}",
        buffers={
            **{name: np.zeros(count, np.uint32) for name in ("ran", "given")},
            "words": np.zeros((count, 4), np.uint32),
            **{name: np.zeros(count, np.uint32) for name in ("refused", "late")},
        },
        arguments=tuple(Pointer(name) for name in _BUFFERS),
        outputs=_BUFFERS,
        block=THREADS,
        grid=grid,
        cluster=(cluster, 1, 1),
        shared=LARGE,
    )


GRID = (24, 20, 4)


def _layout_of_words(words: np.ndarray) -> bool:
    """Returns whether results have the emulator's layout: x, y | z << 16, and bit 0 of word 2."""
    first = np.flatnonzero(words.any(axis=1))
    across, down, _ = GRID
    x, y, z = first % across, first // across % down, first // (across * down)
    return bool(
        (words[first, 0] == x).all() and (words[first, 1] == (y | z << 16)).all() and (words[first, 2] & 1 == 1).all()
    )


def _read_queue(outputs: Outputs) -> dict[str, Any]:
    answer = {}
    for case, arrays in outputs.items():
        ran, given = arrays["ran"], arrays["given"]
        answer[case] = {
            "every CTA ran or was given, once": bool((ran + given == 1).all()),
            "every CTA that ran was refused once": bool((arrays["refused"] == ran).all()),
            "answers that did not come": int(arrays["late"].sum()),
            "answers have the layout of the emulator": _layout_of_words(arrays["words"]),
        }
    return answer


def _read_whole_queue(outputs: Outputs) -> dict[str, Any]:
    """Returns the results without the number and identity of the CTAs that ran, which the GPU may choose."""
    answer = _read_queue(outputs)
    for case, arrays in outputs.items():
        count = int(arrays["ran"].sum())
        answer[case]["CTAs that ran"] = count
        answer[case]["those that ran are the first"] = bool(arrays["ran"][:count].all())
    return answer


def _queues(name: str, question: str, multicast: bool, cluster: int) -> Probe:
    return Probe(
        name=name,
        question=question,
        ptx=_queue(multicast),
        cases=(_case(GRID, cluster),),
        read=_read_whole_queue,
        explain=by_answer(_read_queue),
        assumption="Each cluster is either launched or given, once; seen by others on a B200, not by us.",
    )


# ---- refusals ----

CTAS = 4


def _refusals(requests: int) -> str:
    """Returns code in which all CTAs, once started, send this many requests; each stores whether it got a result, and
    the result.
    """
    asked = "".join(
        f"""mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 16;
fence.proxy.async.shared::cta;
{_ask(multicast=False)}{_wait(n & 1)}
selp.u32 %r6, 1, 0, %p1;
st.global.b32 [%rd1+{32 * n}], %r6;
@!%p1 bra LEAVE;
ld.shared.b128 %answer, [%base+{ANSWER}];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %answer;
selp.u32 %r6, 1, 0, %p2;
st.global.b32 [%rd1+{32 * n + 4}], %r6;
ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%base+{ANSWER}];
st.global.v4.b32 [%rd1+{32 * n + 16}], {{%r10, %r11, %r12, %r13}};
"""
        for n in range(requests)
    )
    return kernel(
        ["u64 started", "u64 found"],
        _DECLARED
        + "mov.u32 %r0, %ctaid.x;\n"
        + pointer("%rd0", "started")
        + pointer("%rd1", "found", "%r0", 32 * requests)
        + by_thread_0(
            """mbarrier.init.shared::cta.b64 [%base], 1;
fence.mbarrier_init.release.cluster;
red.global.add.u32 [%rd0], 1;
mov.u32 %r2, %nctaid.x;
mov.u32 %r3, 0;
STARTED:
nanosleep.u32 1000;
ld.volatile.global.u32 %r4, [%rd0];
add.u32 %r3, %r3, 1;
setp.lt.u32 %p5, %r4, %r2;
setp.lt.and.u32 %p5, %r3, 1000, %p5;
@%p5 bra STARTED;
"""
            + asked
            + "LEAVE:\n"
        ),
    )


def _refusal_case(ctas: int, requests: int) -> ProbeCase:
    return ProbeCase(
        name=f"{ctas} CTAs that have all started",
        buffers={"started": np.zeros(1, np.uint32), "found": np.full((ctas, requests, 8), 9, np.uint32)},
        arguments=(Pointer("started"), Pointer("found")),
        outputs=("found",),
        block=THREADS,
        grid=(ctas, 1),
        shared=1024,
    )


def _read_refusals(outputs: Outputs) -> dict[str, Any]:
    return {
        case: {
            "answered": (arrays["found"][..., 0] == 1).tolist(),
            "given": (arrays["found"][..., 1] == 1).tolist(),
        }
        for case, arrays in outputs.items()
    }


def _read_words(outputs: Outputs) -> dict[str, Any]:
    """Returns the results with the words of a refusal, which are undefined."""
    answer = _read_refusals(outputs)
    for case, arrays in outputs.items():
        answer[case]["words"] = [[hex(w) for w in words] for words in arrays["found"][0, :, 4:].tolist()]
    return answer


PROBES = (
    Probe(
        name="clc_refused",
        question="Is a request answered, and refused, if every CTA of the grid has started?",
        ptx=_refusals(1),
        cases=(_refusal_case(1, 1), _refusal_case(CTAS, 1)),
        read=_read_words,
        explain=by_answer(_read_refusals),
    ),
    Probe(
        name="clc_after_a_refusal",
        question="What is a second request answered after a refusal, which the ISA rules out?",
        ptx=_refusals(2),
        cases=(_refusal_case(1, 2),),
        read=_read_words,
        modelled=False,
    ),
    _queues(
        "clc_queue",
        "Is every CTA of a large grid of three dimensions launched or given away, once, and how are answers laid out?",
        multicast=False,
        cluster=1,
    ),
    _queues(
        "clc_queue_multicast",
        "Does a multicast answer reach both CTAs of a cluster, and is every cluster launched or given, once?",
        multicast=True,
        cluster=2,
    ),
)
