"""Kernels written by hand in PTX, and their launches."""

from __future__ import annotations

from pathlib import Path

HEAD = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry {name}(.param .u64 from, .param .u64 to) {directives}
{{
.shared .align 128 .b8 words[1024];
.shared .align 8 .b8 bars[16];
.reg .pred %p<8>;
.reg .b32 %r<32>;
.reg .b64 %rd<8>;
ld.param.u64 %rd1, [from];
ld.param.u64 %rd2, [to];
cvta.to.global.u64 %rd1, %rd1;
cvta.to.global.u64 %rd2, %rd2;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
setp.eq.u32 %p0, %r0, 0;
shl.b32 %r2, %r0, 2;
mov.u32 %r3, words;
add.u32 %r3, %r3, %r2;
mad.lo.u32 %r4, %r1, 64, %r0;
mul.wide.u32 %rd3, %r4, 4;
add.s64 %rd4, %rd1, %rd3;
add.s64 %rd5, %rd2, %rd3;
ld.global.b32 %r5, [%rd4];
{body}
ret;
}}
"""
CLUSTER_BARRIER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def wait(at: str, parity: str, number: int) -> str:
    """A loop until the phase of that parity is over."""
    return (
        f"AGAIN{number}:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [{at}], {parity};\n@!%p7 bra AGAIN{number};\n"
    )


def both(there: str) -> str:
    """The inits of two mbarriers of so many arrivals each, and a barrier behind them."""
    inits = "".join(f"@%p0 mbarrier.init.shared::cta.b64 [bars+{8 * n}], {there};\n" for n in (0, 1))
    return f"{inits}@%p0 fence.mbarrier_init.release.cluster;\n"


ADD_WORDS = """st.shared.b32 [%r3], %r5;
fence.proxy.async.shared::cta;
bar.sync 0;
@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd2], [%r6], 256;
@%p0 cp.async.bulk.commit_group;
@%p0 cp.async.bulk.wait_group.read 0;
"""
ADDS = f"mov.u32 %r6, words;\n{ADD_WORDS}bar.sync 0;\nadd.u32 %r5, %r5, 1;\n{ADD_WORDS}"
"""Both CTAs add their words, and then their words and 1, to the first 64 of the output."""

EXCHANGE = f"""{both("1")}@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
{CLUSTER_BARRIER}xor.b32 %r7, %r1, 1;
mapa.shared::cluster.u32 %r8, %r3, %r7;
mov.u32 %r9, bars;
mapa.shared::cluster.u32 %r10, %r9, %r7;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r5, [%r10];
{wait("bars", "0", 1)}ld.shared.b32 %r11, [%r3];
st.global.b32 [%rd5], %r11;
{CLUSTER_BARRIER}"""
"""Each CTA of a cluster of two sends its words to the other one by st.async."""

PING_PONG = f"""{both("32")}bar.sync 0;
mov.u32 %r12, 0;
setp.ge.u32 %p1, %r0, 32;
and.b32 %r13, %r0, 31;
shl.b32 %r13, %r13, 2;
mov.u32 %r14, words;
add.u32 %r14, %r14, %r13;
ROUND:
and.b32 %r15, %r12, 1;
@%p1 bra READS;
xor.b32 %r16, %r15, 1;
{wait("bars+8", "%r16", 1)}add.u32 %r17, %r5, %r12;
st.shared.b32 [%r14], %r17;
mbarrier.arrive.shared::cta.b64 _, [bars];
bra NEXT;
READS:
{wait("bars", "%r15", 2)}ld.shared.b32 %r18, [%r14];
add.u32 %r5, %r5, %r18;
mbarrier.arrive.shared::cta.b64 _, [bars+8];
NEXT:
add.u32 %r12, %r12, 1;
setp.lt.u32 %p2, %r12, 5;
@%p2 bra ROUND;
st.global.b32 [%rd5], %r5;"""
"""The first warp hands a word of each lane to the second one, five times, which adds them to its own."""

LOADS = f"""{both("1")}bar.sync 0;
mov.u32 %r6, words;
mul.wide.u32 %rd6, %r1, 256;
add.s64 %rd6, %rd6, %rd1;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 256;
@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd6], 256, [bars];
{wait("bars", "0", 1)}mov.u32 %r19, 252;
sub.u32 %r19, %r19, %r2;
add.u32 %r19, %r19, %r6;
ld.shared.b32 %r20, [%r19];
bar.sync 0;
st.shared.b32 [%r3], %r20;
bar.sync 0;
xor.b32 %r21, %r2, 128;
add.u32 %r21, %r21, %r6;
ld.shared.b32 %r22, [%r21];
st.global.b32 [%rd5], %r22;"""
"""Words that a bulk copy has brought are reversed, and then their halves swapped."""

ROWS = "reshape(x, (2, 64))"
KERNELS = {
    "adds": ("", ADDS, f"concatenate((2 * sum({ROWS}, axis=0) + 2, y[64:]))", "zeros"),
    "exchange": (".reqnctapercluster 2, 1, 1", EXCHANGE, "roll(x, 64)", "uninitialised"),
    "ping_pong": (
        "", PING_PONG,
        f"reshape(concatenate(({ROWS}[:, :32], {ROWS}[:, 32:] + 5 * {ROWS}[:, :32] + 10), axis=1), 128)",
        "uninitialised",
    ),
    "loads": ("", LOADS, f"reshape(roll(flip({ROWS}, 1), 32, axis=1), 128)", "uninitialised"),
}  # fmt: skip


def write(folder: Path) -> None:
    """Writes PTX and a launch file for each kernel, for sm_90a and sm_100a."""
    for name, (directives, body, expected, init) in KERNELS.items():
        for arch in ("90a", "100a"):
            path = folder / f"ptx-{name}-sm_{arch}"
            text = HEAD.format(name=name, directives=directives, body=body)
            path.with_suffix(".ptx").write_text(text.replace("sm_90a", f"sm_{arch}"), encoding="utf-8")
            launch = f"""ptx = "{path.name}.ptx"
launch.grid = 2
launch.block = 64
launch.arguments = ["x", "y"]
expect.y = "{expected}"
buffers.x = {{ dtype = "u32", shape = 128, init = "index" }}
buffers.y = {{ dtype = "u32", shape = 128, init = "{init}" }}
"""
            path.with_suffix(".toml").write_text(launch, encoding="utf-8")
