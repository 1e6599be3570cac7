"""Launch files with launches that may start before the one in front of them has ended."""

from __future__ import annotations

import pytest

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launch_file import read_launch_file

LET, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
FILL, COPY = "st.global.b32 [%d2], %r1;", "ld.global.b32 %r2, [%d1]; st.global.b32 [%d2], %r2;"
LANE_0 = "setp.ne.u32 %p1, %r1, 0; @%p1 bra ALONE;"
PEER_WAITS = """
    .shared .b64 bar; mov.u32 %r2, %cluster_ctarank; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    READY: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; setp.eq.u32 %p1, %r2, 0; @%p1 bra HEAR;
    griddepcontrol.wait; setp.ne.u32 %p1, %r1, 0; @%p1 bra OVER; mov.b32 %r2, bar;
    mapa.shared::cluster.u32 %r2, %r2, 0; mbarrier.arrive.release.SCOPE.shared::cluster.b64 _, [%r2]; bra OVER;
    HEAR: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [bar], 0; @!%p1 bra HEAR;
    ld.global.b32 %r2, [%d1]; st.global.b32 [%d2], %r2; OVER: barrier.cluster.arrive; barrier.cluster.wait;
"""
"""CTA 1 of a cluster waits and arrives at an mbarrier of CTA 0, which then copies."""
WARP_0 = "setp.ge.u32 %p1, %r1, 32; @%p1 bra ON0;"
BODIES = {
    "fill": FILL,
    "fill_and_let": LET + FILL,
    "copy": COPY,
    "copy_and_let": LET + COPY,
    "copy_after": WAIT + COPY,
    "copy_incoherently_after": WAIT + COPY.replace("ld.global", "ld.global.nc"),
    "copy_after_a_late_wait": "ld.global.b32 %r2, [%d1];" + WAIT + "st.global.b32 [%d2], %r2;",
    "copy_after_and_let": WAIT + LET + COPY,
    "let_and_copy_after": LET + WAIT + COPY,
    "nothing": "",
    "let": LET,
    "wait": WAIT,
    "let_and_wait": LET + WAIT,
    "thread_by_thread_without_letting": "add.u64 %d2, %d2, %d3; st.global.b32 [%d2], %r1;",
    "thread_by_thread": LET + "add.u64 %d2, %d2, %d3; st.global.b32 [%d2], %r1;",
    "cta_1_exits": "mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 1; @%p1 exit;" + LET + WAIT + COPY,
    "warp_0_waits": WARP_0 + WAIT + "ON0: bar.sync 0;" + COPY,
    "warp_0_waits_late": WARP_0.replace("ON0", "ON1") + "bar.arrive 1, 64;" + WAIT + "ON1:"
    "setp.lt.u32 %p1, %r1, 32; @%p1 bra ON2; bar.sync 1, 64;" + COPY + "ON2:",
    "lane_0_waits": LANE_0 + WAIT + "ALONE:" + COPY,
    "lane_0_waits_by_a_guard": "setp.eq.u32 %p1, %r1, 0; @%p1" + WAIT + COPY,
    "lane_0_waits_and_the_lanes_meet": LANE_0 + WAIT + "ALONE: bar.warp.sync -1;" + COPY,
    "lane_0_waits_and_shuffles": LANE_0 + WAIT + "ALONE:shfl.sync.idx.b32 %r3, %r1, 0, 31, -1;" + COPY,
    "lane_0_waits_and_copies": LANE_0 + WAIT + COPY + "ALONE:",
    "lane_0_waits_the_others_copy": LANE_0 + WAIT + "bra.uni END; ALONE:" + COPY + "END:",
    "lane_0_waits_and_lets_the_cta": LANE_0 + WAIT + "ALONE: bar.sync 0;" + COPY,
    "lane_0_waits_all_read_lane_0": LANE_0 + WAIT + "ALONE: sub.u64 %d1, %d1, %d3;" + COPY,
    "cta_1_waits_for_its_peer": PEER_WAITS.replace("SCOPE", "cluster"),
    "cta_1_waits_and_arrives_with_cta_scope": PEER_WAITS.replace("SCOPE", "cta"),
    "the_others": "add.u64 %d2, %d2, %d3; st.global.b32 [%d2+4], %r1;",
}
ENTRY = """
.visible .entry {name}(.param .u64 from, .param .u64 to)
{{
.reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<6>;
ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to];
mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
{body}
ret;
}}
"""
PTX = ".version 8.0\n.target sm_90\n.address_size 64\n" + "".join(
    ENTRY.format(name=name, body=body) for name, body in BODIES.items()
)
BUFFERS = "".join(f'{name} = {{ dtype = "u32", shape = 128, init = "zeros" }}\n' for name in "pqr")
LAUNCH = '[[launch]]\nkernel = "{}"\ngrid = GRID\nblock = BLOCK\narguments = ["{}", "{}"]\n{}\n'
EARLY = "overlap = true"


def verdict(tmp_path, *launches: tuple[str, str, str, str], grid: int = 1, block: int = 64):
    (tmp_path / "kernels.ptx").write_text(PTX)
    file = tmp_path / "launch.toml"
    file.write_text(
        'ptx = "kernels.ptx"\n[expect]\nr = "0 * r"\n[buffers]\n'
        + BUFFERS
        + "".join(LAUNCH.format(*one).replace("GRID", str(grid)).replace("BLOCK", str(block)) for one in launches)
    )
    what = read_launch_file(file)
    [checked] = check([what], CheckOptions(2))
    return judge(what, checked)


RACE, WARNED, UNSURE = "racy", "clean, with a warning", "incomplete"
TWO = {
    "early without a wait": (("fill_and_let", "copy", EARLY), RACE),
    "early with a wait": (("fill_and_let", "copy_after", EARLY), "clean"),
    "a wait that is too late": (("fill_and_let", "copy_after_a_late_wait", EARLY), RACE),
    "one warp waits for all": (("fill_and_let", "warp_0_waits", EARLY), "clean"),
    "one warp waits too late for the other": (("fill_and_let", "warp_0_waits_late", EARLY), RACE),
    "early, by loads that no wait orders": (("fill_and_let", "copy_incoherently_after", EARLY), RACE),
    "behind a launch that does not let it, by such loads": (("fill", "copy_incoherently_after", EARLY), RACE),
    "not early, by such loads": (("fill_and_let", "copy_incoherently_after", "overlap = false"), "clean"),
    "such loads of what the first one reads": (("copy_and_let", "copy_incoherently_after", EARLY), "clean"),
    "not early": (("fill_and_let", "copy", "overlap = false"), "clean"),
    "nobody says whether it is early": (("fill_and_let", "copy", ""), UNSURE),
    "behind a launch that does not let it": (("fill", "copy", EARLY), WARNED),
    "behind a launch that does not let it, with a wait": (("fill", "copy_after", EARLY), "clean"),
    "behind a launch that does not let it, with a late wait": (("fill", "copy_after_a_late_wait", EARLY), WARNED),
    "behind a launch that does not let it, perhaps not the same bytes": (
        ("thread_by_thread_without_letting", "the_others", EARLY), "clean"),
    "no launch may be early": (("fill", "copy", ""), "clean"),
    "over what the first one writes": (("fill_and_let", "fill", EARLY), RACE),
    "perhaps not the same bytes": (("thread_by_thread", "the_others", EARLY), UNSURE),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO)
def test_a_launch_that_starts_early_waits_before_it_touches_the_same(name, tmp_path):
    (first, second, overlap), word = TWO[name]
    target = "p" if second in ("fill", "the_others") else "q"
    source = "q" if name.startswith("such loads") else "p"
    found = verdict(tmp_path, (first, "q", "p", ""), (second, source, target if source == "p" else "r", overlap))
    assert found.word == word.split(",")[0], found.reasons
    severity = {RACE: "error", WARNED: "warning"}.get(word)
    told = {(finding.rule, finding.severity) for finding in found.findings}
    assert told == ({("race-launches", severity)} if severity else set())
    if severity:
        bytes, place = (128, 128) if second.startswith("warp_0") else (256, 0)
        assert (
            f"launch[1] touches bytes that launch[0] writes ({bytes} bytes at 'p' + {place})"
            in found.findings[0].message
        )


LANES = {
    "lane_0_waits": "racy",
    "lane_0_waits_by_a_guard": "racy",
    "lane_0_waits_and_the_lanes_meet": "clean",
    "lane_0_waits_and_shuffles": "clean",
    "lane_0_waits_and_copies": "clean",
    "lane_0_waits_the_others_copy": "racy",
    "lane_0_waits_and_lets_the_cta": "clean",
    "lane_0_waits_all_read_lane_0": "racy",
    "copy_after": "clean",
}


@pytest.mark.parametrize("name", LANES)
def test_the_wait_of_a_lane_counts_for_the_others_once_they_have_met(name, tmp_path):
    found = verdict(tmp_path, ("fill_and_let", "q", "p", ""), (name, "p", "q", EARLY), block=32)
    assert found.word == LANES[name], found.reasons
    if found.word == RACE:
        assert "before its griddepcontrol.wait" in found.findings[0].message


@pytest.mark.parametrize(
    ("name", "word"), [("cta_1_waits_for_its_peer", "clean"), ("cta_1_waits_and_arrives_with_cta_scope", RACE)]
)
def test_an_arrival_passes_the_wait_on_if_its_scope_is_wide_enough(name, word, tmp_path):
    found = verdict(tmp_path, ("fill_and_let", "q", "p", ""), (name, "p", "q", EARLY + "\ncluster = 2"), grid=2)
    assert found.word == word, found.reasons


WAITING = "and may do so before its griddepcontrol.wait"
UNCOVERED = "a launch between the two starts early and does not wait"


@pytest.mark.parametrize(("first", "word"), [("copy", "clean"), ("copy_and_let", RACE)])
def test_a_launch_starts_early_when_the_ctas_in_front_have_read(first, word, tmp_path):
    """It overwrites what they have read: if none lets it start earlier, they have exited."""
    assert verdict(tmp_path, (first, "q", "p", ""), ("fill", "r", "q", EARLY)).word == word


THREE = {
    "the second one waits, then lets": ("copy_after_and_let", "copy", ""),
    "the second one lets, then waits": ("let_and_copy_after", "copy", WAITING),
    "the second one lets in one CTA, and the other one exits": ("cta_1_exits", "copy", WAITING),
    "the second one waits and does not let": ("copy_after", "copy", ""),
    "the second one does neither": ("nothing", "copy", WAITING),
    "the second one does neither, and the third one waits": ("nothing", "copy_after", UNCOVERED),
    "the second one lets, and the third one waits": ("let", "copy_after", UNCOVERED),
    "the second one waits, and the third one waits": ("wait", "copy_after", ""),
    "the second one lets and waits, and the third one waits": ("let_and_wait", "copy_after", ""),
}


@pytest.mark.parametrize("name", THREE)
def test_a_launch_may_start_before_the_last_but_one_has_ended(name, tmp_path):
    """The third launch reads what the first has written; each griddepcontrol.wait is for the launch in front of it."""
    second, third, what = THREE[name]
    launches = ("fill_and_let", "q", "p", ""), (second, "q", "r", EARLY), (third, "p", "q", EARLY)
    found = verdict(tmp_path, *launches, grid=2)
    others = [one.message for one in found.findings if "launch[0]" in one.message]
    assert len(others) == bool(what) and all(what in one for one in others), found.reasons


UNSEEN = "and may do so before that is visible"
NONE_LETS = {
    "the second one does neither": ("nothing", EARLY, "copy", UNSEEN),
    "the second one lets": ("let", EARLY, "copy", UNSEEN),
    "the second one lets, then waits": ("let_and_wait", EARLY, "copy", UNSEEN),
    "the second one waits": ("wait", EARLY, "copy", ""),
    "the second one waits, then lets": ("copy_after_and_let", EARLY, "copy", ""),
    "the second one may not start early": ("nothing", "overlap = false", "copy", ""),
    "the third one waits": ("nothing", EARLY, "copy_after", UNSEEN),
    "the second and the third one wait": ("wait", EARLY, "copy_after", ""),
}


@pytest.mark.parametrize("name", NONE_LETS)
def test_what_a_launch_writes_may_be_invisible_to_the_last_but_one(name, tmp_path):
    """The first launch lets none start early: the second starts when its CTAs have exited, the third soon after."""
    second, overlap, third, what = NONE_LETS[name]
    launches = ("fill", "q", "p", ""), (second, "q", "r", overlap), (third, "p", "q", EARLY)
    found = verdict(tmp_path, *launches, grid=2)
    others = [one for one in found.findings if "launch[0]" in one.message and "launch[2]" in one.message]
    assert len(others) == bool(what) and all(what in one.message for one in others), found.findings
    assert all(one.severity == "warning" for one in others)


def test_the_last_but_one_launch_has_read_when_its_ctas_have_exited(tmp_path):
    launches = ("copy", "q", "p", ""), ("nothing", "q", "r", EARLY), ("fill", "r", "q", EARLY)
    assert verdict(tmp_path, *launches).word == "clean"


@pytest.mark.parametrize(("overlap", "word"), [("overlap = false", "clean"), (EARLY, RACE)])
def test_a_launch_that_may_not_start_early_follows_all_in_front_of_it(overlap, word, tmp_path):
    launches = ("fill_and_let", "q", "p", ""), ("nothing", "q", "q", EARLY), ("copy", "p", "q", overlap)
    assert verdict(tmp_path, *launches).word == word


def test_no_launch_is_in_front_of_the_first_one(tmp_path):
    with pytest.raises(UsageProblem, match=r"launch\[0\]\.overlap = True: leave it out of the first launch"):
        verdict(tmp_path, ("fill", "q", "p", EARLY))
