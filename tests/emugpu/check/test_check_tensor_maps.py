"""A tensor map in global memory: edited by the kernel, released, handed over, acquired, used. A truth table."""

from __future__ import annotations

import numpy as np
import pytest
from handovers import CLUSTER_BARRIER, CTA_BARRIER, Outcome, Table, only, outcome, wait

from emugpu.emulator import Device, TensorMap

BOX = 32
"""Words of a box."""
REPLACE = "tensormap.replace.tile.global_address.{}.b1024.b64 [{}], %m1;"
TO_SHARED = """
shl.b32 %r2, %lane, 2; cvt.u64.u32 %d1, %r2; add.u64 %d1, %m0, %d1; ld.global.b32 %r3, [%d1];
mov.b32 %r1, data; add.u32 %r2, %r1, %r2; st.shared.b32 [%r2], %r3; bar.warp.sync -1;
"""
RELEASE = "fence.proxy.tensormap::generic.release.{};"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.{} [{}], 128;"
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{}.sync.aligned [%m0], [data], 128;"
USE = f"""
mbarrier.init.shared::cta.b64 [bars], 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};
mov.b32 %r20, 0;
cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [data+1024], [%m0, {{%r20}}], [bars];
""" + wait("bars")
USERS = {"itself": (0, 0), "another warp": (0, 32), "another CTA": (1, 32)}
"""Rank and thread of who uses the map; thread 0 of rank 0 edits it."""


def maps(device: Device) -> list[int]:
    """A map of one tensor, which the kernel makes one of another tensor."""
    first, second = (device.upload(np.arange(n, n + BOX, dtype=np.uint32)) for n in (0, 100))
    return [device.upload_tensor_map(TensorMap.tiled(first, "u32", (BOX,), (BOX,))), second]


def of_thread(rank: int, thread: int, text: str) -> str:
    return only(f"%rank eq {rank}", only(f"%thread eq {thread}", text))


def edited_map(s) -> str:
    rank, thread = USERS[s.user]
    if s.edit == "copied":
        replace = only("%lane eq 0", REPLACE.format("shared::cta", "data")) + "bar.warp.sync -1;"
        edit = only("%rank eq 0", only("%warp eq 0", TO_SHARED + replace + COPY.format(s.scope)))
    else:
        release = RELEASE.format(s.scope) if s.edit == "released" else ""
        edit = of_thread(0, 0, REPLACE.format("global", "%m0") + release)
    by_user = of_thread(rank, thread, ACQUIRE.format(s.scope, "%m0"))
    neighbour = of_thread(rank, thread ^ 32, ACQUIRE.format(s.scope, "%m0"))
    acquire = {
        "user": by_user,
        "neighbour": neighbour + CTA_BARRIER,
        "neighbour, no barrier": neighbour,
        "another map": of_thread(rank, thread, ACQUIRE.format(s.scope, "%m1")),
        "none": "",
        "too early": "",
    }[s.acquire]
    early = by_user if s.acquire == "too early" else ""
    return early + edit + (CLUSTER_BARRIER if s.barrier else "") + acquire + of_thread(rank, thread, USE)


def edited_map_expects(s) -> Outcome:
    """In program order, or after a barrier; released, then acquired by the user or before a barrier of its CTA."""
    ordered = s.barrier or s.user == "itself" or (s.user == "another warp" and s.acquire == "neighbour")
    fenced = s.edit != "only edited" and s.acquire in ("user", "neighbour")
    if s.acquire == "neighbour" and not s.barrier:
        # Its neighbour is the editor itself, or knows nothing of the edit.
        fenced = fenced and s.user == "another warp"
    wide = s.scope == "gpu" or s.user != "another CTA"
    return outcome(not (ordered and fenced and wide) and "tensormap")


TABLES = [
    Table(
        "tensor map edited by the kernel",
        dict(
            edit=("released", "copied", "only edited"),
            scope=("gpu", "cta"),
            barrier=(True, False),
            acquire=("user", "neighbour", "neighbour, no barrier", "another map", "too early", "none"),
            user=tuple(USERS),
        ),
        edited_map,
        edited_map_expects,
        grid=2,
        cluster=2,
        arguments=maps,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "tensor map written by the host",
        dict(acquire=("user", "none")),
        lambda s: only("%thread eq 0", (ACQUIRE.format("sys", "%m0") if s.acquire == "user" else "") + USE),
        lambda s: outcome(s.acquire == "none" and "tensormap"),
        arguments=maps,
        targets=("sm_100a", "sm_90a"),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)
