"""Fences and prefetches: every form the PTX ISA has is accepted, any other is refused (PTX ISA 9.7.13.4, 9.7.9.17)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import launch

from emugpu.emulator import Device, EmulatorError, Fault, PtxSyntaxError, TensorMap

FENCES = [
    *(f"fence.{sem}.{scope};" for sem in ("acq_rel", "sc") for scope in ("cta", "cluster", "gpu", "sys")),
    *(f"fence.{sem}.{scope};" for sem in ("acquire", "release") for scope in ("cta", "cluster", "gpu", "sys")),
    *(f"fence.{scope};" for scope in ("cta", "cluster", "gpu", "sys")),
    "fence.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.release.sync_restrict::shared::cta.cluster;",
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.alias;",
    "fence.proxy.async;",
    "fence.proxy.async.global;",
    "fence.proxy.async.shared::cta;",
    "fence.proxy.async.shared::cluster;",
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    *(f"fence.proxy.tensormap::generic.release.{scope};" for scope in ("cta", "cluster", "gpu", "sys")),
    *(f"fence.proxy.tensormap::generic.acquire.{scope} [%rd4], 128;" for scope in ("cta", "cluster", "gpu", "sys")),
    "membar.cta;",
    "membar.gl;",
    "membar.sys;",
    "membar.proxy.alias;",
]

PREFETCHES = [
    "prefetch.global.L1 [%rd0];", "prefetch.global.L2 [%rd0];", "prefetch.global.L2::evict_last [%rd0];",
    "prefetch.global.L2::evict_normal [%rd0];", "prefetch.L1 [%rd0];", "prefetch.L2 [%rd0];",
    "prefetch.tensormap [%rd4];", "prefetch.param.tensormap [map];", "prefetch.param.tensormap [%rd5];",
    "prefetchu.L1 [%rd0];",
]  # fmt: skip

NO_FENCES = [
    "fence.nonsense;",
    "fence;",
    "fence.proxy;",
    "fence.proxy.nonsense;",
    "fence.proxy.async.nonsense;",
    "fence.proxy.async.local;",
    "fence.proxy.async.shared;",
    "fence.acq_rel;",
    "fence.acq_rel.warp;",
    "fence.acq_rel.gl;",
    "fence.acq_rel.cta.cluster;",
    "fence.relaxed.cta;",
    "fence.mbarrier_init.release.cta;",
    "fence.mbarrier_init.acquire.cluster;",
    "fence.mbarrier_init.cluster;",
    "fence.proxy.tensormap::generic.cta;",
    "fence.proxy.tensormap::generic.acquire.gpu;",
    "fence.acquire.sync_restrict::shared::cta.cluster;",
    "fence.release.sync_restrict::shared::cluster.cluster;",
    "membar;",
    "membar.cluster;",
    "membar.gpu;",
    "membar.nonsense;",
    "membar.proxy.async;",
]

NO_PREFETCHES = [
    "prefetch.nonsense.L2 [%rd0];", "prefetch.global.L3 [%rd0];", "prefetch.global [%rd0];",
    "prefetch.shared.L1 [%r3];", "prefetch.param.L1 [map];", "prefetch.tensormap.L2 [%rd4];", "prefetchu.L2 [%rd0];",
    "prefetchu.global.L1 [%rd0];",
]  # fmt: skip


def hint(instruction: str) -> None:
    device = Device()
    tile = TensorMap.tiled(device.upload(np.arange(32, dtype=np.uint32)), "u32", (32,), (32,))
    body = "mov.b32 %r3, 1024; mov.b64 %rd5, map; cvta.param.u64 %rd4, %rd5;\n" + instruction + "\nret;"
    launch(body, parameters=["map map"], arguments=[tile], device=device, initial=np.arange(32))


@pytest.mark.parametrize("instruction", FENCES + PREFETCHES)
def test_every_fence_and_prefetch_of_the_isa_is_accepted(instruction):
    hint(instruction)


@pytest.mark.parametrize("instruction", NO_FENCES + NO_PREFETCHES)
def test_a_fence_or_prefetch_the_isa_does_not_have_is_refused(instruction):
    with pytest.raises(EmulatorError) as error:
        hint(instruction)
    assert isinstance(error.value, PtxSyntaxError | Fault)
    assert instruction.split()[0].rstrip(";") in str(error.value)
