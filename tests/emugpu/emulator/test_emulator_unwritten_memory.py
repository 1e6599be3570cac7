"""Memory that is read before it is written: an error, or bytes that the launch chooses and a finding in any case."""

from __future__ import annotations

import numpy as np
import pytest
from native_engine import library
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch

from emugpu.check import Checker
from emugpu.emulator import Device, Fault, TensorMap

GLOBAL = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; ld.global.b32 %r1, [%rd1]; add.s64 %rd0, %rd0, 128;"
SHARED = "mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; ld.shared.b32 %r1, [%r4];"
LOCAL = ".local .align 4 .b8 frame[16]; mov.b32 %r3, frame; ld.local.b32 %r1, [%r3+4];"
TENSOR = ALLOCATE + (
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2+3]; tcgen05.wait::ld.sync.aligned;" + FREE
)  # fmt: skip
MATRIX = (
    "mov.b32 %r3, words; and.b32 %r4, %r0, 7; mad.lo.u32 %r4, %r4, 16, %r3;"
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r4];"
)
READS = {"global": GLOBAL, "shared": SHARED, "local": LOCAL, "tensor memory": TENSOR, "ldmatrix": MATRIX}
PLACES = {
    "global": "ld.global.b32", "shared": "ld.shared.b32", "local": "ld.local.b32",
    "tensor memory": "tcgen05.ld", "ldmatrix": "ldmatrix",
}  # fmt: skip
reads = pytest.mark.parametrize("space", READS)


def read(space: str, mode: str, seed: int = 0, **options):
    body = READS[space] + STORE_R1 + "ret;"
    return launch(body, words=64, module_scope=WORDS, device=Device(seed=seed, uninitialised=mode), **options)


def words(run, space: str) -> np.ndarray:
    """What the lanes have read. Of the global memory that was read itself, too, the words behind are those stored."""
    return run.device.download(run.out + (128 if space == "global" else 0), np.uint32, 32)


@reads
def test_by_default_it_is_an_error(space):
    with pytest.raises(Fault) as error:
        launch(READS[space] + STORE_R1 + "ret;", words=64, module_scope=WORDS)
    assert error.value.rule == "uninitialised"


@reads
@pytest.mark.parametrize(("mode", "value"), [("report", 0xFFFFFFFF), ("zero", 0)])
def test_it_is_a_value_and_one_finding_with_its_place(space, mode, value):
    run = read(space, mode)
    assert (words(run, space) == value).all()
    (finding,) = run.result.warnings
    assert finding.rule == "uninitialised" and finding.count >= 1 and "never written" in finding.message
    assert PLACES[space] in finding.message and finding.line > 0


@reads
def test_a_strict_launch_goes_on_too(space):
    """The option says what happens, strictness does not: the finding is shown in any case."""
    assert [w.rule for w in read(space, "zero", strict=True).result.warnings] == ["uninitialised"]


@reads
def test_random_bytes_follow_from_the_seed(space):
    first, again, other = (words(read(space, "random", seed), space) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_was_read_once_stays():
    """As on a GPU, where nobody wrote in between: the second read gives the same random bytes, and is no finding."""
    twice = SHARED + "ld.shared.b32 %r5, [%r4]; xor.b32 %r1, %r1, %r5;" + STORE_R1 + "ret;"
    run = launch(twice, module_scope=WORDS, device=Device(uninitialised="random"))
    assert not run.words(32).any() and len(run.result.warnings) == 1


def test_one_instruction_that_meets_two_kinds_of_unwritten_memory_has_two_findings():
    """Of each the first place, and how often: here an A, which nobody has written, and D, to which it is added."""
    body = (
        "mov.b32 %r3, words; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd2, %r4; or.b64 %rd2, %rd2, 0x401000080000;"
        + ALLOCATE
        + "mov.b32 %r5, 0x4020490; setp.ne.u32 %p1, 1, 0; elect.sync %r6|%p2, -1; add.u32 %r7, %r3, 2048;"
        "@%p2 mbarrier.init.shared.b64 [%r7], 1; bar.warp.sync -1;"
        "@%p2 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd2, %rd2, %r5, %p1;"
        "@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r7];"
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r7], 0; @!%p5 bra WAIT;" + FREE + "ret;"
    )
    run = launch(body, module_scope=WORDS, device=Device(uninitialised="report"))
    shared, tensor = run.result.warnings
    assert "shared memory byte" in shared.message and "adds to D at tensor memory lane 0" in tensor.message


def test_written_bytes_of_a_word_are_kept():
    body = (
        "mov.b32 %r3, words; mov.b32 %r4, 0x1234; st.shared.b16 [%r3+2], %r4; ld.shared.b32 %r1, [%r3];"
        + STORE_R1 + "ret;"
    )  # fmt: skip
    run = launch(body.replace("%r4; ld", "%rs1; ld").replace("mov.b32 %r4, 0x1234", "mov.b16 %rs1, 0x1234"),
                 module_scope=WORDS, device=Device(uninitialised="report"))  # fmt: skip
    assert (run.words(32) == 0x1234FFFF).all()


LOAD_BOX = """
mov.b32 %r3, words; mov.b32 %r4, 0; add.u32 %r5, %r3, 1024; mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r5], 1;
mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r5], 128;
cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd2, {%r4}], [%r5];
READY: bar.warp.sync -1;
WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r5], 0; @!%p5 bra WAIT;
mad.lo.u32 %r4, %r0, 4, %r3; ld.shared.b32 %r1, [%r4];
"""


def test_a_tensor_copy_of_unwritten_bytes_names_the_copy():
    """The copy is carried out later: the finding is at the instruction that issued it."""
    device = Device(uninitialised="report")
    source = device.alloc(128)
    tensor_map = TensorMap(source, "u32", (32,), (), (32,))
    run = launch(LOAD_BOX + STORE_R1 + "ret;", module_scope=WORDS, device=device, parameters=["map map"],
                 arguments=[tensor_map])  # fmt: skip
    assert (run.words(32) == 0xFFFFFFFF).all()
    (finding,) = run.result.warnings
    assert "cp.async.bulk.tensor.1d" in finding.message and "(byte 0 of " in finding.message


def test_host_reads_of_unwritten_memory_are_errors_still():
    device = Device(uninitialised="zero")
    launch("ret;", device=device)
    with pytest.raises(Fault, match="never written"):
        device.download(device.alloc(16), np.uint32, 4)


def test_a_fault_that_follows_keeps_the_finding():
    """Such a value as an address."""
    with pytest.raises(Fault) as error:
        read_pointer = SHARED + "cvt.u64.u32 %rd3, %r1; ld.global.b32 %r1, [%rd3]; ret;"
        launch(read_pointer, module_scope=WORDS, device=Device(uninitialised="report"))
    assert error.value.rule in ("address", "alignment")
    assert [w.rule for w in error.value.warnings] == ["uninitialised"]


def test_modes_are_checked():
    with pytest.raises(ValueError, match="uninitialised 'poisoned': must be poison, fault, report, zero, random"):
        launch("ret;", device=Device(uninitialised="poisoned"))


def test_a_word_that_nobody_wrote_is_told_with_its_lane():
    """Of a warp that reads words in a row."""
    store = f"{SHARED.split('ld.')[0]} setp.ne.u32 %p1, %r0, 21; @%p1 st.shared.b32 [%r4], %r0; bar.warp.sync -1;"
    with pytest.raises(Fault, match=r"(?s)was never written.*lane 21"):
        launch(f"{store} ld.shared.b32 %r1, [%r4]; ret;", module_scope=WORDS)


OWN = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; "
DISCARD = "setp.eq.u32 %p1, %r0, 0; @%p1 discard{space}.L2 [%rd0{line}], 128; "


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("body", "stops", "races"),
    [
        (OWN + DISCARD + "bar.sync 0; st.global.b32 [%rd1], 7; ld.global.b32 %r1, [%rd1];", False, False),
        (OWN + DISCARD + "bar.sync 0; ld.global.b32 %r1, [%rd1]; add.u32 %r1, %r1, 1;", True, False),
        (OWN + DISCARD + "bar.sync 0; ld.global.b32 %r1, [%rd1+256]; st.global.b32 [%rd1], %r1;", False, False),
        (OWN + "bar.sync 0; st.global.b32 [%rd1], 7; " + DISCARD + "bar.sync 0;", False, True),
    ],
)
def test_discarded_bytes_are_undefined_until_they_are_written(body, stops, races, native):
    """PTX ISA, discard: a weak write of values that may differ at each read."""
    for space in (".global", ""):
        text = body.format(space=space, line="+128" if races else "") + "ret;"
        checker = Checker()
        device = Device(library=library() if native else None)
        options = dict(threads=64, initial=np.zeros(128), device=device, sinks=[checker])
        if stops:
            with pytest.raises(Fault, match=r"is undefined: PTX line .* discards it there"):
                launch(text, **options)
        else:
            launch(text, **options)
        assert bool(checker.report().errors) == races


@pytest.mark.parametrize("where", ["%rd0+64", "%rd0+4096"])
def test_a_discard_needs_a_line_of_memory(where):
    with pytest.raises(Fault, match=r"must be 128 at a multiple of 128|outside every allocation"):
        launch(f"discard.global.L2 [{where}], 128; ret;", initial=np.zeros(64))
