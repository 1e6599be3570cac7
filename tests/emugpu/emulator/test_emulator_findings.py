"""What a program should not do but hardware tolerates: a warning of the launch, or a Fault where the launch is strict.

Every such rule has a name. ``strict=True`` makes its first breach a Fault of that rule, unless ``allow`` names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, Run, launch

from emugpu.emulator import Device, Fault, TensorMap

LANES = np.arange(32)


@dataclass(frozen=True)
class Case:
    """A program that breaks one rule ``count`` times, and one that does not; %r1 becomes ``expected``."""

    body: str
    legal: str
    expected: np.ndarray
    count: int = 1
    options: dict = field(default_factory=dict)
    after: str = ""

    def run(self, body: str, **options) -> Run:
        text = body + STORE_R1 + self.after + "ret;"
        return launch(text, module_scope=WORDS, **self.options, **options)


TWO_INITS = """
mov.b32 %r3, words;
and.b32 %r4, %r0, {who};
setp.eq.u32 %p1, %r4, 0; @!%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 128;
READY: bar.warp.sync -1;
bar.sync 0;
mbarrier.arrive.shared.b64 %rd5, [%r3];
AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra AGAIN;
mov.b32 %r1, 8;
"""
"""Four warps; the first lane of each initialises the same mbarrier, with the same count."""

LOADED = (
    ALLOCATE
    + """
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];
"""
)

BEYOND = (
    ALLOCATE
    + """
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+{column}], {{%r0}};
tcgen05.wait::st.sync.aligned;
mov.b32 %r1, %r0;
"""
)

PEER = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
READY: bar.warp.sync -1;
mov.b32 %r1, 3;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r4, %cluster_ctarank; setp.eq.u32 %p2, %r4, 0; @%p2 bra STORE;
mov.b32 %r5, 2000;
DELAY: sub.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra DELAY;
elect.sync %r6|%p4, -1;
@!%p4 bra STORE;
{signal}
STORE: bar.warp.sync -1;
"""
"""The CTA of rank 0 leaves; that of rank 1 signals a barrier of it afterwards, or a barrier of its own."""

ARRIVE = "mapa.shared::cluster.u32 %r7, %r3, {rank};mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];"
COMMIT = (
    "mov.b16 %rs1, {mask};"
    "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %rs1;"
)

AFTER_INVAL = """
mov.b32 %r3, words;
mov.b32 %r1, 4;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 5;
mbarrier.arrive.shared.b64 %rd5, [%r3];
{}
READY: bar.warp.sync -1;
"""

LANDED = """
LANDED: mbarrier.try_wait.parity.shared.b64 %p5, [%r3], 0; @!%p5 bra LANDED;
"""

PAIR_OF_CTAS = dict(grid=2, cluster=2)

CASES = {
    "mbarrier-reinit": Case(
        TWO_INITS.format(who=31), TWO_INITS.format(who=127), np.full(128, 8), count=3, options=dict(threads=128)
    ),
    "register-before-wait": Case(
        LOADED + "add.u32 %r1, %r4, 9;",
        LOADED + "tcgen05.wait::ld.sync.aligned; add.u32 %r1, %r4, 9;",
        LANES + 9,
        after=FREE,
    ),
    "tmem-wait": Case(
        LOADED.replace("tcgen05.wait::st.sync.aligned;", "") + "tcgen05.wait::ld.sync.aligned; add.u32 %r1, %r4, 9;",
        LOADED + "tcgen05.wait::ld.sync.aligned; add.u32 %r1, %r4, 9;",
        LANES + 9,
        after=FREE,
    ),
    "tmem-outside": Case(BEYOND.format(column=64), BEYOND.format(column=24), LANES, count=1, after=FREE),
    "peer-exited": Case(
        PEER.format(signal=ARRIVE.format(rank=0)),
        PEER.format(signal=ARRIVE.format(rank=1) + LANDED),
        np.full(32, 3),
        options=PAIR_OF_CTAS,
    ),
    "peer-exited, by a commit": Case(
        PEER.format(signal=COMMIT.format(mask=1)),
        PEER.format(signal=COMMIT.format(mask=2) + LANDED),
        np.full(32, 3),
        options=PAIR_OF_CTAS,
    ),
    "mbarrier-after-inval": Case(
        AFTER_INVAL.format("mbarrier.inval.shared.b64 [%r3]; mbarrier.arrive.shared.b64 %rd5, [%r3];"),
        AFTER_INVAL.format("mbarrier.arrive.shared.b64 %rd5, [%r3]; mbarrier.inval.shared.b64 [%r3];"),
        np.full(32, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tolerated_breach_is_a_warning_that_names_its_rule(name):
    """It stops a strict launch, unless its own rule is allowed. The legal program has no finding."""
    case, rule, other = CASES[name], name.split(",")[0], "exit-pending"
    for body, options in (
        (case.body, {}),
        *((case.body, dict(strict=True, allow=allow)) for allow in ((rule,), [rule], {rule, other})),
        (case.legal, {}),
        (case.legal, dict(strict=True)),
    ):
        done = case.run(body, **options)
        assert (done.words(len(case.expected)) == case.expected).all()
        found = [(w.rule, w.count, bool(w.message)) for w in done.result.warnings]
        assert found == ([(rule, case.count, True)] if body == case.body else [])
    for allow in ((), (other,)):
        with pytest.raises(Fault, match="PTX line") as error:
            case.run(case.body, strict=True, allow=allow)
        assert error.value.rule == rule


# ---- leaving with a bulk store in flight ----

BULK = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
add.u32 %r6, %r0, 10;
st.shared.b32 [%r4], %r6;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
mov.b32 %r8, 0;
mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
elect.sync %r9|%p1, -1;
@!%p1 bra DONE;
cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd4, {{%r8}}], [%r3];
cp.async.bulk.commit_group;
{wait}
DONE: ret;
"""


def bulk(wait: str, **options) -> tuple[Run, np.ndarray]:
    device = Device()
    stored = device.alloc(128)
    tile = TensorMap.tiled(stored, "u32", (32,), (32,))
    done = launch(
        BULK.format(wait=wait), module_scope=WORDS, parameters=["map map"], arguments=[tile], device=device, **options
    )
    return done, device.download(stored, np.uint32, 32)


def test_leaving_while_a_bulk_store_reads_shared_memory_is_a_warning():
    for options in ({}, dict(strict=True, allow=("exit-pending",))):
        done, stored = bulk("", **options)
        assert (stored == LANES + 10).all()
        assert [(w.rule, w.count) for w in done.result.warnings] == [("exit-pending", 1)]
    with pytest.raises(Fault) as error:
        bulk("", strict=True)
    assert error.value.rule == "exit-pending"


@pytest.mark.parametrize("wait", ["cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 0;"])
def test_leaving_after_the_wait_is_legal(wait):
    done, stored = bulk(wait, strict=True)
    assert (stored == LANES + 10).all() and done.result.warnings == ()


# ---- where tolerance ends ----

INIT = "mov.b32 %r3, words; setp.eq.u32 %p1, %r0, 0; @!%p1 bra DONE; mbarrier.init.shared.b64 [%r3], 2;"


def stopped(body: str, **options) -> Fault:
    with pytest.raises(Fault) as error:
        launch(body, module_scope=WORDS, **options)
    assert isinstance(error.value.rule, str) and error.value.rule
    return error.value


def test_the_same_init_twice_by_one_thread_is_tolerated():
    done = launch(INIT + "mbarrier.init.shared.b64 [%r3], 2; DONE: ret;", module_scope=WORDS)
    assert [(w.rule, w.count) for w in done.result.warnings] == [("mbarrier-reinit", 1)]


def test_an_init_with_another_count_is_an_error():
    for options in ({}, dict(strict=True, allow=("mbarrier-reinit",))):
        stopped(INIT + "mbarrier.init.shared.b64 [%r3], 3; DONE: ret;", **options)


@pytest.mark.parametrize(
    "use",
    [
        "mbarrier.arrive.shared.b64 %rd5, [%r3];",
        "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3], 16;",
        "mbarrier.arrive.shared.b64 %rd5, [%r3], 2;",
    ],
)
def test_an_init_after_a_use_is_an_error(use):
    for options in ({}, dict(strict=True, allow=("mbarrier-reinit",))):
        stopped(INIT + use + "mbarrier.init.shared.b64 [%r3], 2; DONE: ret;", **options)


def test_an_init_after_inval_is_no_finding():
    body = INIT + "mbarrier.inval.shared.b64 [%r3]; mbarrier.init.shared.b64 [%r3], 3; DONE: ret;"
    assert launch(body, module_scope=WORDS, strict=True).result.warnings == ()


def test_an_arrival_at_what_never_was_an_mbarrier_is_an_error():
    stopped("mov.b32 %r3, words; mbarrier.arrive.shared.b64 %rd5, [%r3]; ret;")


@pytest.mark.parametrize(
    "body",
    [
        "mov.b32 %r3, words; st.shared.b32 [%r3+2], %r0;",
        "mov.b64 %rd4, 64; ld.global.b32 %r1, [%rd4];",
        "mov.b32 %r3, words; ld.shared.b32 %r1, [%r3];",
        "trap;",
    ],
)
def test_an_error_has_a_rule_and_cannot_be_allowed(body):
    rule = stopped(body + "ret;").rule
    assert stopped(body + "ret;", strict=True).rule == rule
    assert stopped(body + "ret;", strict=True, allow=(rule,)).rule == rule


# ---- how findings are collected ----


def test_different_findings_are_told_apart():
    body = (
        INIT
        + """
    mbarrier.init.shared.b64 [%r3], 2;
    mbarrier.init.shared.b64 [%r3+8], 1;
    mbarrier.inval.shared.b64 [%r3+8];
    mbarrier.arrive.shared.b64 %rd5, [%r3+8];
    DONE: ret;
    """
    )
    warnings = launch(body, module_scope=WORDS).result.warnings
    assert sorted((w.rule, w.count) for w in warnings) == [("mbarrier-after-inval", 1), ("mbarrier-reinit", 1)]


def test_equal_findings_of_many_ctas_are_one():
    body = INIT + "mbarrier.init.shared.b64 [%r3], 2; DONE: ret;"
    (finding,) = launch(body, module_scope=WORDS, grid=6).result.warnings
    assert (finding.rule, finding.count) == ("mbarrier-reinit", 6)


def test_findings_belong_to_their_launch():
    device = Device()
    body = INIT + "{} DONE: ret;"
    bad = launch(body.format("mbarrier.init.shared.b64 [%r3], 2;"), module_scope=WORDS, device=device)
    good = launch(body.format(""), module_scope=WORDS, device=device)
    assert len(bad.result.warnings) == 1 and good.result.warnings == ()
