"""Run one instruction on arrays of operands, one element a thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emugpu.emulator import Device, Module

_WIDTH = {"h": 2, "r": 4, "f": 4, "d": 8, "e": 8}
"""Bytes of the registers, by their letter: %h0, %r0, %f0, %d0, %e0."""
_TYPES = {2: np.uint16, 4: np.uint32, 8: np.uint64}

SOURCE = """.version 8.8
.target {target}
.address_size 64
.visible .entry kernel(.param .u64 out{parameters}) {{
.reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .f64 %e<8>;
.reg .b64 %at<4>; .reg .b32 %id<4>;
mov.u32 %id0, %tid.x; mov.u32 %id1, %ctaid.x; mov.u32 %id2, %ntid.x; mad.lo.u32 %id0, %id1, %id2, %id0;
mov.u32 %id3, {reads};
{loads}
{body}
ld.param.u64 %at0, [out]; mad.wide.u32 %at0, %id0, {size}, %at0; st.global.b{bits} [%at0], %{result};
ret;
}}
"""


def evaluate(
    body: str,
    operands: Sequence[tuple[str, np.ndarray]],
    result: str,
    target: str = "sm_100a",
    reads: int | str = "%id0",
) -> np.ndarray:
    """Bits of register ``result`` of every thread after ``body``; operands: (register, its bits by thread).

    reads: the one thread whose operands all threads get, so that the registers hold scalars; by default each its own.
    """
    count = len(operands[0][1])
    assert count % 32 == 0
    loads = "".join(
        f"ld.param.u64 %at0, [in{n}]; mad.wide.u32 %at0, %id3, {_WIDTH[register[0]]}, %at0; "
        f"ld.global.b{8 * _WIDTH[register[0]]} %{register}, [%at0];\n"
        for n, (register, _) in enumerate(operands)
    )
    size = _WIDTH[result[0]]
    text = SOURCE.format(
        target=target,
        parameters="".join(f", .param .u64 in{n}" for n in range(len(operands))),
        loads=loads,
        body=body,
        size=size,
        bits=8 * size,
        result=result,
        reads=reads,
    )
    device = Device()
    sources = [device.upload(np.asarray(bits).astype(_TYPES[_WIDTH[register[0]]])) for register, bits in operands]
    out = device.alloc(size * count)
    threads = min(count, 1024)
    assert count % threads == 0
    device.launch(Module.from_text(text), grid=count // threads, block=threads, arguments=[out, *sources])
    return device.download(out, _TYPES[size], count)
