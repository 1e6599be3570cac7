"""Bulk copies without tensor maps in every direction, reducing ones, st.async and red.async, gathered rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import WORDS, launch, source

from emugpu.check import Checker
from emugpu.emulator import Device, Fault, Module, TensorMap
from emugpu.emulator.machine import events
from emugpu.emulator.memory.tensor_map_bytes import encode

ROOM = ".shared .align 1024 .b8 words[8192]; .shared .align 8 .b64 full;"
DATA = np.random.default_rng(1).integers(0, 1 << 32, 256, dtype=np.int64).astype(np.uint32)
SCHEDULES = [{}, {"schedule": "random", "seed": 3}]

START = """
mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3], 1;
fence.mbarrier_init.release.cluster; bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %r4, %cluster_ctarank;
"""
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], {bytes};"
WAIT = "W: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r3], 0; @!%p2 bra W;"
STORE = """
mul.lo.u32 %r5, %r4, {bytes}; cvt.u64.u32 %rd5, %r5; add.s64 %rd6, %rd0, %rd5; mad.wide.u32 %rd6, %r0, 4, %rd6;
mad.lo.u32 %r6, %r0, 4, %r2; mov.b32 %r7, 0;
S: ld.shared.b32 %r8, [%r6]; st.global.b32 [%rd6], %r8; add.u32 %r6, %r6, 128; add.s64 %rd6, %rd6, 128;
add.u32 %r7, %r7, 128; setp.lt.u32 %p3, %r7, {bytes}; @%p3 bra S;
barrier.cluster.arrive; barrier.cluster.wait; ret;
"""
"""Each CTA stores its first words to its own part of `out`."""


def run(
    body: str, nbytes: int, *, ctas: int = 1, data: np.ndarray = DATA, initial: np.ndarray | None = None, **options
):
    device = Device(**{k: options.pop(k) for k in ("schedule", "seed") if k in options})
    text = START + "ld.param.u64 %rd2, [from];" + body
    launched = launch(text, grid=ctas, cluster=ctas, words=ctas * nbytes // 4, module_scope=ROOM, device=device,
                      parameters=["u64 from"], arguments=[device.upload(data)], initial=initial, **options)  # fmt: skip
    return launched.words(ctas * nbytes // 4 if initial is None else len(initial)).reshape(ctas, -1)


COMPLETE = "mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("options", SCHEDULES)
def test_from_global_to_shared_memory(options):
    body = EXPECT + f"@%p1 cp.async.bulk.shared::cluster.global.{COMPLETE} [%r2], [%rd2+16], 256, [%r3];" + WAIT + STORE
    assert run(body.replace("{bytes}", "256"), 256, **options)[0].tolist() == DATA[4:68].tolist()


@pytest.mark.parametrize("options", SCHEDULES)
def test_multicast_to_the_ctas_of_a_mask(options):
    """CTA 1 copies for 0 and 2; CTA 1 itself gets nothing."""
    body = """
    setp.eq.u32 %p4, %r4, 1; @%p4 bra COPY;
    EXPECT WAIT bra STORE;
    COPY: mov.b16 %rs1, 5;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
         [%r2], [%rd2], 128, [%r3], %rs1;
    st.shared.b32 [%r2], 9; mad.lo.u32 %r6, %r0, 4, %r2; st.shared.b32 [%r6], 9; bar.sync 0;
    STORE:
    """
    body = (body.replace("EXPECT", EXPECT).replace("WAIT", WAIT) + STORE).replace("{bytes}", "128")
    found = run(body, 128, ctas=3, **options)
    assert found[0].tolist() == found[2].tolist() == DATA[:32].tolist() and (found[1] == 9).all()


PEER = "xor.b32 %r10, %r4, 1; mapa.shared::cluster.u32 %r11, %r2, %r10; mapa.shared::cluster.u32 %r12, %r3, %r10;"


@pytest.mark.parametrize("options", SCHEDULES)
def test_from_one_cta_to_the_other(options):
    """Each CTA fills its upper words with its rank and the lane, and copies them to the other's first ones."""
    body = EXPECT + PEER + """
    mad.lo.u32 %r6, %r4, 1000, %r0; mad.lo.u32 %r7, %r0, 4, %r2; st.shared.b32 [%r7+4096], %r6;
    fence.proxy.async; bar.sync 0; add.u32 %r13, %r2, 4096;
    @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r11], [%r13], 128, [%r12];
    """ + WAIT + STORE  # fmt: skip
    found = run(body.replace("{bytes}", "128"), 128, ctas=2, **options)
    assert found.tolist() == [[1000 * (1 - rank) + lane for lane in range(32)] for rank in range(2)]


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize(
    ("operation", "kind", "dtype", "wanted"),
    [
        ("add", "u32", np.uint32, np.add), ("max", "s32", np.int32, np.maximum), ("min", "u32", np.uint32, np.minimum),
        ("xor", "b32", np.uint32, np.bitwise_xor),
    ],
)  # fmt: skip
def test_reducing_into_the_other_cta(operation, kind, dtype, wanted, options):
    body = EXPECT + PEER + f"""
    mad.lo.u32 %r7, %r0, 4, %r2; mad.wide.u32 %rd3, %r0, 4, %rd2; ld.global.b32 %r6, [%rd3]; st.shared.b32 [%r7], %r6;
    ld.global.b32 %r6, [%rd3+128]; st.shared.b32 [%r7+4096], %r6;
    fence.proxy.async; barrier.cluster.arrive; barrier.cluster.wait; add.u32 %r13, %r2, 4096;
    @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}.{kind}
    [%r11], [%r13], 128, [%r12];
    """ + WAIT + STORE  # fmt: skip
    found = run(body.replace("{bytes}", "128"), 128, ctas=2, **options)
    result = wanted(DATA[:32].view(dtype), DATA[32:64].view(dtype)).view(np.uint32)
    assert found.tolist() == [result.tolist()] * 2


@pytest.mark.parametrize("options", SCHEDULES)
def test_registers_to_the_other_cta(options):
    """st.async of two words a lane in one phase, red.async of one more in the next: both complete bytes over there."""
    body = EXPECT + PEER + """
    mad.lo.u32 %r11, %r0, 8, %r11; mad.lo.u32 %r6, %r4, 1000, %r0; mov.b32 %r7, 5;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r11], {%r6, %r7}, [%r12];
    """ + WAIT + """
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], 128;
    barrier.cluster.arrive; barrier.cluster.wait;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r11+4], %r0, [%r12];
    V: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r3], 1; @!%p2 bra V;
    """ + STORE  # fmt: skip
    found = run(body.replace("{bytes}", "256"), 256, ctas=2, **options)
    for rank in range(2):
        words = found[rank].reshape(32, 2)
        assert words[:, 0].tolist() == [1000 * (1 - rank) + lane for lane in range(32)]
        assert words[:, 1].tolist() == [5 + lane for lane in range(32)]


OWN = "mapa.shared::cluster.u32 %r11, %r2, %r4; mapa.shared::cluster.u32 %r12, %r3, %r4;"


def to_itself(instruction: str) -> str:
    """Each CTA sends a word per lane to itself."""
    send = f"mad.lo.u32 %r11, %r0, 4, %r11; {instruction} [%r11], %r0, [%r12];"
    return (EXPECT + OWN + send + WAIT + STORE).replace("{bytes}", "128")


@pytest.mark.parametrize("options", SCHEDULES)
def test_registers_to_the_cta_itself(options):
    """st.async in a cluster of two; PTX defines neither st.async in a cluster of one nor red.async to oneself."""
    store = f"st.async.shared::cluster.{COMPLETE}.b32"
    add = f"red.async.relaxed.cluster.shared::cluster.{COMPLETE}.add.u32"
    assert run(to_itself(store), 128, ctas=2, **options).tolist() == [list(range(32))] * 2
    with pytest.raises(Fault, match=r"st\.async in a cluster of 1 CTA .* arrive on the mbarrier instead"):
        run(to_itself(store), 128, **options)
    for ctas in (1, 2):
        with pytest.raises(Fault, match=r"red\.async into the CTA that executes it, rank \d, .* the mbarrier instead"):
            run(to_itself(add), 128, ctas=ctas, **options)


TO_GLOBAL = """
mad.lo.u32 %r7, %r0, 16, %r2; mad.wide.u32 %rd3, %r0, 16, %rd2;
ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd3]; st.shared.v4.b32 [%r7], {{%r20, %r21, %r22, %r23}};
fence.proxy.async; bar.sync 0;
@%p1 {instruction}
@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
ret;
"""


@pytest.mark.parametrize("options", SCHEDULES)
def test_from_shared_to_global_memory(options):
    body = TO_GLOBAL.format(instruction="cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 512;")
    assert run(body, 512, **options)[0].tolist() == DATA[:128].tolist()


def test_a_mask_chooses_bytes_of_every_sixteen():
    body = TO_GLOBAL.format(
        instruction="cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [%r2], 512, %rs1;"
    ).replace("fence", "mov.b16 %rs1, 0x8001; fence", 1)
    initial = np.full(128, 0x11111111)
    found = run(body, 512, initial=initial)[0].view(np.uint8).reshape(32, 16)
    wanted = np.full((32, 16), 0x11, np.uint8)
    wanted[:, [0, 15]] = DATA[:128].view(np.uint8).reshape(32, 16)[:, [0, 15]]
    assert found.tolist() == wanted.tolist()


REDUCED = [
    ("add.f32", np.float32, np.add), ("add.f64", np.float64, np.add), ("add.noftz.f16", np.float16, np.add),
    ("add.noftz.bf16", ml_dtypes.bfloat16, np.add), ("max.bf16", ml_dtypes.bfloat16, np.maximum),
    ("min.s64", np.int64, np.minimum), ("add.u64", np.uint64, np.add), ("or.b64", np.uint64, np.bitwise_or),
    ("inc.u32", np.uint32, lambda old, new: np.where(old >= new, 0, old + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "dtype", "wanted"), REDUCED)
def test_reducing_into_global_memory(form, dtype, wanted):
    """Integers that every type holds, so that nothing is rounded; overflow wraps around."""
    rng = np.random.default_rng(2)
    count = 512 // np.dtype(dtype).itemsize
    low = 0 if np.dtype(dtype).kind == "u" else -60
    old, new = (rng.integers(low, 60, count).astype(dtype) for _ in range(2))
    instruction = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%rd0], [%r2], 512;"
    found = run(TO_GLOBAL.format(instruction=instruction), 512, data=new.view(np.uint32), initial=old.view(np.uint32))[
        0
    ]
    assert found.view(dtype).tolist() == wanted(old, new).astype(dtype).tolist()


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 24;", "must be a multiple of 16"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2+8], 16;", "addresses must be multiples of 16"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd0+8], [%r2], 16;", "addresses must be multiples of 16"),
    ],
)
def test_sizes_and_addresses_are_multiples_of_sixteen(instruction, message):
    with pytest.raises(Fault, match=message):
        run(TO_GLOBAL.format(instruction=instruction), 512)


def test_what_is_told():
    seen: list = []
    reduce = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r2], 64;"
    body = TO_GLOBAL.format(instruction=reduce)
    run(body, 512, initial=np.ones(128), sinks=[seen.append])
    (store,) = {e.operation for e in seen if isinstance(e, events.Issued)}
    assert (
        store.kind == "bulk.store" and store.detail["group"] == (0, 0) and store.detail["reduction"] == ("add", "u32")
    )
    assert [type(r) for r in store.reads] == [events.SharedBytes, events.GlobalItems]
    seen.clear()
    body = EXPECT + f"@%p1 cp.async.bulk.shared::cluster.global.{COMPLETE} [%r2], [%rd2], 128, [%r3];" + WAIT + STORE
    run(body.replace("{bytes}", "128"), 128, sinks=[seen.append])
    (load,) = {e.operation for e in seen if isinstance(e, events.Issued)}
    (landed,) = [e for e in seen if isinstance(e, events.BytesLanded)]
    assert load.kind == "bulk.load" and landed.operation is load and landed.nbytes == 128
    assert load.detail["values"].view(np.uint32).tolist() == DATA[:32].tolist()


def test_a_bulk_store_of_zeros():
    body = """
    mad.lo.u32 %r7, %r0, 4, %r2; st.shared.b32 [%r7], 7; bar.sync 0; mov.b64 %rd3, 40;
    @%p1 st.bulk.weak.shared::cta [%r2+16], %rd3, 0; bar.sync 0;
    """
    assert run(body + STORE.replace("{bytes}", "128"), 128)[0].tolist() == [7] * 4 + [0] * 10 + [7] * 18


# ---- tensor maps that are reduced into, gathered from and scattered to ----

BOX = """
mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %r0, 0; mov.b32 %r5, {column}; mov.b32 %r6, {row};
@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0;
{body}
@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
ret;
"""
LOAD_BOX = """
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], 512;
@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2], [from, {{0, 0}}], [%r3];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;
"""


@pytest.mark.parametrize(
    ("operation", "element", "dtype", "wanted"),
    [("add", "f32", np.float32, np.add), ("max", "s32", np.int32, np.maximum),
     ("and", "u32", np.uint32, np.bitwise_and), ("add", "bf16", ml_dtypes.bfloat16, np.add)],
)  # fmt: skip
def test_a_box_is_reduced_into_a_tensor(operation, element, dtype, wanted):
    """The box hangs over the tensor's right edge and bottom."""
    rng = np.random.default_rng(3)
    width = 128 // np.dtype(dtype).itemsize
    low = 0 if element == "u32" else -50
    new, old = rng.integers(low, 50, (4, width)).astype(dtype), rng.integers(low, 50, (6, width)).astype(dtype)
    device = Device()
    column = width // 2
    maps = [TensorMap.tiled(device.upload(x), element, x.shape, (4, width), "128B") for x in (new, old)]
    form = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group"
    reduce = f"@%p1 {form} [to, {{%r5, %r6}}], [%r2];"
    body = BOX.format(body=LOAD_BOX.format() + reduce, column=column, row=4)
    launch(body, module_scope=ROOM, device=device, parameters=["map from", "map to"], arguments=maps)
    expected = old.copy()
    expected[4:, column:] = wanted(old[4:, column:], new[:2, :column])
    found = device.download(maps[1].address, dtype, old.shape)
    assert found.tolist() == expected.astype(dtype).tolist()


@pytest.mark.parametrize("options", SCHEDULES)
def test_rows_are_gathered_and_scattered(options):
    matrix = np.arange(16 * 64, dtype=np.uint32).reshape(16, 64)
    device = Device(**options)
    source_map = TensorMap.tiled(device.upload(matrix), "u32", matrix.shape, (1, 32), "128B")
    out = device.upload(np.zeros((16, 64), np.uint32))
    target_map = TensorMap.tiled(out, "u32", matrix.shape, (1, 32), "128B")
    body = """
    mov.b32 %r10, 32; mov.b32 %r11, 3; mov.b32 %r12, 15; mov.b32 %r13, 0; mov.b32 %r14, 99;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], 512;
    @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
         [%r2], [from, {%r10, %r11, %r12, %r13, %r14}], [%r3];
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;
    mov.b32 %r15, 7; mov.b32 %r16, 8; mov.b32 %r17, 2; mov.b32 %r10, 0;
    @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
         [to, {%r10, %r15, %r14, %r16, %r17}], [%r2];
    """
    launch(BOX.format(body=body, column=0, row=0), module_scope=ROOM, device=device, parameters=["map from", "map to"],
           arguments=[source_map, target_map])  # fmt: skip
    wanted = np.zeros((16, 64), np.uint32)
    # Rows 3, 15, 0 and one outside, which is zeros, go to rows 7, nowhere, 8 and 2.
    wanted[7, :32], wanted[8, :32] = matrix[3, 32:], matrix[0, 32:]
    assert device.download(out, np.uint32, (16, 64)).tolist() == wanted.tolist()


# ---- tensor maps as bytes ----

FROM_MEMORY = """.version 8.8
.target {target}
.address_size 64
.shared .align 1024 .b8 words[8192]; .shared .align 8 .b64 full; .shared .align 128 .b8 copy[128];
.visible .entry kernel(.param .u64 out, .param .align 64 .b8 both[320], .param .u64 pointer) {{
.reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<32>;
ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0;
ld.param.u64 %rd1, [pointer]; cvta.to.global.u64 %rd7, %rd1;
{body}
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], 512;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {{0, 1}}], [%r3];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;
mad.lo.u32 %r6, %r0, 16, %r2; mad.wide.u32 %rd6, %r0, 16, %rd0;
ld.shared.v4.b32 {{%r4, %r5, %r7, %r8}}, [%r6]; st.global.v4.b32 [%rd6], {{%r4, %r5, %r7, %r8}}; ret;
}}
"""
CHANGE = """
@%p1 bra CHANGE; bra CHANGED;
CHANGE: mov.b32 %r10, copy; mov.b64 %rd2, both; cvta.param.u64 %rd2, %rd2; mov.b32 %r11, 0;
L: ld.b64 %rd3, [%rd2+64]; st.shared.b64 [%r10], %rd3; add.s64 %rd2, %rd2, 8; add.u32 %r10, %r10, 8;
add.u32 %r11, %r11, 8; setp.lt.u32 %p3, %r11, 128; @%p3 bra L;
mov.b32 %r10, copy; ld.param.u64 %rd4, [both+256];
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r10], %rd4;
mov.b32 %r12, 2; tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r10], 1, %r12;
mov.b64 %rd5, 256; tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r10], 0, %rd5;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r10], 0;
CHANGED: bar.warp.sync -1; mov.b32 %r10, copy;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd7], [%r10], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd7], 128;
"""
MATRIX = np.arange(8 * 64, dtype=np.uint32).reshape(8, 64)


@pytest.mark.parametrize("where", ["struct", "pointer", "changed"])
def test_a_tensor_map_is_a_field_a_pointer_or_changed_by_the_kernel(where):
    device = Device()
    address = device.upload(MATRIX)
    tensor_map = TensorMap(address, "u32", (32, 8), (256,), (32, 4))
    device_copy = device.upload_tensor_map(tensor_map)
    struct = bytearray(320)
    struct[64:192] = encode(TensorMap(address, "u32", (32, 8), (512,), (32, 4), swizzle="128B"))
    struct[256:264] = (address + 128).to_bytes(8, "little")
    if where == "struct":
        struct[64:192] = encode(tensor_map)
    field = "mov.b64 %rd1, both; cvta.param.u64 %rd1, %rd1; add.s64 %rd1, %rd1, 64;"
    body = {"struct": field, "pointer": ""}.get(where, CHANGE)
    out, module = device.alloc(512), Module.from_text(FROM_MEMORY.format(body=body, target="sm_100a"))
    device.launch(module, grid=1, block=32, arguments=[out, bytes(struct), device_copy])
    wanted = MATRIX[1:5, :32]
    if where == "changed":
        # From the right half of the matrix, of which the map says that it has two rows.
        wanted = np.zeros((4, 32), np.uint32)
        wanted[0] = MATRIX[1, 32:]
    assert device.download(out, np.uint32, (4, 32)).tolist() == wanted.tolist()


def test_bytes_that_are_no_tensor_map():
    device = Device()
    out, pointer = device.alloc(512), device.upload(np.zeros(128, np.uint8))
    with pytest.raises(Fault, match="is not that of a tensor map"):
        device.launch(Module.from_text(FROM_MEMORY.format(body="", target="sm_90a")), grid=1, block=32,
                      arguments=[out, bytes(320), pointer])  # fmt: skip


def test_a_tensor_map_of_which_bytes_were_never_written_is_said_to_be_so():
    device = Device(uninitialised="poison")
    with pytest.raises(Fault, match=r"'pointer'.*never written") as error:
        device.launch(Module.from_text(FROM_MEMORY.format(body="", target="sm_90a")), grid=1, block=32,
                      arguments=[device.alloc(512), bytes(320), device.alloc(128, "pointer")])  # fmt: skip
    assert error.value.rule == "uninitialised"


STORES = {
    "tensor": "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd3, {%r6, %r7}], [%r5];",
    "bytes": "cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r5], 32;",
    "reduction": "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd3, {%r6, %r7}], [%r5];",
}


@pytest.mark.parametrize(("groups", "copies"), [(1, 1), (4, 4)])
@pytest.mark.parametrize("name", STORES)
def test_all_lanes_may_store_together(name, groups, copies):
    # CuTe DSL's epilogues do so: lanes with the same operands make one copy; a reduction is made by each lane.
    body = f"""
    mov.b64 %rd3, map; cvta.param.u64 %rd3, %rd3;
    mov.b32 %r3, words; shl.b32 %r4, %r0, 2; add.u32 %r4, %r3, %r4;
    st.shared.b32 [%r4], %r0; st.shared.b32 [%r4+128], %r0; st.shared.b32 [%r4+256], %r0; st.shared.b32 [%r4+384], %r0;
    fence.proxy.async.shared::cta; bar.warp.sync -1;
    rem.u32 %r7, %r0, {groups}; mov.b32 %r6, 0; mad.lo.u32 %r5, %r7, 128, %r3;
    mul.wide.u32 %rd5, %r7, 32; add.s64 %rd5, %rd0, %rd5;
    {STORES[name]}
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    ret;
    """
    device = Device()
    out = device.upload(np.zeros((4, 8), np.uint32), "out")
    box = TensorMap.tiled(out, "u32", (4, 8), (1, 8))
    checker = Checker()
    text = source(body, WORDS, parameters=["map map"])
    result = device.launch(Module.from_text(text), grid=1, block=32, arguments=[out, box], sinks=[checker])
    expected = np.zeros((4, 8), np.uint32)
    expected[:groups] = np.arange(8) * (32 // groups if name == "reduction" else 1)
    assert (device.download(out, np.uint32, (4, 8)) == expected).all()
    assert result.counters.tma_stores == (32 if name == "reduction" else copies)
    if name != "reduction":
        assert not checker.report().errors
