"""The memory semantics and the scope that the event of an instruction has."""

from __future__ import annotations

import pytest
from ptx_programs import WORDS, source

from emugpu.emulator import Module

SEMANTICS = {
    "ld.shared.b32 %r1, [%r3];": ("weak", ""),
    "ld.acquire.gpu.global.b32 %r1, [%rd0];": ("acquire", "gpu"),
    "ld.relaxed.cluster.shared::cluster.b32 %r1, [%r3];": ("relaxed", "cluster"),
    "st.shared.b32 [%r3], %r1;": ("weak", ""),
    "st.release.cta.shared::cta.b32 [%r3], %r1;": ("release", "cta"),
    "st.volatile.global.b32 [%rd0], %r1;": ("volatile", ""),
    "atom.global.add.u32 %r1, [%rd0], 1;": ("relaxed", "gpu"),
    "atom.acq_rel.sys.global.add.u32 %r1, [%rd0], 1;": ("acq_rel", "sys"),
    "atom.acquire.global.add.u32 %r1, [%rd0], 1;": ("acquire", "gpu"),
    "red.shared::cluster.add.u32 [%r3], 1;": ("relaxed", "gpu"),
    "red.release.cluster.global.add.u32 [%rd0], 1;": ("release", "cluster"),
    "mbarrier.arrive.shared::cta.b64 %rd4, [%r3];": ("release", "cta"),
    "mbarrier.arrive.shared::cluster.b64 _, [%r3];": ("release", "cta"),
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];": ("release", "cluster"),
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r3];": ("relaxed", "cluster"),
    "mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r3], 16;": ("release", "cta"),
    "mbarrier.arrive_drop.shared.b64 %rd4, [%r3];": ("release", "cta"),
    "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r3], 16;": ("relaxed", "cluster"),
    "mbarrier.complete_tx.shared.b64 [%r3], 16;": ("relaxed", "cta"),
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;": ("acquire", "cta"),
    "mbarrier.test_wait.shared.b64 %p1, [%r3], %rd4;": ("acquire", "cta"),
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r3], 0;": ("acquire", "cluster"),
    "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [%r3], 0;": ("relaxed", "cluster"),
    "barrier.cluster.arrive;": ("release", "cluster"),
    "barrier.cluster.arrive.relaxed.aligned;": ("relaxed", "cluster"),
    "barrier.cluster.wait.aligned;": ("acquire", "cluster"),
    "barrier.cluster.wait.acquire;": ("acquire", "cluster"),
    "fence.sc.gpu;": ("sc", "gpu"),
    "fence.acq_rel.cluster;": ("acq_rel", "cluster"),
    "fence.cta;": ("acq_rel", "cta"),
    "fence.mbarrier_init.release.cluster;": ("release", "cluster"),
    "fence.proxy.async;": ("", ""),
    "membar.cta;": ("sc", "cta"),
    "membar.gl;": ("sc", "gpu"),
    "membar.sys;": ("sc", "sys"),
}


@pytest.mark.parametrize(("text", "expected"), SEMANTICS.items(), ids=SEMANTICS)
def test_an_instruction_has_the_semantics_and_scope_that_ptx_gives_it(text, expected):
    module = Module.from_text(source(f"mov.b32 %r3, words; {text} ret;", WORDS))
    site = next(s for s in module.code(None).sites if s.text.rstrip(";") == text.rstrip(";"))
    assert (site.semantics, site.scope) == expected
