"""Tensor maps that a kernel makes itself: from zeros, field by field, of which only the first 64 bytes are written."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, source

from emugpu.emulator import Device, Fault, Module

FIELDS = {
    "global_address": "%rd2", "rank": "1", "box_dim": ("8", "4"), "global_dim": ("16", "8"), "global_stride": ("64",),
    "element_stride": ("1", "1"), "elemtype": "2", "interleave_layout": "0", "swizzle_mode": "0", "fill_mode": "0",
}  # fmt: skip
"""A map of 8 rows of 16 u32, with boxes of 4 rows of 8: the rank less one, sizes as they are, strides in bytes."""


def made(fields: dict, from_bytes: int = 64) -> str:
    """The lanes write zeros, lane 0 gives every field, the warp copies the map to global memory, lane 0 loads with it;
    every lane stores what it finds of the box.
    """
    lines = []
    for field, values in fields.items():
        width = "b64" if field in ("global_address", "global_stride") else "b32"
        ordinals = values if isinstance(values, tuple) else (values,)
        for n, value in enumerate(ordinals):
            ordinal = f"{n}, " if isinstance(values, tuple) else ""
            lines.append(f"@%p0 tensormap.replace.tile.{field}.shared::cta.b1024.{width} [%r3], {ordinal}{value};")
    return source(
        f"""
        ld.param.u64 %rd2, [data]; ld.param.u64 %rd3, [map];
        mov.b32 %r3, words; setp.eq.u32 %p0, %r0, 0;
        shl.b32 %r4, %r0, 2; add.u32 %r5, %r3, %r4; mov.b32 %r6, 0;
        setp.lt.u32 %p1, %r4, {from_bytes};
        @%p1 st.shared.b32 [%r5], %r6;
        bar.warp.sync -1;
        {"".join(lines)}
        bar.warp.sync -1;
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd3], [%r3], 128;
        fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;
        add.u32 %r7, %r3, 1024; add.u32 %r8, %r3, 2048;
        @!%p0 bra LOADED;
        mbarrier.init.shared::cta.b64 [%r8], 1;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 128;
        mov.b32 %r9, 8; mov.b32 %r10, 3;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
            [%r7], [%rd3, {{%r9, %r10}}], [%r8];
        LOADED: bar.warp.sync -1;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra WAIT;
        add.u32 %r5, %r7, %r4; ld.shared.b32 %r1, [%r5];
        """
        + STORE_R1
        + "ret;",
        WORDS,
        parameters=("u64 data", "u64 map"),
        target="sm_90a",
    )


def load(fields: dict, **options) -> np.ndarray:
    device = Device()
    out = device.alloc(128, "out")
    data = device.upload(np.arange(128, dtype=np.uint32).reshape(8, 16), "data")
    made_at = device.alloc(128, "map")
    device.launch(Module.from_text(made(fields, **options)), grid=1, block=32, arguments=[out, data, made_at])
    return device.download(out, np.uint32, (4, 8))


@pytest.mark.parametrize("written", [64, 128])
def test_every_field_of_a_map_that_begins_as_zeros(written):
    rows, columns = np.mgrid[3:7, 8:16]
    assert (load(FIELDS, from_bytes=written) == 16 * rows + columns).all()


def test_a_map_of_which_a_byte_that_is_read_was_never_written():
    with pytest.raises(Fault, match="never written"):
        load(FIELDS, from_bytes=60)


def test_a_map_that_is_none_yet_is_found_where_it_is_used():
    with pytest.raises(Fault, match=r"cp\.async\.bulk\.tensor(.|\n)*(rank|coordinates|stride)"):
        load({name: value for name, value in FIELDS.items() if name != "rank"})
