"""Every rule of the machine has a fix, which its messages name, and a way past it if hardware tolerates a breach."""

from __future__ import annotations

import pytest
from ptx_programs import launch

from emugpu.emulator import RULES, Fault


@pytest.mark.parametrize("id", RULES)
def test_a_rule_has_a_fix_and_a_way_if_it_can_be_gone_past(id):
    rule = RULES[id]
    assert len(rule.fix) > 20 and rule.fix[-1] != "."
    assert rule.advice.startswith(f"fix: {rule.fix}")
    assert (f"--emulate allow={id}" in rule.advice) == (rule.severity == "warning")


def test_a_message_names_the_fix():
    body = "setp.eq.u32 %p1, %r0, 3; @%p1 bra OVER; barrier.cluster.arrive.aligned; OVER: bar.warp.sync -1; ret;"
    with pytest.raises(Fault, match=r"fix: .*__syncwarp") as error:
        launch(body)
    assert error.value.rule == "convergence" and "allow=" not in str(error.value)


def test_a_message_in_strict_mode_names_the_way_past_it():
    body = "setp.lt.u32 %p1, %r0, 32; @!%p1 bra L; setmaxnreg.dec.sync.aligned.u32 64; L: ret;"
    options = {"threads": 128, "directives": ".maxnreg 128", "target": "sm_90a"}
    with pytest.raises(Fault, match=r"fix: let all four warps .*--emulate allow=registers-differ goes on"):
        launch(body, strict=True, **options)
    assert [w.rule for w in launch(body, strict=True, allow=["registers-differ"], **options).result.warnings]
