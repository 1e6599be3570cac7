"""Sessions: programs with a fault, and the commands that find its cause, going backwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_faults import Alteration, substitute
from kernel_runs import problem

from emugpu.debug import debug
from emugpu.debug.commands import Commands
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.spec import Launchable, WarpRole
from harness.compile.config import make_config

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"
MOST_COMMANDS = 8


def session(what: Launchable, commands: Sequence[str], options: EmulationOptions | None = None) -> list[str]:
    """What the commands say, all together."""
    assert len(commands) <= MOST_COMMANDS
    with debug(what, options) as debugger:
        prompt = Commands(debugger)
        return [line for command in commands for line in prompt.do(command)]


@pytest.mark.slow
def test_a_fused_epilogue_is_said_and_its_sum_followed(builder):
    """Each half of a pair of columns, and what is read beside the sum."""
    names = ("residual", "swiglu")
    configs = [
        make_config("kernel8", cta_group=1, cluster=(1, 1), mma_shape=(64, 32), stages=2, epilogue=name)
        for name in names
    ]
    for name, artifact in zip(names, builder("epilogues to debug", configs), strict=True):
        lines = session(problem(artifact, (64, 32, 128), "integer")[1], ["continue", "why C[2,3]"])
        assert said(lines, "C[2,3] is ", "which is right") and said(
            lines, "these products add up to ", "is made of this sum and is right"
        )
        assert said(lines, "tcgen05.ld of lane 2, column ") and said(lines, "step 2: A[2,64:128]")
        assert lines[-1] == "each of the 128 places along K is multiplied once, with the right partner"
        if name == "residual":
            assert said(lines, "ld.global", "of residual[2,3] goes into it, too")
        else:
            assert said(lines, "1 other sum may go into it, too")


def altered(what: Launchable, alter: Alteration) -> Launchable:
    return replace(what, text_given=alter(what.text))


def said(lines: Sequence[str], *parts: str) -> bool:
    """Whether a line has all these parts."""
    return any(all(part in line for part in parts) for line in lines)


# ---- kernels of ours ----


def test_the_wrong_slice_of_k_inside_of_a_stage(series):
    """The last MMA of a stage takes A from where the third one did."""
    _, what = problem(series["kernel6"], (256, 256, 128), "index")
    alter = substitute(r"(or\.b64\s+%rd\d+, %rd\d+, )6;", r"\g<1>4;")
    lines = session(altered(what, alter), ["continue", "back wrong", "back wrong", "why C[3,17]"])
    assert said(lines, "wrong from here on")
    assert said(lines, "A[3,0:48] from A stage 0 of CTA 0", "B[17,0:64] from B stage 0 of CTA 0")
    assert said(lines, "step 1 is the first that is wrong: K = 32 of A meets K = 48 of B")


def test_the_right_kernel_has_a_chain_of_right_steps(series):
    """K = 320 in five stages; the box of the second CTA of a pair has the second half of B."""
    _, what = problem(series["kernel7"], (256, 256, 320), "integer")
    lines = session(what, ["continue", "why C[131,200]"])
    assert said(lines, "C[131,200] is", "which is right")
    assert said(lines, "step 5: A[131,256:320] from A stage 4 of CTA 1", "B[200,256:320] from B stage 4 of CTA 1")
    assert said(lines, "each of the 320 places along K is multiplied once")
    order = [part for line in lines for part in ("tma.store", "stmatrix", "tcgen05.ld", "tcgen05.mma") if part in line]
    assert order == ["tma.store", "stmatrix", "tcgen05.ld", "tcgen05.mma"]
    with debug(what) as debugger:
        debugger.run()
        for place in ("0,0", "255,255", "17,64", "130,129", "64,7"):
            assert "with the right partner" in debugger.chain(f"C[{place}]").verdict, place


def test_a_missing_fence_is_gone_back_to(series):
    _, what = problem(series["kernel7"], (256, 256, 128), "index")
    alter = substitute(r"fence\.proxy\.async[^;]*;", "", count=0)
    lines = session(altered(what, alter), ["continue", "findings", "back finding"])
    assert said(lines, "error proxy-write-read: C tile")
    assert said(lines, "stmatrix") and said(lines, "no proxy fence lies on the path")
    assert said(lines, "tma.store of the box at C[", "reads its operands")


def test_a_wait_for_a_full_stage_that_is_left_out(series):
    """The MMA of the pair reads what has landed in CTA 0 alone, and the barrier still awaits the bytes."""
    _, what = problem(series["kernel6"], (256, 256, 128), "index")
    waits = list(re.finditer(r"mbarrier\.try_wait\.parity\.shared::cta\.b64 (%p\d+), [^;]*;", what.text))
    (full,) = [wait for wait in waits if "tcgen05.mma" in what.text[wait.end() : wait.end() + 1500]][-1:]
    text = f"{what.text[: full.start()]}setp.eq.u32 {full.group(1)}, 0, 0;{what.text[full.end() :]}"
    left_out = replace(what, text_given=text)
    assert said(session(left_out, ["continue", "why C[0,128]"]), "B stage 0 of CTA 1 was not written by then")
    commands = ["continue", "barriers", "show A stage 0 bf16 2x8 cta 1"]
    lines = session(left_out, commands, EmulationOptions(uninitialised="fault"))
    assert said(lines, "which was never written") or said(lines, "is read but was never written")
    assert said(lines, "full[0] of CTA 0: phase 0, pending: ", " bytes")
    assert [line.split() for line in lines[-2:]] == [["."] * 8] * 2


def test_a_multicast_mask_that_names_a_cta_too_few(artifacts):
    _, what = problem(artifacts[2, 2], (512, 512, 128), "index")
    alter = substitute(r"(cp\.async\.bulk\.tensor[^;]*\], )(%rs\d+);", r"{ .reg .b16 m; and.b16 m, \2, 0x7; \1m; }")
    lines = session(altered(what, alter), ["continue", "why-waits"])
    assert said(lines, "deadlock")
    assert said(lines, "full[0] of CTA 2: phase 0, pending: 16,384 bytes")
    assert said(lines, "tma.load of the box at A[", "goes to CTA", "not here")


@pytest.mark.parametrize("kernel", ["kernel5", "kernel8"])
def test_the_chain_of_a_wgmma_kernel(common, kernel):
    """kernel 8 is persistent: what was multiplied for the tile before is no part of it."""
    _, what = problem(common[make_config(kernel, arch="sm_90a")], (512, 512, 192), "integer")
    lines = session(what, ["continue", "why C[300,411]"])
    assert said(lines, "C[300,411] is", "which is right")
    assert said(lines, "12 wgmma.mma_async into registers of warp")
    assert said(lines, "A[300,128:192] from A stage", "B[411,128:192] from B stage")
    assert said(lines, "each of the 192 places along K is multiplied once")


# ---- other compilers' ----


def test_a_triton_kernel_that_loads_a_slice_of_b_twice():
    what = read_launch_file(LAUNCHES / "triton_tma_matmul_sm100.toml")
    alter = substitute(r"\{%r31, %r131\}", "{%r13, %r131}")
    lines = session(altered(what, alter), ["continue", "back wrong", "why C[0,7]", "back event 475"])
    assert said(lines, "step 3: A[0,128:192]", "B[7,64:128]")
    assert said(lines, "step 3 is the first that is wrong: K = 128 of A meets K = 64 of B")
    assert said(lines, "filled by tma.load of the box at B[0,64] (PTX line 167)")


def test_a_cute_kernel_whose_descriptor_does_not_move_on():
    what = read_launch_file(LAUNCHES / "cute_gemm_bf16_sm100.toml")
    alter = substitute(r"add\.s32 (\s*)%r105, %r21, 4;", "add.s32 %r105, %r21, 2;")
    lines = session(altered(what, alter), ["continue wrong", "back wrong", "continue end", "why C[67,33]"])
    assert said(lines, "C[67,33] is", "and must be")
    assert said(lines, "step 1 is the first that is wrong: K = 16 of A meets K = 32 of B")
    assert said(lines, "st.global.v8.b32 by warp 2 of CTA 0, lane 3") and said(
        lines, "tcgen05.ld of lane 67, column 33"
    )


def test_a_scale_factor_that_is_used_twice():
    """The second MMA of a stage takes the scale factors of A from where the first one did."""
    what = read_launch_file(LAUNCHES / "cute_scaled_nvfp4_sm100.toml")
    right = session(what, ["continue", "why C[163,47]"])
    assert said(right, "step 2: A[163,256:512]", "scaled by scale_a[1,4:8,52:56] and scale_b[0,4:8,244:248]")
    assert right[-1] == "each of the 1,024 places along K is multiplied once, with the right partner"
    operands = session(what, ["continue tcgen05.mma", "continue tcgen05.mma", "operands"])
    assert said(operands, "scale factors of B: 4 of ue4m3 a row, from byte 0 of tensor memory lane 0, column 148")
    alter = substitute(r"\[%r17\], \[%r18\]", "[%r10], [%r18]")
    lines = session(altered(what, alter), ["continue wrong", "continue end", "why C[163,47]"])
    assert said(lines, "C[163,47] is", "and must be")
    assert said(lines, "step 1 is the first that is wrong: scale factor scale_a[1,0,52] is of K = 0, not of K = 64")
    # Where it is not known how they lie, each is used once.
    flat = {**what.buffers, "scale_a": replace(what.buffers["scale_a"], shape=(2 * 16 * 512,))}
    lines = session(altered(replace(what, buffers=flat), alter), ["continue", "why C[163,47]"])
    assert said(lines, "step 1 is the first that is wrong: scale factor scale_a[8244] is used again, after step 1")


def test_a_scale_factor_that_nobody_has_copied():
    what = read_launch_file(LAUNCHES / "cute_scaled_nvfp4_sm100.toml")
    copies = substitute(r"tcgen05\.cp\S*\s*\[%r18\], %rd31;", "")
    lines = session(altered(what, copies), ["continue", "why C[163,47]"])
    assert said(lines, "step 1 is the first that is wrong: the scale factor in lane 47, column")


KERNEL9 = make_config("kernel9", cluster=(2, 1))
ONE_CTA = make_config("kernel9", dtype="mxfp8", cta_group=1, cluster=(1, 2), mma_shape=(128, 256), out_dtype="f32")
FACTOR = r"(tcgen05\.mma[^;]*?, )\[(%r\d+)\](, \[%r\d+\], %p\d+;)"
"""The address of scale factors of A in an MMA."""


@pytest.fixture
def scaled(builder):
    return dict(zip((KERNEL9, ONE_CTA), builder("kernel9 to debug", [KERNEL9, ONE_CTA]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "alter", "index", "wrong"),
    [
        # The words of rows 32 to 63 lie a column further than those of rows 0 to 31 of the same 128.
        (
            KERNEL9,
            substitute(FACTOR, r"{ .reg .b32 s; add.u32 s, \2, 1; \1[s]\3 }", count=0),
            (131, 200),
            "step 1 is the first that is wrong: scale factor A scales[1,0,52] is of row 163 of A, not of row 131",
        ),
        # Each atom holds four blocks along K, and the next but one is the first of the next stage's.
        (
            KERNEL9,
            substitute(FACTOR, r"{ .reg .b32 s; xor.b32 s, \2, 8; \1[s]\3 }", count=0),
            (3, 17),
            "step 1 is the first that is wrong: scale factor A scales[0,2,48] is of K = 128, not of K = 0",
        ),
        (
            ONE_CTA,
            substitute(
                r"(tcgen05\.mma[^;]*?, )(%r\d+)(, \[%r\d+\], \[%r\d+\], %p\d+;)",
                r"{ .reg .b32 d; and.b32 d, \2, 0x9fffffcf; \1d\3 }",
                count=0,
            ),
            (3, 17),
            "step 1 is the first that is wrong: scale factor A scales[0,0,48] is of K = 0, not of K = 32",
        ),
    ],
    ids=["another row", "another atom", "the first byte of each word"],
)
def test_scale_factors_of_another_place(scaled, config, alter, index, wrong):
    row, column = index
    _, what = problem(scaled[config], (512, 512, 512), "index")
    right = session(what, ["continue", f"why C[{row},{column}]"])
    assert right[-1] == "each of the 512 places along K is multiplied once, with the right partner"
    lines = session(altered(what, alter), ["continue", f"why C[{row},{column}]"])
    assert said(lines, f"C[{row},{column}] is", "and must be")
    assert lines[-1] == wrong


@pytest.mark.slow
def test_scale_factors_are_followed_to_their_place(scaled):
    """As cuBLASLt has them: row r and block b of 128 rows x 4 blocks in byte 16 * (r % 32) + 4 * (r // 32) + b."""
    for config, artifact in scaled.items():
        _, what = problem(artifact, (512, 512, 512), "integer")
        with debug(what) as debugger:
            debugger.run()
            for place in ((0, 0), (300, 411), (511, 200), (97, 130)):
                chain = debugger.chain(f"C[{place[0]},{place[1]}]")
                for which, rank in enumerate(place):
                    found = [index for step in chain.steps for _, index in step.factors[which]]
                    blocks = 512 // (16 if config is KERNEL9 else 32)
                    r = rank % 128
                    byte = 16 * (r % 32) + 4 * (r // 32)
                    assert found == [(rank // 128, b // 4, byte + b % 4) for b in range(blocks)], (config, place)


RIGHT = ("triton_tma_matmul_sm90", "triton_tma_matmul_sm100", "cute_gemm_f16_pairs_sm100", "cute_gemm_fp8_sm100",
         "cute_scaled_nvfp4_sm100", "cute_persistent_f16_sm90", "nvcc_wgmma_gemm")  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_foreign_kernels_have_chains_of_right_steps(name):
    """Elements whose places in registers, words and chunks differ; every multiplication is of their row and column."""
    with debug(read_launch_file(LAUNCHES / f"{name}.toml")) as debugger:
        debugger.run()
        columns = debugger.recording.placed["C"].shape[1]
        for row, column in ((0, 0), (67, 33), (2, 6), (9, columns - 1), (100, 1), (63, 44)):
            chain = debugger.chain(f"C[{row},{column}]")
            assert "is multiplied once, with the right partner" in chain.verdict, (row, column, chain.verdict)
            for step in chain.steps:
                assert {index[0] for _, index in filter(None, step.a)} == {row}
                assert {index[0] for _, index in filter(None, step.b)} == {column}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton_matmul_bf16_sm90", "triton_matmul_fp8_sm100", "triton_softmax_sm100"])
def test_what_threads_carry_through_registers_is_no_fault(name):
    what = read_launch_file(LAUNCHES / f"{name}.toml")
    with debug(what) as debugger:
        debugger.run()
        buffer = what.expectations[0].buffer
        rows, columns = debugger.recording.placed[buffer].shape
        for row, column in ((0, 0), (2, 33), (67, 33), (100, 1)):
            chain = debugger.chain(f"{buffer}[{min(row, rows - 1)},{min(column, columns - 1)}]")
            assert chain.links and not chain.wrong_at, chain.verdict


# ---- small programs ----

PROGRAM = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry program(.param .u64 out)
{
.shared .align 16 .b32 words[64];
.shared .align 8 .b64 full;
.shared .align 8 .b64 empty;
.reg .pred %p<8>;
.reg .b32 %r<32>;
.reg .b64 %rd<8>;
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd0, %rd0, %rd1;
setp.eq.u32 %p0, %r0, 0;
setp.lt.u32 %p1, %r0, 32;
mov.b32 %r1, full;
mov.b32 %r2, empty;
BODY
ret;
}
"""
INITIALISE = """
@%p0 mbarrier.init.shared.b64 [%r1], 1;
@%p0 mbarrier.init.shared.b64 [%r2], 1;
bar.sync 0;
"""


def program(folder: Path, body: str, threads: int = 64, expect: str = "") -> Launchable:
    (folder / "program.ptx").write_text(PROGRAM.replace("BODY", body), encoding="utf-8")
    text = f"""ptx = "program.ptx"
{f"expect.C = {expect!r}" if expect else ""}
[launch]
grid = 1
block = {threads}
arguments = ["C"]
[buffers]
C = {{ dtype = "u32", shape = [{threads}], init = "uninitialised" }}
A = {{ dtype = "u32", shape = [{threads}], init = "index" }}
"""
    (folder / "program.toml").write_text(text, encoding="utf-8")
    return read_launch_file(folder / "program.toml")


def wait(barrier: str, parity: int, label: str) -> str:
    return f"{label}: mbarrier.try_wait.parity.shared.b64 %p2, [{barrier}], {parity}; @!%p2 bra {label};"


def test_a_watch_leaves_out_what_is_written_again(tmp_path):
    stores = "".join(f"@%p0 st.shared.b32 [words], {value};" for value in (7, 7, 8))
    lines = session(program(tmp_path, stores, 32), ["watch shared 0x400 u32", "continue", "continue", "continue"])
    assert said(lines, "2 times in this run")
    assert said(lines, "shared 0x400 u32: 7") and said(lines, "shared 0x400 u32: 7 -> 8")


def test_two_roles_that_wait_for_each_other(tmp_path):
    """The producer waits twice before it fills the stage again, the consumer hands it back but once."""
    arrive = "@%p3 mbarrier.arrive.shared.b64 _,"
    body = f"""{INITIALISE}
    and.b32 %r3, %r0, 31;
    setp.eq.u32 %p3, %r3, 0;
    @%p1 bra PRODUCER;
    {wait("%r1", 0, "W0")}
    {arrive} [%r2];
    {wait("%r1", 1, "W1")}
    {arrive} [%r2];
    bra.uni DONE;
    PRODUCER:
    {arrive} [%r1];
    {wait("%r2", 0, "W2")}
    {wait("%r2", 1, "W3")}
    {arrive} [%r1];
    DONE:"""
    what = replace(program(tmp_path, body), roles=(WarpRole("producer", (0,)), WarpRole("consumer", (1,))))
    lines = session(what, ["continue", "why-waits", "back 0x508 phase 0", "why-waits", "back 0x500", "warps"])
    assert said(lines, "deadlock in kernel")
    assert said(
        lines, "in a circle: warp 0 (producer) of CTA 0, which waits for warp 1 (consumer) of CTA 0, which waits"
    )
    assert said(lines, "misses the arrival by mbarrier.arrive of warp 0 (producer) of CTA 0 lane 0", "as in phase 0")
    assert said(lines, "phase 0 of mbarrier at shared 0x508 of CTA 0 completes")
    assert said(lines, "phase 0 of mbarrier at shared 0x500 of CTA 0 completes")


@pytest.mark.parametrize("does", ["nothing", "one load"])
def test_why_waits_names_the_producer_that_is_silent_first(tmp_path, does):
    """Each CTA sends a part of a box to all four of its cluster; that of CTA 3 leaves, at once or after one load."""
    load = """
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r4], [%rd0], 16, [full], %h0;
    """
    text = f""".version 8.7
.target sm_90a
.address_size 64
.visible .entry parts(.param .u64 source) .explicitcluster .reqnctapercluster 4, 1, 1
{{
.shared .align 128 .b8 box[64];
.shared .align 8 .b64 full;
.reg .pred %p<4>; .reg .b16 %h0; .reg .b32 %r<8>; .reg .b64 %rd0;
mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank;
mov.b16 %h0, 15; mov.b32 %r3, box; shl.b32 %r4, %r1, 4; add.u32 %r4, %r3, %r4;
ld.param.u64 %rd0, [source];
setp.ne.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r1, 3; setp.ge.u32 %p2, %r0, 32;
@!%p0 mbarrier.init.shared::cta.b64 [full], 1;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@%p2 bra WAITS;
@%p0 bra END;
{"@%p1 bra END;" if does == "nothing" else ""}
{load}
{wait("full", 0, "W0") if does == "one load" else ""}
{"@%p1 bra END;" if does == "one load" else ""}
{load if does == "one load" else ""}
bra END;
WAITS:
{wait("full", 0, "W1")}
{wait("full", 1, "W2") if does == "one load" else ""}
END: ret;
}}
"""
    (tmp_path / "parts.ptx").write_text(text)
    (tmp_path / "parts.toml").write_text(
        'ptx = "parts.ptx"\nlaunch = { grid = 4, block = 64, arguments = ["source"] }\n'
        'buffers.source = { dtype = "u32", shape = 64, init = "index" }\n'
    )
    with debug(read_launch_file(tmp_path / "parts.toml")) as debugger:
        prompt = Commands(debugger)
        prompt.do("continue")
        first = prompt.do("why-waits")[0]
    assert first == "warp 0 of CTA 3 is missing: 4 waits need it, and it has left the kernel"


def test_a_phase_that_has_been_missed(tmp_path):
    body = f"""{INITIALISE}
    @%p0 mbarrier.arrive.shared.b64 _, [%r1];
    @%p0 mbarrier.arrive.shared.b64 _, [%r1];
    bar.sync 0;
    {wait("%r1", 0, "W0")}"""
    lines = session(program(tmp_path, body), ["continue", "why-waits", "back 0x500", "back 0x500"])
    assert said(lines, "phase 1 ended without it: the last whose end it has seen is none")
    assert said(lines, "phase 1 of mbarrier at shared 0x500") and said(lines, "phase 0 of mbarrier at shared 0x500")


def test_poison_that_reaches_c(tmp_path):
    """Thread 30 leaves its word out; the sum of what nobody has written is poison in C, too."""
    body = """
    shl.b32 %r3, %r0, 2;
    mov.b32 %r4, words;
    add.u32 %r4, %r4, %r3;
    setp.ne.u32 %p2, %r0, 30;
    @%p2 st.shared.b32 [%r4], %r0;
    bar.sync 0;
    ld.shared.b32 %r5, [%r4];
    add.u32 %r5, %r5, 0;
    st.global.b32 [%rd0], %r5;"""
    lines = session(
        program(tmp_path, body, 32, "A"),
        ["continue", "why C[30]", "show C[28] 1x4", "back wrong", "back shared 0x478", "back start"],
    )
    assert said(lines, "C[30] is poison, and must be 30")
    assert said(lines, "st.global.b32 by warp 0 of CTA 0, lane 30")
    assert said(lines, "ld.shared.b32 of shared memory at 0x478 of CTA 0 by warp 0 of CTA 0, lane 30")
    assert said(lines, "was not written by then: it is poison")
    assert said(lines, "28 29  . 31")
    assert said(lines, "shared 0x478: there is none in this run")


def test_a_box_that_is_overwritten_before_its_store_has_read_it(tmp_path):
    """Nobody waits for the stores: the reason is neither the value that lies there nor a missing barrier."""
    text = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry slices(.param .u64 out)
{
.shared .align 128 .b8 box[128];
.reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<3>;
mov.u32 %r0, %tid.x;
setp.eq.u32 %p, %r0, 0;
mov.b32 %r1, box;
mad.lo.u32 %r2, %r0, 4, %r1;
ld.param.u64 %rd0, [out];
"""
    for number in range(3):
        text += f"""add.u32 %r3, %r0, {100 * number};
st.shared.u32 [%r2], %r3;
fence.proxy.async.shared::cta;
bar.sync 0;
@%p cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 128;
@%p cp.async.bulk.commit_group;
bar.sync 0;
add.s64 %rd0, %rd0, 128;
"""
    text += "@%p cp.async.bulk.wait_group 0;\nret;\n}\n"
    (tmp_path / "slices.ptx").write_text(text)
    (tmp_path / "slices.toml").write_text(
        'ptx = "slices.ptx"\nlaunch = { grid = 1, block = 32, arguments = ["out"] }\n[buffers]\n'
        'out = { dtype = "u32", shape = [3, 32], init = 0 }\n[expect]\n'
        'out = "reshape(100 * arange(3), (3, 1)) + arange(32)"\n'
    )
    what = read_launch_file(tmp_path / "slices.toml")
    line = next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith("st.shared"))
    seen = 0
    for seed in range(8):
        with debug(what, EmulationOptions(schedule="random", seed=seed)) as debugger:
            debugger.run()
            assert {finding.rule for _, finding in debugger.recording.findings} == {"store-source-reused"}
            _, wrong = debugger.recording.differences["out"]
            for row in (0, 1):
                chain = debugger.chain(f"out[{row},5]")
                overwritten = "the box was overwritten between issue and read: the bulk.store issued at event "
                assert chain.verdict.startswith(overwritten) == wrong[row, 5], (seed, row, chain.verdict)
                if wrong[row, 5]:
                    assert "no cp.async.bulk.wait_group.read came between" in chain.verdict
                    got = int(debugger.recording.contents["out"][0][row, 5])
                    assert f"st.shared.u32 of warp 0 of CTA 0, PTX line {line + 8 * (got // 100)}, " in chain.verdict
                    seen += 1
    assert seen > 3
