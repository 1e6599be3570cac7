"""How a kernel is cut into basic blocks, where they lead, where their lanes meet again, and which registers live."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, run, source

from emugpu.check import Checker
from emugpu.emulator import Device, Module
from emugpu.emulator.translate import cfg

EXIT = -1
FIRST = 2
"""Instructions before the body."""


def blocks(body: str) -> list[tuple[int, int, list[int], int]]:
    """(first, last, successors, join) of each block; instructions are counted from the body's first."""
    kernel = Module.from_text(source(body))._parsed.kernels["kernel"]
    built, starting_at = cfg.build(kernel)
    assert [b.index for b in built] == list(range(len(built)))
    assert all(built[index].first == first for first, index in starting_at.items())
    return [(b.first - FIRST, b.last - FIRST, b.successors, b.join) for b in built]


def test_a_straight_line_is_one_block():
    assert blocks("add.u32 %r1, %r0, 1; ret;") == [(-2, 2, [EXIT], EXIT)]


def test_the_end_of_the_text_is_an_exit():
    assert blocks("add.u32 %r1, %r0, 1;") == [(-2, 1, [EXIT], EXIT)]


@pytest.mark.parametrize("body", ["", "END:", "// nothing but a comment"])
@pytest.mark.parametrize("sinks", [(), (Checker(),)], ids=["run", "checked"])
def test_the_threads_of_a_kernel_without_an_instruction_leave_at_once(body, sinks):
    text = f".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry nothing()\n{{\n{body}\n}}"
    result = Device().launch(Module.from_text(text), grid=2, block=64, sinks=sinks)
    assert result.counters.instructions == {"branch": 4} and not result.warnings
    assert all(not sink.report().findings for sink in sinks)


def test_the_two_sides_of_an_if_meet_behind_it():
    body = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 bra YES;
    add.u32 %r1, %r0, 1;
    bra.uni JOIN;
    YES: add.u32 %r1, %r0, 2;
    JOIN: mov.b32 %r2, %r1;
    ret;
    """
    assert blocks(body) == [(-2, 2, [2, 1], 3), (2, 4, [3], 3), (4, 5, [3], 3), (5, 7, [EXIT], EXIT)]


def test_lanes_that_leave_a_loop_meet_behind_it():
    body = """
    LOOP: add.u32 %r1, %r0, 1;
    setp.eq.u32 %p1, %r1, 5;
    @%p1 bra END;
    setp.eq.u32 %p2, %r1, 7;
    @%p2 bra LOOP;
    bra LOOP;
    END: ret;
    """
    assert blocks(body) == [(-2, 0, [1], 1), (0, 3, [4, 2], 4), (3, 5, [1, 3], 1), (5, 6, [1], 1), (6, 7, [EXIT], EXIT)]


def test_sides_that_return_by_themselves_meet_nowhere():
    body = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 bra YES;
    ret;
    YES: @%p1 exit;
    trap;
    """
    assert blocks(body) == [(-2, 2, [2, 1], EXIT), (2, 3, [EXIT], EXIT), (3, 4, [EXIT, 3], EXIT), (4, 5, [EXIT], EXIT)]


def test_a_branch_table_names_each_target_once():
    body = """
    T: .branchtargets A, B, A;
    brx.idx %r0, T;
    A: mov.b32 %r1, 1;
    bra END;
    B: mov.b32 %r1, 2;
    END: ret;
    """
    assert blocks(body) == [(-2, 1, [1, 2], 3), (1, 3, [3], 3), (3, 4, [3], 3), (4, 5, [EXIT], EXIT)]


def test_an_instruction_that_may_suspend_begins_a_block():
    assert blocks("add.u32 %r1, %r0, 1; bar.sync 0; bar.sync 1; ret;") == [
        (-2, 1, [1], 1),
        (1, 2, [2], 2),
        (2, 4, [EXIT], EXIT),
    ]


def test_a_guard_of_such_an_instruction_goes_around_it():
    body = "setp.eq.u32 %p1, %r0, 0; @%p1 barrier.sync 0; add.u32 %r1, %r0, 1; ret;"
    assert blocks(body) == [(-2, 1, [1], 1), (1, 1, [2, 3], 3), (1, 2, [3], 3), (2, 4, [EXIT], EXIT)]


def test_what_settles_and_what_others_may_see_ends_a_block():
    for instruction in (
        "tcgen05.wait::ld.sync.aligned;",
        "st.release.gpu.global.b32 [%rd0], %r1;",
        "ld.volatile.b32 %r1, [%rd0];",
        "atom.global.add.u32 %r1, [%rd0], 1;",
        "red.add.u32 [%rd0], 1;",
    ):
        assert blocks(f"mov.b32 %r1, 1; {instruction} ret;") == [(-2, 2, [1], 1), (2, 3, [EXIT], EXIT)], instruction


def test_accesses_that_only_this_cluster_sees_do_not():
    for instruction in (
        "tcgen05.wait::st.sync.aligned;",
        "st.global.b32 [%rd0], %r1;",
        "ld.weak.b32 %r1, [%rd0];",
        "st.release.cta.shared.b32 [%r1], %r1;",
        "atom.shared::cluster.add.u32 %r1, [%r1], 1;",
    ):
        assert blocks(f"mov.b32 %r1, 1; {instruction} ret;") == [(-2, 3, [EXIT], EXIT)], instruction


def live(body: str) -> list[tuple[set[str], set[str]]]:
    """Names of the registers that live at the start and at the end of each block."""
    kernel = Module.from_text(source(body))._parsed.kernels["kernel"]
    names = {r.slot: r.name for i in kernel.instructions for o in i.operands for r in o.registers()}
    names |= {i.guard.slot: i.guard.name for i in kernel.instructions if i.guard}
    built, _ = cfg.build(kernel)
    return [({names[s] for s in b.live_in}, {names[s] for s in b.live_out}) for b in built]


def test_registers_live_from_where_they_are_written_to_their_last_use():
    body = """
    mov.b32 %r1, 1;
    mov.b32 %r3, 3;
    setp.eq.u32 %p1, %r0, 0;
    LOOP: add.u32 %r2, %r1, %r3;
    mov.b32 %r1, %r2;
    @%p1 bra LOOP;
    st.global.b32 [%rd0], %r2;
    ret;
    """
    loop = {"%r1", "%r3", "%p1", "%rd0"}
    assert live(body) == [(set(), loop), (loop, loop | {"%r2"}), ({"%r2", "%rd0"}, set())]


def test_a_guarded_write_keeps_the_old_value_alive():
    body = "setp.eq.u32 %p1, %r0, 0; bar.sync 0; @%p1 mov.b32 %r1, 5; st.global.b32 [%rd0], %r1; ret;"
    assert live(body)[1][0] == {"%p1", "%r1", "%rd0"}
    assert live(body.replace("@%p1 ", ""))[1][0] == {"%rd0"}


def test_the_results_of_a_guarded_instruction_come_from_the_values_before_it():
    body = f"""
    setp.lt.u32 %p1, %r0, 20; setp.lt.u32 %p2, %r0, 32;
    @%p1 setp.eq.and.u32 %p1|%p2, %r0, 5, %p1;
    selp.b32 %r1, 1, 0, %p2; {STORE_R1} ret;
    """
    assert run(body).tolist() == [int(lane != 5) for lane in range(32)]


def test_the_guard_of_a_block_that_is_skipped_lives():
    body = "setp.eq.u32 %p1, %r0, 0; bar.sync 1; @%p1 bar.sync 0; ret;"
    assert [sorted(at) for at, _ in live(body)] == [[], ["%p1"], ["%p1"], ["%p1"], []]


def test_lanes_that_took_different_ways_through_three_branches_meet_again():
    """Every lane counts, in base 3, which way it went."""
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r5, 0;
    mov.b32 %r6, %r0;
    AGAIN:
    rem.u32 %r7, %r6, 3;
    div.u32 %r6, %r6, 3;
    T: .branchtargets A, B, C;
    mul.lo.u32 %r1, %r1, 3;
    brx.idx %r7, T;
    A: bra.uni MEET;
    B: add.u32 %r1, %r1, 1; bra.uni MEET;
    C: add.u32 %r1, %r1, 2;
    MEET:
    vote.sync.ballot.b32 %r8, 1, -1;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, 4;
    @%p1 bra AGAIN;
    """
    lanes = np.arange(32)
    expected = lanes % 3 * 27 + lanes // 3 % 3 * 9 + lanes // 9 % 3 * 3 + lanes // 27
    for seed in range(3):
        assert (run(body + STORE_R1 + "ret;", schedule="random", seed=seed) == expected).all()
