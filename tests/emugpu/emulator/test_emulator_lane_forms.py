"""Scalar instructions give the same whether the lanes agree, hold arrays, or one of them is alone."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_forms import FORMS

from emugpu.emulator import Device, Module

FAMILIES = ("integer", "half", "single and double", "single (sm_100a)", "conversions", "conversions (sm_100a)")
WIDTH = {"h": 16, "r": 32, "f": 32, "d": 64, "e": 64}
VALUES = {
    "h": (0x3C01, 0xC123, 0x3E00, 0x0007), "r": (0x3F9A3C01, 0xC0203E00, 3, 17),
    "f": (0x3F8CCCCD, 0xC0133333, 0x41200001, 5),
    "d": (0x3F8CCCCD_40133333, 0x3F800000_C0000001, 0x40000000_41000000, 2),
    "e": (0x3FF3333333333333, 0xC00123456789ABCD, 0x4010000000000001, 9),
}  # fmt: skip
"""Of %h1 to %h4, and so on: numbers of every format that is read from them."""

SOURCE = """.version 8.8
.target {target}
.address_size 64
.shared .align 16 .b8 buf[64];
.visible .entry kernel(.param .u64 out, .param .u64 in) {{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .f64 %e<8>; .reg .b128 %q<4>;
.reg .b64 %at<4>; .reg .b32 %id<4>; .reg .pred %only;
ld.param.u64 %at0, [out]; ld.param.u64 %at1, [in]; mov.u32 %id0, %tid.x;
mad.wide.u32 %at0, %id0, 8, %at0; mad.wide.u32 %at1, %id0, 8, %at1; setp.eq.u32 %only, %id0, 5;
{body}
ret;
}}
"""


def registers(load: bool, only: int = 0) -> str:
    """Set them from memory, which makes arrays of them, or by constants; only: the number of the one that is loaded."""
    lines = []
    for n, (letter, values) in enumerate(VALUES.items()):
        for k, value in enumerate(values, start=1):
            if load and only in (0, k):
                lines.append(f"ld.global.b{WIDTH[letter]} %{letter}{k}, [%at1+{256 * (4 * n + k - 1)}];")
            else:
                lines.append(f"mov.b{WIDTH[letter]} %{letter}{k}, {value};")
    lines += [f"setp.ne.u32 %p{n}, %r{1 + n % 2}, %r{1 + n // 2};" for n in range(1, 4)]
    return "\n".join(lines)


def result_of(form: str) -> str:
    """The register that a form writes."""
    found = re.search(r"%[hrdfepq]0", form)
    assert found is not None, form
    return found.group()[1:]


def save(register: str, slot: int) -> str:
    letter = register[0]
    if letter == "p":
        return f"selp.b64 %at2, 1, 0, %p0; st.global.b64 [%at0+{256 * slot}], %at2;"
    if letter == "q":
        return f"mov.b128 {{%at2, %at3}}, %q0; st.global.b64 [%at0+{256 * slot}], %at2;"
    return f"st.global.b{WIDTH[letter]} [%at0+{256 * slot}], %{register};"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_gives_the_same_for_scalars_and_arrays(family):
    targets, lines = FORMS[family]
    forms = [line for line in lines if re.search(r"%[hrdfep]0", line)]
    ways = [registers(True), registers(False), registers(True, 1), registers(True, 2), registers(True, 3)]
    body, count = "", len(forms)
    for way, setting in enumerate([*ways, "@!%only bra END;\n" + registers(load=True)]):
        body += "\n" + setting
        for n, form in enumerate(forms):
            body += f"\n{{ {form} {save(result_of(form), 6 * n + way)} }}"
    device = Device()
    out = device.upload(np.zeros((6 * count, 32), np.uint64))
    values = np.zeros((4 * len(VALUES), 32), np.uint64)
    values[:] = np.array([v for group in VALUES.values() for v in group], np.uint64)[:, None]
    text = SOURCE.format(target=targets[-1], body=body + "\nEND:")
    device.launch(Module.from_text(text), grid=1, block=32, arguments=[out, device.upload(values)])
    found = device.download(out, np.uint64, (count, 6, 32))
    different = [
        (form, [hex(int(v)) for v in f[:, 5]])
        for form, f in zip(forms, found, strict=True)
        if (f[:5] != f[0]).any() or f[5, 5] != f[0, 5]
    ]
    assert different == []
