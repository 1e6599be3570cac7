"""The catalogue of the probes of what only Blackwell has: names, questions, PTX that ends and is assembled."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from conformance import emulator
from conformance.catalogue import BLACKWELL, PROBES, for_target
from emugpu.errors import CannotRun
from emugpu.launch.ptxas import ptxas_version

pytestmark = pytest.mark.slow


@pytest.mark.skipif(ptxas_version() is None, reason="ptxas is not installed")
def test_ptxas_assembles_all_of_them_without_remarks(tmp_path):
    """Those that begin alike in one file: a process takes longer than a kernel."""
    entry = ".visible .entry probe("
    files: dict[str, list[str]] = {}
    for name, probe in BLACKWELL.items():
        head, _, body = probe.ptx.partition(entry)
        files.setdefault(head, []).append(entry.replace("probe", name) + body)
    assert len(files) < 4
    source, target = tmp_path / "probes.ptx", tmp_path / "probes.cubin"
    for head, bodies in files.items():
        source.write_text(head + "\n".join(bodies))
        done = subprocess.run(["ptxas", "-arch=sm_100a", source, "-o", target], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(ptxas_version() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_ptxas_takes_probes_that_are_made_for_other_gpus(target, tmp_path):
    """A few: all differ in one line or two only."""
    source, cubin = tmp_path / "probe.ptx", tmp_path / "probe.cubin"
    both = for_target(target)
    assert [name for name in PROBES if name not in both] == [n for n, p in PROBES.items() if "wgmma" in p.ptx]
    for name in ("tma_multicast_ranks", "mma_m16n8k32_f32_e4m3_e4m3_f32", "mma_layout_64", "cvt_from_narrow_types"):
        source.write_text(both[name].ptx)
        done = subprocess.run(["ptxas", f"-arch={target}", source, "-o", cubin], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), name


def test_names_are_unique_and_questions_are_questions():
    assert not set(BLACKWELL) & set(PROBES)
    assert set(for_target("sm_90a")) == set(PROBES)
    assert set(for_target("sm_100a")) > set(BLACKWELL)
    assert {name for name in for_target("sm_100a") if name not in for_target("sm_103a")} == {
        name for name, probe in BLACKWELL.items() if ".kind::i8" in probe.ptx
    }
    assert all(probe.question.endswith("?") for probe in BLACKWELL.values())


def test_every_probe_stands_beside_the_question_that_it_settles():
    page = (Path(__file__).parents[2] / "docs" / "open-questions.md").read_text()
    named = re.findall(r"`([a-z0-9_*]+)`(\\\*)?", page)
    for name, probe in BLACKWELL.items():
        stars = [star for pattern, star in named if fnmatch(name, pattern)]
        assert stars and bool(stars[-1]) == (not probe.modelled), name
    assert f"{len(BLACKWELL)} probes" in (Path(__file__).parents[2] / "docs" / "trust.md").read_text()


def backward_branches(ptx: str) -> set[str]:
    """Labels that a branch goes back to. Labels are known in their block and in those inside of it."""
    blocks: list[set[str]] = [set()]
    found = set()
    for line in (line.strip() for line in ptx.splitlines()):
        if line == "{":
            blocks.append(set())
        elif line == "}":
            blocks.pop()
        elif line.endswith(":"):
            blocks[-1].add(line.removesuffix(":"))
        elif "bra " in line:
            target = line.split()[-1].rstrip(";")
            if any(target in block for block in blocks):
                found.add(target)
    return found


def test_no_probe_waits_for_ever():
    """What may hang is outside: an alloc, a barrier. Loops are over words, steps and requests, or count their tries."""
    counted = {"NEXT", "AGAIN", "SLEEP", "STARTED"}
    assert {name for name, probe in BLACKWELL.items() if not backward_branches(probe.ptx) <= counted} == set()
    for name in ("mma_layout_128", "clc_refused", "clc_queue", "tmem_alloc_waits"):
        assert backward_branches(BLACKWELL[name].ptx)
    for probe in BLACKWELL.values():
        # Every wait for an mbarrier is followed by a branch out of the loop and by a count of tries.
        text = probe.ptx.splitlines()
        for number, line in enumerate(text):
            if "mbarrier.t" in line and "_wait" in line:
                assert any("setp.lt.u32 more, tries" in after for after in text[number : number + 6])


def test_what_the_emulator_refuses_is_recorded_only():
    """What it could answer would have to be compared, but for what the ISA leaves undefined, scale factors that differ
    between quadrants among it, and for CTAs that share an SM's tensor memory: here each has its own.
    """
    undefined = {
        *("mma_collector_of_another_a", "tmem_neighbours_128", "tmem_neighbours_512"),
        *("mma_scales_quadrants", "mma_scales_pair_different"),
    }
    for name, probe in BLACKWELL.items():
        if not probe.modelled and name not in undefined:
            with pytest.raises(CannotRun, match=r"^Fault: kernel 'probe', PTX line|: swizzle \w+ works only on a GPU$"):
                emulator.run(replace(probe, cases=probe.cases[-1:]))
