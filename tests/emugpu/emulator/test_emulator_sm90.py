"""What else a Hopper GEMM needs of the machine: targets, setmaxnreg, polling, loads to shared::cta."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, run, source

from emugpu.emulator import Deadlock, Device, Fault, LaunchResult, Module, PtxSyntaxError, TensorMap
from emugpu.emulator.machine.register_pool import registers_at_entry

# ---- targets ----


@pytest.mark.parametrize(
    ("target", "instruction", "feature"),
    [
        (
            "sm_100a",
            "wgmma.fence.sync.aligned;",
            "wgmma does not exist on the module's target sm_100a; it needs sm_90a",
        ),
        ("sm_90", "wgmma.fence.sync.aligned;", "wgmma does not exist"),
        ("sm_90", "setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg does not exist"),
        ("sm_90a", "tcgen05.wait::ld.sync.aligned;", "tcgen05 does not exist on the module's target sm_90a"),
        ("sm_120a", "tcgen05.wait::ld.sync.aligned;", "tcgen05 does not exist"),
        ("sm_100", "tcgen05.wait::ld.sync.aligned;", "tcgen05 does not exist"),
        (
            "sm_90a",
            "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%r1], [%rd1, {%r2, %r3}], [%r4];",
            r"cp with \.cta_group::2 does not exist",
        ),
    ],
)
def test_a_target_without_the_instruction(target, instruction, feature):
    text = source(instruction).replace("sm_100a", target)
    line = 1 + text[: text.index(instruction)].count("\n")
    with pytest.raises(PtxSyntaxError, match=rf"PTX line {line}: (.|\n)*{feature}"):
        Module.from_text(text)


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("sm_90a", "wgmma.fence.sync.aligned;"),
        ("sm_90a", "setmaxnreg.dec.sync.aligned.u32 24;"),
        ("sm_100a", "setmaxnreg.dec.sync.aligned.u32 24;"),
        ("sm_100a, texmode_independent", "tcgen05.wait::ld.sync.aligned;"),
        ("sm_103a", "tcgen05.wait::ld.sync.aligned;"),
    ],
)
def test_a_target_with_the_instruction(target, instruction):
    assert Module.from_text(source(instruction).replace("sm_100a", target)).entries == ("kernel",)


# ---- setmaxnreg ----

LIMITS = ".maxntid 384, 1, 1\n.minnctapersm 1"


def set_registers(body: str, directives: str = LIMITS, threads: int = 384, **device) -> LaunchResult:
    """Run a body in which %r5 is the number of the warpgroup and %r6 that of the warp."""
    text = source("shr.u32 %r5, %r0, 7;\nshr.u32 %r6, %r0, 5;\n" + body, directives=directives)
    gpu = Device(**device)
    return gpu.launch(Module.from_text(text), grid=1, block=threads, arguments=[gpu.alloc(4)])


def at_entry(directives: str, body: str = "ret;") -> int | None:
    return registers_at_entry(Module.from_text(source(body, directives=directives)).find("kernel"))


@pytest.mark.parametrize(
    ("threads", "ctas", "registers"),
    [
        (128, 1, 256), (256, 2, 128), (320, 1, 168), (384, 1, 168), (384, 2, 80), (512, 1, 128), (640, 1, 96),
        (640, 2, 48),
    ],
)  # fmt: skip
def test_registers_at_entry_are_those_ptxas_gives(threads, ctas, registers):
    assert at_entry(f".maxntid {threads}, 1, 1 .minnctapersm {ctas}") == registers


@pytest.mark.parametrize(
    ("threads", "dec", "inc", "registers"),
    [(256, 24, 232, 232), (256, 24, 240, 240), (256, 152, 160, 160), (192, 24, 240, 240), (384, 24, 240, 168)],
)
def test_no_warp_starts_with_more_registers_than_are_asked_for(threads, dec, inc, registers):
    body = f"setmaxnreg.dec.sync.aligned.u32 {dec}; setmaxnreg.inc.sync.aligned.u32 {inc};"
    assert at_entry(f".maxntid {threads}, 1, 1 .minnctapersm 1", body) == registers


def test_registers_at_entry_by_directive_or_unknown():
    assert at_entry(".maxnreg 96 .maxntid 384, 1, 1") == 96
    assert at_entry(".maxntid 384, 1, 1") is None


PRODUCER_FIRST = """
setp.ne.u32 %p1, %r5, 0; @%p1 bra CONSUMER;
setmaxnreg.dec.sync.aligned.u32 {producer};
ret;
CONSUMER: setmaxnreg.inc.sync.aligned.u32 {consumer};
"""


@pytest.mark.parametrize("seed", range(4))
def test_consumers_take_what_the_producer_gives_back(seed):
    set_registers(PRODUCER_FIRST.format(producer=40, consumer=232), schedule="random", seed=seed)


def test_more_registers_than_the_pool_has_never_come():
    with pytest.raises(Deadlock, match=r"register pool of CTA rank 0(.|\n)*waits for 72 more registers per thread"):
        set_registers(PRODUCER_FIRST.format(producer=40, consumer=240))


def test_nothing_is_counted_where_the_registers_at_entry_are_open():
    set_registers(PRODUCER_FIRST.format(producer=40, consumer=240), directives="")


@pytest.mark.parametrize(("verb", "count", "rule"), [("dec", 200, "at most"), ("inc", 40, "at least")])
def test_setmaxnreg_in_the_wrong_direction(verb, count, rule):
    with pytest.raises(Fault, match=rf"setmaxnreg.{verb} to {count} registers; the warp has 168, it must be {rule}"):
        set_registers(f"setmaxnreg.inc.sync.aligned.u32 168; setmaxnreg.{verb}.sync.aligned.u32 {count};")


def test_setmaxnreg_differs_within_a_warpgroup():
    body = "setp.ne.u32 %p1, %r6, 2;\n@%p1 bra A;\nsetmaxnreg.dec.sync.aligned.u32 48;\nret;\n"
    [warned] = set_registers(body + "A:\nsetmaxnreg.dec.sync.aligned.u32 40;").warnings
    assert warned.rule == "registers-differ" and "registers, and another warp of the warpgroup to" in warned.message
    [warned] = set_registers("setp.eq.u32 %p1, %r6, 2;\n@%p1 ret;\nsetmaxnreg.dec.sync.aligned.u32 40;").warnings
    assert warned.rule == "registers-differ" and "exits although warp 2 executed 0 setmaxnreg" in warned.message


# ---- polling ----

POLL = """
.shared .align 8 .b64 barrier;
mov.b32 %r2, barrier;
mbarrier.init.shared.b64 [%r2], 1;
mov.b32 %r1, 0;
AGAIN: mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0; @%p1 bra DONE;
nanosleep.u32 100;
add.u32 %r1, %r1, 1;
{give_up}
bra AGAIN;
DONE:
"""


def test_a_polling_loop_may_give_up():
    body = POLL.format(give_up="setp.eq.u32 %p2, %r1, 300;\n@%p2 bra DONE;")
    assert run(body + STORE_R1, threads=1).tolist() == [300]


def test_a_polling_loop_that_goes_on_is_a_deadlock():
    with pytest.raises(Deadlock, match="polls for parity 0"):
        run(POLL.format(give_up=""), threads=1)


# ---- loads to shared::cta, named barriers ----


def test_a_load_into_shared_cta():
    body = """
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 barrier;
    mov.b32 %r2, tile;
    mov.b32 %r3, barrier;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra WAIT;
    mbarrier.init.shared.b64 [%r3], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256;
    mov.b64 %rd3, map; cvta.param.u64 %rd3, %rd3;
    mov.b32 %r4, 8;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd3, {%r4, %r4}], [%r3];
    WAIT: bar.sync 0;
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra AGAIN;
    shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r2;
    ld.shared.b32 %r1, [%r5];
    """
    text = source(body + STORE_R1).replace(".param .u64 out", ".param .u64 out, .param .align 64 .b8 map[128]")
    values = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32)
    device = Device()
    tensor, out = device.upload(values), device.alloc(256)
    tensor_map = TensorMap.tiled(tensor, "u16", (32, 32), (8, 16))
    device.launch(Module.from_text(text.replace("sm_100a", "sm_90a")), grid=1, block=64, arguments=[out, tensor_map])
    assert (device.download(out, np.uint16, (8, 16)) == values[8:16, 8:24]).all()


def test_two_warpgroups_hand_over_with_named_barriers():
    """Warpgroup 1 arrives at barrier 1 and waits at barrier 2; warpgroup 0 the other way round."""
    body = """
    .shared .align 4 .b32 word;
    mov.b32 %r2, word;
    setp.ge.u32 %p1, %r0, 128; @%p1 bra SECOND;
    mov.b32 %r3, 5; st.shared.b32 [%r2], %r3;
    bar.arrive 1, 256;
    bar.sync 2, 256;
    ld.shared.b32 %r1, [%r2];
    bra MET;
    SECOND: bar.sync 1, 256;
    ld.shared.b32 %r1, [%r2];
    bar.warp.sync -1;
    bar.sync 3, 128;
    mov.b32 %r3, 7; st.shared.b32 [%r2], %r3;
    bar.arrive 2, 256;
    MET:
    """
    for seed in range(4):
        out = run(body + STORE_R1, threads=256, schedule="random", seed=seed)
        assert (out == np.where(np.arange(256) < 128, 7, 5)).all()


# ---- stores ----


def test_vector_stores_with_an_offset():
    """The address of element n is base + offset + 4 n, on every lane."""
    body = """
    mul.wide.u32 %rd1, %r0, 32; add.u64 %rd1, %rd1, %rd0;
    add.u32 %r2, %r0, 100;
    add.u32 %r3, %r0, 200;
    st.global.v2.b32 [%rd1], {%r2, %r3};
    st.global.v4.b32 [%rd1+16], {%r3, %r2, %r3, %r0};
    st.global.v2.b32 [%rd1+8], {%r0, %r0};
    """
    lanes = np.arange(32)
    columns = [lanes + 100, lanes + 200, lanes, lanes, lanes + 200, lanes + 100, lanes + 200, lanes]
    assert (run(body, words=256).reshape(32, 8) == np.stack(columns, 1)).all()
