"""Events of what is asked for: clusters and registers."""

from __future__ import annotations

from event_programs import REQUEST
from event_streams import FIRST_WORD, of, one, stream

from emugpu.emulator.machine.events import (
    Agent,
    BytesLanded,
    CtaStarted,
    Finished,
    Issued,
    PhaseCompleted,
    RegistersSet,
    SharedBytes,
)


def test_requests_to_cluster_launch_control_tell_where_the_answer_goes(watched):
    seen = stream(REQUEST, grid=(1, 2), resident_clusters=1)
    watched.check()
    assert len(of(seen, CtaStarted)) == 1
    operation = one(seen, Issued).operation
    answer = SharedBytes(0, FIRST_WORD, 16)
    assert (operation.kind, operation.agent, operation.writes) == ("launch-control", Agent(0, 0, 0, 1), (answer,))
    assert operation.detail["signals"] == ((0, FIRST_WORD + 16),)
    assert operation.detail["answer"].tobytes() == (1 << 32 | 1 << 64).to_bytes(16, "little")
    assert one(seen, Finished) == (operation, (answer,))
    landed = one(seen, BytesLanded)
    assert (landed.operation, landed.cta, landed.offset, landed.phase, landed.nbytes) == (
        *(operation, 0, FIRST_WORD + 16),
        *(0, 16),
    )
    assert isinstance(seen[seen.index(landed) + 1], PhaseCompleted)


def test_granted_registers_are_told():
    body = "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 56; ret;"
    seen = stream(body, threads=128, directives=".maxnreg 64")
    for warp in range(4):
        assert [e.registers for e in of(seen, RegistersSet) if e.agent.warp == warp] == [40, 56]
