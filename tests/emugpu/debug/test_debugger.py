"""The debugger as Python and as a command: positions, stops, what it shows, and bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from emugpu.cli.main import main
from emugpu.debug import Debugger, debug
from emugpu.debug.commands import Commands
from emugpu.emulator.machine import events
from emugpu.errors import UsageProblem
from emugpu.launch.spec import find_type

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"
MATMUL = LAUNCHES / "triton_tma_matmul_sm100.toml"


@pytest.fixture(scope="module")
def recorded() -> Debugger:
    return debug(MATMUL)


@pytest.fixture
def debugger(recorded) -> Debugger:
    """At the start of a run that is recorded once."""
    return Debugger(recorded.recording)


def test_back_undoes_step(debugger):
    """Forward and back by a warp, by its lines and by breakpoints visit the same positions."""
    debugger.warp = 0, 0, 0
    for forward, back in ((debugger.step, debugger.step_back), (debugger.next, debugger.next_back)):
        debugger.position = 0
        visited = [forward() or debugger.position for _ in range(30)]
        assert visited == sorted(set(visited))
        assert [back() or debugger.position for _ in range(29)] == visited[-2::-1]
    debugger.position = 0
    debugger.add_breakpoint("tcgen05.mma")
    stops = []
    while debugger.position < len(debugger.recording):
        debugger.run()
        stops.append(debugger.position)
    assert len(stops) == 2 * 12 + 1
    for stop in stops[-2::-1]:
        debugger.run_back()
        assert debugger.position == stop
    assert "start" in debugger.run_back() and debugger.position == 0


def test_without_a_selected_warp_it_is_the_nearest_that_steps(debugger):
    """From the end the one that was last, from the start the one that is first."""
    debugger.run()
    debugger.step_back()
    last = debugger.position
    assert debugger.warp == debugger.event.agent[:3]
    assert not any(getattr(e, "agent", None) for e in debugger.recording.events[last:] if hasattr(e, "site"))
    debugger.position, debugger.warp = 0, None
    debugger.step()
    assert debugger.warp == debugger.event.agent[:3] and debugger.position < 10


def test_warps_and_barriers_of_one_cta(debugger):
    commands = Commands(debugger)
    assert commands.do("warps") == ["no warp has started yet"] and commands.do("barriers") == ["there is none yet"]
    commands.do("continue tcgen05.mma")
    assert "warp 3 of CTA 0: waits (bar.sync), PTX line " in commands.do("warps")[-1]
    for what, count in (("warps", 4), ("barriers", 5)):
        assert len(commands.do(what)) == len(commands.do(f"{what} cta 0")) == count


def test_a_recording_is_the_same_every_time(recorded):
    again = debug(MATMUL).recording
    assert [type(e) for e in again.events] == [type(e) for e in recorded.recording.events]
    assert np.array_equal(again.contents["C"][0], recorded.recording.contents["C"][0])


def test_the_machine_is_shown_as_it_was(debugger):
    """The stage of B before and after its box has landed: poison, and then the rows of the buffer."""
    first = debugger.recording.placed["B"].first
    (landed,) = [
        n
        for n, e in enumerate(debugger.recording.events, 1)
        if isinstance(e, events.Finished)
        and e.operation.kind == "tma.load"
        and e.operation.agent.cluster == 0
        and debugger.names.box(e.operation.reads[0]) == "B[0,64]"
    ]
    debugger.position = landed - 1
    _, valid = debugger.stopped.shared(0, 0, 0xE400, 128)
    assert not valid.any()
    debugger.position = landed
    data, valid = debugger.stopped.shared(0, 0, 0xE400, 128)
    assert valid.all()
    assert np.array_equal(data.view(first.dtype), first[0, 64:128])
    # With its swizzle undone, the second row of the box is that of the buffer, too.
    commands = Commands(debugger)
    said, *tile = commands.do("show shared 0xe400 4x16 cta 0")
    assert "B[0,64], 64x64 bf16" in said and [row.split() for row in tile] == [
        row.split() for row in commands.do("show B[0,64] 4x16")
    ]
    assert tile != commands.do("show 0xe400 bf16 4x64 cta 0")[1:]


def test_what_the_threads_hold_in_the_middle(debugger):
    """Registers of a block that has not ended are those that its function holds."""
    debugger.to("st.shared.v4")
    fragment = debugger.stopped.fragments(*debugger.warp)[0]
    (site,) = {debugger.event.site}
    names = site.text[site.text.index("{") + 1 : site.text.index("}")].split(", ")
    held = {name: value for name, _, value in debugger.stopped.registers(fragment, names)}
    for name, stored in zip(names, debugger.event.values, strict=True):
        assert np.array_equal(np.broadcast_to(held[name], 32), np.broadcast_to(stored, 32)), name


def test_tensor_memory_holds_the_sums_so_far(debugger):
    """After the first stage of 64 of K; the multiplication that is put off is done."""
    what = debugger.recording.placed
    a, b = (what[name].first.astype(np.float32) for name in "AB")
    for _ in range(4):
        debugger.to("tcgen05.mma")
    operations = [e.operation for e in debugger.recording.events[: debugger.position] if isinstance(e, events.Issued)]
    fourth = [o for o in operations if o.kind == "mma"][3]
    debugger.position = 1 + next(
        n for n, e in enumerate(debugger.recording.events) if isinstance(e, events.Finished) and e.operation is fourth
    )
    data, valid = debugger.stopped.tensor(0, 0)
    lanes, columns = fourth.writes[0].lanes, fourth.writes[0].columns
    held = data[lanes.start : lanes.stop, columns.start : columns.stop].view(np.float32)
    assert valid[lanes.start : lanes.stop, columns.start : columns.stop].all()
    assert np.array_equal(held, (a[:128, :64] @ b[:, :64].T))


def test_memory_that_got_a_name_has_chains_and_values(recorded):
    """The same bytes of C by another name: the same steps, and the sum is held against what is there at the end."""
    debugger = Debugger(replace(recorded.recording))
    debugger.run()
    placed = debugger.name_buffer("D", "C + 8192", find_type("bf16"), (64, 64))
    chains = [debugger.chain(text) for text in ("C[67,33]", "D[3,33]")]
    steps = [[(step.a, step.b, step.sum) for step in chain.steps] for chain in chains]
    assert len(steps[0]) == 3 and steps[0] == steps[1]
    assert chains[0].verdict == chains[1].verdict
    values, written = debugger.recording.contents["D"]
    assert written.all() and np.array_equal(values, recorded.recording.contents["C"][0][64:128])
    assert placed.address == debugger.recording.placed["C"].address + 64 * 64 * 2


def test_a_watch_sees_the_last_bit_and_values_are_exact(tmp_path):
    """Numbers that agree in six digits: 2^24 - 1 and 2^24 - 2 as integers, neighbours of 1 as f32."""
    text = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry program(.param .u64 a, .param .u64 b)
{
.reg .b64 %rd<2>;
ld.param.u64 %rd0, [a];
ld.param.u64 %rd1, [b];
st.global.u32 [%rd0], 16777215;
st.global.u32 [%rd0], 16777214;
st.global.b32 [%rd1], 0x3f800000;
st.global.b32 [%rd1], 0x3f800001;
ret;
}
"""
    (tmp_path / "program.ptx").write_text(text, encoding="utf-8")
    (tmp_path / "program.toml").write_text(
        """ptx = "program.ptx"
[launch]
grid = 1
block = 1
arguments = ["A", "B"]
[buffers]
A = { dtype = "u32", shape = [1], init = "uninitialised" }
B = { dtype = "f32", shape = [1], init = "uninitialised" }
""",
        encoding="utf-8",
    )
    commands = Commands(debug(tmp_path / "program.toml"))
    for name, values in (("A", ("16777215", "16777214")), ("B", ("1", "1.0000001"))):
        commands.do("back start")
        said = [commands.do(f"continue watch {name}[0]")[0] for _ in range(2)]
        assert said == [f"{name}[0]: {values[0]}", f"{name}[0]: {values[0]} -> {values[1]}"]
        assert commands.do(f"show {name}[0]")[0].split() == [values[1]]
        commands.do("back start")
        said = commands.do(f"why {name}[0]")
        assert said == [
            f"{name}[0]",
            f"{'':>15}  nothing has written {name}[0] by event 0; continue {name}[0] goes there",
        ]


def test_counts_of_steps_are_above_0(debugger):
    for move in (debugger.step, debugger.step_back, debugger.next, debugger.next_back):
        with pytest.raises(UsageProblem, match="-3: the count must be a whole number above 0"):
            move(-3)


def test_operations_are_places_by_their_kind(debugger):
    """As events call them; by their instruction they are the same, and stores by the same instruction are none."""
    loads = debugger.target("tma.load").positions
    boxes = [debugger.names.event(debugger.recording.events[n - 1]) for n in loads]
    assert boxes and all("issues tma.load of the box at " in text for text in boxes)
    assert set(loads) < set(debugger.target("cp.async.bulk.tensor").positions)


def test_descriptors_are_decoded(debugger):
    """As the launch file and the instructions of the PTX have them: 32 bytes along K between two multiplications."""
    commands = Commands(debugger)
    commands.do("continue cp.async.bulk.tensor")
    assert commands.do("operands") == ["box at A[0,0]: 128x64 of 256x192 bf16, rows 384 bytes apart, swizzle 128B"]
    for how, a in (("replaces", "0x400"), ("is added to", "0x420")):
        commands.do("continue tcgen05.mma")
        said = commands.do("operands")
        assert said[0] == "128x64, bf16 and bf16 into f32"
        assert said[1] == f"D {how} what lies from tensor memory lane 0, column 0 of CTA 0"
        assert said[2].startswith(f"A: shared memory at {a} of CTA 0, K-major, swizzle 128B, leading dimension ")


def test_what_a_guard_lets_through_is_no_warp_of_its_own(debugger):
    debugger.to("cp.async.bulk.tensor")
    assert debugger.event.agent.lanes == 1
    assert {agent.lanes for agent in debugger.status.warps} == {0xFFFFFFFF}


def test_a_watch_stops_where_the_value_changes(debugger):
    """The first stage of A is overwritten by the epilogue's tile; what brings the same value again is no change."""
    place = debugger.recording.placed
    first, last = float(place["A"].first[0, 0]), float(debugger.recording.contents["C"][0][0, 0])
    commands = Commands(debugger)
    assert commands.do("watch shared 0x400 bf16 cta 0")[0].endswith("3 times in this run")
    said = [commands.do("continue")[0] for _ in range(3)]
    assert said[1:] == [f"shared 0x400 bf16 cta 0: {a:.9g} -> {b:.9g}" for a, b in ((0, first), (first, last))]
    assert commands.do("back")[0] == said[1]
    assert commands.do("continue watch C[0,0]")[0] == f"C[0,0]: {last:.9g}"
    assert "st.shared" not in commands.do("where")[0] and "tma.store" in commands.do("where")[0]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("jump", "'jump' is not a command"),
        ("continue", ""),
        ("continue C[1,64]", "no such element; the shape of C is [256, 64]"),
        ("back D[0,0]", "'D[0,0]' names nothing in this run; buffers and barriers: A, B, C"),
        ("break line 1", "line 1: it has no event"),
        ("break nowhere.py:3", "nowhere.py:3: that source line has no event"),
        ("why C", "'C' is not an element of a buffer (A, B, C)"),
        ("why C[x]", "'x' is not a whole number from 0 on"),
        ("step x", "'x' is not a whole number from 0 on"),
        ("warp 1", "write CTA:WARP"),
        ("operands", "this event belongs to no MMA and no copy with a tensor map"),
        ("watch D[0,0]", "'D[0,0]' is not an element of a buffer (A, B, C); write A[0,0]"),
        ("watch shared 0x400", "watch shared 0x400: write C[3,517]"),
        ("show A stage 0", "show A stage 0: that is neither a register (%r1), tensor memory (tensor 0,0), shared"),
        ("show 0x12300", "no box is there; give a type to see its bytes in order, as in 0x12300 f32 8x8"),
        ("show 0x400 999x999", "the size must be ROWSxCOLUMNS, such as 8x16, of at most 4,096 elements"),
        ("delete 7", "no such breakpoint"),
        ("show tensor 0 f32", "write the lane and the column"),
        ("show tensor 0,0 bf16 2x2", "columns of tensor memory have 32 bits"),
        ("show 0xfffffff f32 1x1", "is beyond"),
        ("continue event 99999999", "the run has 1,539 events"),
        ("continue 0x404", "no mbarrier was initialised there"),
        ("back event -5", "'-5' is not a whole number from 0 on"),
        (f"step {'9' * 5000}", "is not a whole number"),
        ("step 0", "0: the count must be a whole number above 0"),
        ("warp 0:77", "warp 0:77: there is none in this launch; warp 0 of CTA 0 is one"),
        ("watch shared -1 f32", "watch shared -1 f32: write C[3,517], or shared PLACE TYPE"),
        ("watch shared 0xfffffff f32", "0xfffffff is beyond the 74,800 bytes of shared memory"),
        ("watch shared 0x400 f32 cta 9", "there is no CTA 9; clusters are of 1"),
        ("continue shared 0xfffffff", "0xfffffff is beyond the 74,800 bytes of shared memory"),
        ("continue shared 0x400 cta 9", "there is no CTA 9; clusters are of 1"),
        ("continue 0xb508 cta 0 cta 0", "cta is given twice"),
        ("continue 0x7fffffffffff", "0x7fffffffffff is in no allocation"),
        ("continue tensor 128,0", "tensor memory has lanes 0-127 and columns 0-511"),
        ("show tensor 500,0", "tensor memory has lanes 0-127 and columns 0-511"),
        ("show 0x400 bf16 cta 0 cta 0", "cta is given twice"),
        ("show 0x400 bf16 cta 9", "there is no CTA 9; clusters are of 1"),
        ("warps cta 1", "there is no CTA 1; clusters are of 1"),
        ("barriers full", "barriers full: nothing but cta NUMBER may follow"),
        ("where C", "where takes no argument, not 'C'"),
        ("buffer D C f32 99999999999999999999x9", "are not all memory of one buffer"),
        ("buffer D C f32 " + "x".join("1" * 70), "write name, place, type and shape"),
        ("buffer D[0] C bf16 4", "'D[0]' cannot name a buffer"),
        ("buffer shared C bf16 4", "'shared' cannot name a buffer"),
        ("buffer C A bf16 4", "C is a buffer of the launch; take another name"),
    ],
)
def test_bad_commands_get_one_line(debugger, command, part):
    commands = Commands(debugger)
    commands.do("continue event 700")
    if not part:
        assert commands.do(command)
        return
    before = debugger.position
    with pytest.raises(UsageProblem) as problem:
        commands.do(command)
    assert part in str(problem.value)
    assert debugger.position == before


def script(tmp_path: Path, text: str, *options: str, target: Path = MATMUL):
    file = tmp_path / "commands"
    file.write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["debug", str(target), "--script", str(file), *options])


def test_a_script_prints_what_it_does(tmp_path):
    found = script(tmp_path, "break C[3,5]  # the store\ncontinue\n\nback tcgen05.mma\nquit\nnever\n")
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0] == "(debug) break C[3,5]  # the store"
    assert lines[1] == "breakpoint 1: C[3,5], once in this run"
    assert any("tma.store of the box at C[0,0]" in line and "is complete" in line for line in lines)
    assert any(line.startswith("event") and "issues mma" in line for line in lines)


def test_bad_input_of_the_command(tmp_path):
    wrong = script(tmp_path, "continue\n\nwhither\n")
    assert wrong.exit_code == 2 and "line 3: 'whither' is not a command" in wrong.output
    assert script(tmp_path, "continue", target=tmp_path / "none.toml").exit_code == 2
    ignored = script(tmp_path, "continue", "--launch", "1")
    assert ignored.exit_code == 2 and "--launch: " in ignored.output and "is not a program" in ignored.output
    several = script(tmp_path, "continue", "--schedules", "4")
    assert several.exit_code == 2 and "--schedules 4: one run is recorded" in several.output
    missing = CliRunner().invoke(main, ["debug", str(MATMUL), "--script", str(tmp_path / "nothing")])
    assert missing.exit_code == 2 and "nothing" in missing.output


def test_the_prompt_ends_with_its_input(tmp_path):
    found = CliRunner().invoke(main, ["debug", str(MATMUL)], input="continue\nwhither\nwhere\n")
    assert found.exit_code == 0
    assert "'whither' is not a command" in found.output and "the program has ended" in found.output


def test_a_random_schedule_repeats(tmp_path):
    options = ("--schedules", "random:3")
    first, second = (script(tmp_path, "continue\nwhy C[67,33]\n", *options) for _ in range(2))
    assert first.exit_code == 0 and first.output == second.output
    assert "right partner" in first.output


@pytest.mark.slow
def test_ctrl_c_is_one_line():
    command = [sys.executable, "-m", "emugpu", "debug", str(MATMUL)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert "recorded" in process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.strip() == "emugpu: error: interrupted"
