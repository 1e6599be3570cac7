"""Programs that allocate and free tensor memory alone or as a pair, and stores by TMA in several bulk groups."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, WORDS, launch

from emugpu.emulator import Deadlock, Device, Fault, Module, TensorMap

SCHEDULES = [{}, *({"schedule": "random", "seed": seed} for seed in range(4))]


def fault(body: str, **options) -> str:
    """The rule that a program breaks."""
    with pytest.raises(Fault) as error:
        launch(body, module_scope=WORDS, **options)
    return error.value.rule


# ---- one CTA ----


def test_an_allocation_waits_until_another_warp_frees_enough():
    """Warp 0 takes all 512 columns, warp 1 wants 256 and gets the first of them when warp 0 has freed them."""
    body = """
    mov.b32 %r3, words;
    setp.ge.u32 %p1, %r0, 32; @%p1 bra SECOND;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 512;
    bar.sync 0;
    ld.shared.b32 %r2, [%r3];
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;
    bra END;
    SECOND: bar.sync 0;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+4], 256;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+8], 64;
    bar.warp.sync -1;
    ld.shared.b32 %r4, [%r3+4];
    ld.shared.b32 %r5, [%r3+8];
    st.global.b32 [%rd0], %r4;
    st.global.b32 [%rd0+4], %r5;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 64;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 256;
    END: ret;
    """
    for options in SCHEDULES:
        run = launch(body, threads=64, words=2, module_scope=WORDS, **options)
        assert run.words(2).tolist() == [0, 256] and run.result.counters.tmem_columns == 512


def test_the_most_columns_at_one_time_are_counted():
    take = (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], {}; bar.warp.sync -1; ld.shared.b32 {}, [%r3];"
    )
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};"
    body = "mov.b32 %r3, words;" + take.format(128, "%r4") + take.format(64, "%r5") + free.format("%r4", 128)
    body += take.format(32, "%r6") + free.format("%r5", 64) + free.format("%r6", 32) + "ret;"
    assert launch(body, module_scope=WORDS).result.counters.tmem_columns == 192


def test_an_allocation_that_nobody_makes_room_for_never_comes():
    again = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 512;"
    with pytest.raises(Deadlock, match="waits for 512 columns"):
        launch(f"mov.b32 %r3, words; {again} {again} ret;", module_scope=WORDS)


def test_who_gave_up_the_right_does_not_allocate_again():
    again = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;"
    assert fault(ALLOCATE + FREE + again + "ret;") == "tmem-alloc"


def test_tensor_memory_that_is_not_freed_is_reported_at_the_exit():
    assert fault(ALLOCATE + "ret;") == "exit"


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_sizes_that_cannot_be_allocated(columns):
    assert fault(ALLOCATE.replace("32;", f"{columns};", 1) + FREE + "ret;") == "tmem-alloc"


@pytest.mark.parametrize(
    "instruction",
    [
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r4}, [%r2];",
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0};",
        "tcgen05.wait::ld.sync.aligned;",
        "tcgen05.wait::st.sync.aligned;",
    ],
)
def test_part_of_a_warp_cannot_execute_what_the_whole_warp_must(instruction):
    body = ALLOCATE + f"setp.gt.u32 %p1, %r0, 3; @%p1 bra SKIP; {instruction} SKIP: bar.warp.sync -1;" + FREE + "ret;"
    assert fault(body) == "convergence"


def test_an_allocation_writes_to_its_own_shared_memory_only():
    body = "mov.b32 %r4, words; mapa.shared::cluster.u32 %r3, %r4, 1;"
    body += "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32; ret;"
    assert fault(body, grid=2, cluster=2) == "address"


# ---- pairs ----

PAIR = """
mov.u32 %r20, %cluster_ctarank;
mov.b32 %r3, words;
{before}
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3], 64;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3+{offset}], {columns};
bar.warp.sync -1;
ld.shared.b32 %r2, [%r3];
ld.shared.b32 %r4, [%r3+{offset}];
setp.ne.u32 %p1, %r0, 0;
mul.wide.u32 %rd3, %r20, 8; add.s64 %rd3, %rd0, %rd3;
@!%p1 st.global.v2.b32 [%rd3], {{%r2, %r4}};
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r4, 32;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r2, 64;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ret;
"""


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_both_ctas_of_each_pair_get_the_same_columns_whoever_comes_first(options, late):
    before = f"setp.ne.u32 %p1, %r20, {late}; @%p1 bra GO; nanosleep.u32 9; bar.sync 0; GO:"
    body = PAIR.format(before=before, offset=4, columns=32)
    run = launch(body, words=8, grid=4, cluster=4, module_scope=WORDS, **options)
    assert run.words(8).tolist() == [0, 64] * 4 and run.result.counters.tmem_columns == 96


@pytest.mark.parametrize(
    ("before", "second"),
    [
        ("shl.b32 %r23, %r20, 2; add.u32 %r23, %r23, %r3; add.u32 %r23, %r23, 4;", "[%r23], 32"),
        ("shr.u32 %r23, 64, %r20;", "[%r3+4], %r23"),
    ],
)
def test_ctas_of_a_pair_that_disagree_on_the_place_or_the_size(before, second):
    body = PAIR.format(before=before, offset=4, columns=32).replace("[%r3+4], 32", second)
    assert fault(body, words=8, grid=2, cluster=2) == "tmem-alloc"


def test_an_odd_cta_waits_for_ever_for_an_even_one_that_does_not_allocate():
    body = "mov.u32 %r20, %cluster_ctarank; mov.b32 %r3, words; setp.eq.u32 %p1, %r20, 0; @%p1 bra WAIT;"
    body += "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3], 64;"
    body += "WAIT: barrier.cluster.arrive; barrier.cluster.wait; ret;"
    with pytest.raises(Deadlock, match="that the even CTA of the pair allocates"):
        launch(body, grid=2, cluster=2, module_scope=WORDS)


@pytest.mark.parametrize("ctas", [1, 3])
def test_a_pair_needs_two_ctas(ctas):
    alone = "mov.u32 %r20, %cluster_ctarank; mov.b32 %r3, words; setp.ne.u32 %p1, %r20, {}; @%p1 bra END;"
    alone += "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3], 64; END: ret;"
    assert fault(alone.format(ctas - 1), grid=ctas, cluster=ctas) == "cluster"


# ---- bulk groups ----

STORES = """
mov.b32 %r3, words;
mul.lo.u32 %r4, %r0, 4; add.u32 %r4, %r4, %r3;
add.u32 %r5, %r0, 100;
st.shared.b32 [%r4], %r5;
add.u32 %r5, %r0, 200;
st.shared.b32 [%r4+128], %r5;
bar.warp.sync -1;
fence.proxy.async.shared::cta;
setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
mov.b32 %r10, 0;
mov.b32 %r11, 1;
mov.b32 %r12, 12;
add.u32 %r6, %r3, 128;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r10, %r10}], [%r3];
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r10, %r11}], [%r6];
cp.async.bulk.commit_group;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r12, %r10}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 1;
st.shared.b32 [%r6], 7;
cp.async.bulk.wait_group.read 0;
st.shared.b32 [%r3], 7;
cp.async.bulk.wait_group 0;
END: ret;
"""


@pytest.mark.parametrize("options", SCHEDULES)
def test_stores_of_several_groups_are_counted_and_waited_for(options):
    """Two rows of 16 words, and a third box that reaches 4 words into the tensor's last columns."""
    device = Device(**options)
    target = device.upload(np.zeros((2, 16), np.uint32))
    tmap = TensorMap.tiled(target, "u32", (2, 16), (1, 16))
    run = launch(STORES, module_scope=WORDS, parameters=["map map"], arguments=[tmap], device=device)
    expected = np.array([100 + np.arange(16), 200 + np.arange(16)])
    found = device.download(target, np.uint32, (2, 16))
    # The third box may overtake the first.
    assert (found[1] == expected[1]).all() and (found[0, :12] == expected[0, :12]).all()
    assert found[0, 12:].tolist() in ([112, 113, 114, 115], [100, 101, 102, 103])
    counters = run.result.counters
    assert (counters.tma_stores, counters.tma_loads) == (3, 0)
    assert (counters.tma_shared_bytes_read, counters.tma_global_bytes_written) == (3 * 64, 2 * 64 + 16)
    assert counters.max_stores_in_flight in (1, 2)
    if not options:
        assert counters.max_stores_in_flight == 2 and counters.instructions["tma"] == 8


def test_a_loop_may_go_back_to_the_first_instruction():
    text = """.version 8.8
    .target sm_100a
    .address_size 64
    .visible .entry kernel(.param .u64 out)
    {
    .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %d<8>;
    FIRST: ld.param.u64 %d0, [out];
    atom.global.add.u32 %r0, [%d0], 1;
    setp.lt.u32 %p1, %r0, 5; @%p1 bra FIRST;
    ret;
    }
    """
    for options in SCHEDULES:
        device = Device(**options)
        out = device.upload(np.zeros(1, np.uint32))
        device.launch(Module.from_text(text), grid=1, block=1, arguments=[out])
        assert device.download(out, np.uint32, 1)[0] == 6


def test_every_thread_has_bulk_groups_of_its_own():
    body = STORES.replace("@%p1 bra END;", "setp.gt.u32 %p1, %r0, 1; @%p1 bra END; shl.b32 %r3, %r0, 7;"
                                           "mov.b32 %r4, words; add.u32 %r3, %r3, %r4;")  # fmt: skip
    body = body.replace("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r10, %r11}], [%r6];", "")
    body = body.replace("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r12, %r10}], [%r3];", "")
    body = body.replace("[map, {%r10, %r10}]", "[map, {%r10, %r0}]").replace("st.shared.b32 [%r6], 7;", "")
    device = Device()
    target = device.upload(np.zeros((2, 16), np.uint32))
    tmap = TensorMap.tiled(target, "u32", (2, 16), (1, 16))
    run = launch(body, module_scope=WORDS, parameters=["map map"], arguments=[tmap], device=device)
    assert (device.download(target, np.uint32, (2, 16)) == [100 + np.arange(16), 200 + np.arange(16)]).all()
    assert run.result.counters.tma_stores == 2 and run.result.counters.max_stores_in_flight == 1
