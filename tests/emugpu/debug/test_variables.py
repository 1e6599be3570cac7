"""Variables of the source by their names, against values that are worked out from the source."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("elftools")

import emugpu.errors
from emugpu.debug import Debugger, debug
from emugpu.debug.commands import Commands
from emugpu.debug.stopped import GONE
from emugpu.errors import UsageProblem
from harness.cli.main import main

CUDA = Path(__file__).parents[2] / "data" / "cuda"
NOWHERE = "has no place here"
T = np.arange(32)
TABLE = np.array([3, 1, 4, 1])
LAUNCH = """
ptx = "{ptx}"
[buffers]
out = {{ dtype = "s32", shape = 32, init = "zeros" }}
[[launch]]
kernel = "{kernel}"
grid = 1
block = 32
arguments = {arguments}
"""


def launch(folder: Path, ptx: Path, kernel: str, arguments: str = '["out"]') -> Path:
    (folder / "launch.toml").write_text(LAUNCH.format(ptx=ptx, kernel=kernel, arguments=arguments), encoding="utf-8")
    return folder / "launch.toml"


@pytest.fixture(scope="module")
def calls(tmp_path_factory) -> Debugger:
    return debug(launch(tmp_path_factory.mktemp("calls"), CUDA / "calls_debug.ptx", "calls"))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Debugger:
    folder = tmp_path_factory.mktemp("variables")
    return debug(launch(folder, CUDA / "variables.ptx", "variables", '["out", 7, 2.5]'))


def line_of(source: str, text: str, below: int = 0) -> str:
    """The line of the source with a text, or one below it, as a place to go to."""
    lines = (CUDA / source).read_text(encoding="utf-8").splitlines()
    return f"{source}:{below + next(number for number, line in enumerate(lines, 1) if text in line)}"


def at(debugger: Debugger, *stops: str) -> Debugger:
    """From the start to the first place, from there to the next."""
    debugger.position, debugger.warp = 0, (0, 0, 0)
    for stop in stops:
        debugger.to(stop)
    return debugger


def shown(debugger: Debugger, name: str) -> dict[str, tuple[str, str]]:
    """Type and place, and the values, of a variable in each part of the warp."""
    lines = Commands(debugger).do(f"show {name}")
    found = {}
    for agent, line in zip(lines[::2], lines[1::2], strict=True):
        said, _, value = line.strip().partition(": ")
        assert said.split()[0] == name
        found[agent] = said.removeprefix(name).strip(), value
    return found


def one(debugger: Debugger, name: str) -> tuple[str, str]:
    """Of a warp whose lanes are together."""
    [said] = shown(debugger, name).values()
    return said


def texts(values) -> str:
    return " ".join(f"{value:g}" for value in values)


def test_variables_of_a_kernel_and_of_functions_that_it_calls(calls):
    at(calls, line_of("calls.cu", "local[(i * 3"))
    assert one(calls, "t") == ("int in %r1", texts(T))
    assert one(calls, "i")[1] == "0"
    out = calls.recording.placed["out"].address
    assert one(calls, "out") == ("int * in param memory at 0x0", hex(out))
    place, value = one(calls, "local")
    assert place.startswith("int[8] in local memory at 0x") and value.startswith("not shown")
    for i in range(1, 8):
        calls.step()
        assert one(calls, "i")[1] == str(i)
    at(calls, line_of("calls.cu", "pair.sum ="))
    assert one(calls, "x")[1] == texts(T) and one(calls, "y")[1] == texts(TABLE[T % 4])
    assert not {"t", "out"} & {line.split()[0] for line in Commands(calls).do("variables")}


def test_variables_of_a_loop_that_lanes_leave_at_different_times(calls):
    """fold(make(t, table[t & 3]), t & 7): what is added up before i = 2, in the lanes that get there."""
    at(calls, line_of("calls.cu", "total +="))
    while one(calls, "i")[1] != "2":
        calls.step()
    [inside] = shown(calls, "i")
    assert inside.endswith(f"lanes 0x{sum(1 << int(t) for t in T if t % 8 > 2):08x}")
    y = TABLE[T % 4]
    assert shown(calls, "total")[inside][1] == texts((((T + y) * 0 + T * y) + ((T + y) * 1 + T * y))[T % 8 > 2])


def test_every_kind_of_place_and_type(places):
    """In an inlined function, which knows the variables around it, too, but one of the same name."""
    at(places, line_of("variables.cu", "__syncthreads"))
    odd = T % 2 == 1
    wanted = {
        "twice": ("int in %r", texts(2 * T)),
        "mode": ("Mode in %r", " ".join("FAST" if o else "SLOW" for o in odd)),
        "code": ("Code in %r", " ".join("ONE" if o else "BIG" for o in odd)),
        "total": ("unsigned short in shared memory at 0x400", str(1000 + 40 + 7)),
        "width": ("const int as a constant", "40"),
        "half": ("const float as a constant", "0.5"),
        "more": ("const bool as a constant", "true"),
        "big": ("double in %fd", "2.5"),
        "result": ("int", NOWHERE),
        "value": ("int in %r", GONE),
    }
    for name, (where, value) in wanted.items():
        place, said = one(places, name)
        assert place.startswith(where) and said == value, name
    assert one(places, "factor")[0].startswith("const float & in %rd")
    at(places, line_of("variables.cu", "row[threadIdx.x] = factor"))
    place, value = one(places, "factor")
    assert place.startswith("float in local memory") and value == texts(T / 2)
    assert one(places, "total")[1] == "."


def test_each_call_of_a_function_has_variables_of_its_own(places):
    """row[t] is t / 2; the first call keeps row[1], the second has read row[2]."""
    read, kept = line_of("variables.cu", "T mine = first[n]"), line_of("variables.cu", "T mine = first[n]", below=1)
    at(places, read)
    assert one(places, "n")[1] == "1" and one(places, "mine")[1] == NOWHERE
    places.to(kept)
    assert one(places, "mine")[1] == "0.5" and one(places, "kept")[1] == "."
    places.to(read)
    assert one(places, "n")[1] == "2"
    places.to(kept)
    assert one(places, "mine")[1] == "1" and one(places, "kept")[1] == "0.5"


def test_of_two_variables_of_one_name_it_is_the_inner_one(places):
    at(places, line_of("variables.cu", "(int)result;"))
    place, value = one(places, "result")
    assert place.startswith("long long in %rd") and value == texts(-T)
    at(places, line_of("variables.cu", "result + more"))
    assert one(places, "result")[0].startswith("int in %r")


def test_what_cannot_be_shown_is_one_line(calls, tmp_path, monkeypatch):
    at(calls, line_of("calls.cu", "local[(i * 3"))
    with pytest.raises(UsageProblem, match=r"show nothing: .* nor a variable of the source: `variables` lists"):
        Commands(calls).do("show nothing")
    optimised = at(debug(launch(tmp_path, CUDA / "calls.ptx", "calls")), "st.global")
    for command in ("show t", "variables"):
        with pytest.raises(UsageProblem, match=r"the PTX has no debug information, .* compile it with nvcc -G"):
            Commands(optimised).do(command)
    monkeypatch.setattr(emugpu.errors, "find_spec", lambda package: None)
    with pytest.raises(UsageProblem, match=r"elftools is not installed; .*'blackwell-matmul-lab\[variables\]'"):
        Commands(calls).do("variables")


def truncated(text: str) -> str:
    start = text.index(".debug_info\n")
    return text[: start + 4000] + "\n\t}\n"


def without_abbreviations(text: str) -> str:
    return re.sub(r"(\.section\s+\.debug_abbrev\s*\{)[^}]*", r"\1\n", text)


def of_another_version(text: str) -> str:
    return re.sub(r"(\.debug_info\s*\{\s*\.b32 \d+\s*)\.b8 2", r"\1.b8 77", text)


def no_number(text: str) -> str:
    return re.sub(r"(\.debug_info\s*\{\s*)\.b32 \d+", r"\1.b32 12x", text)


@pytest.mark.parametrize("break_", [truncated, without_abbreviations, of_another_version, no_number])
def test_garbled_debug_information_is_one_line(tmp_path, break_):
    text = (CUDA / "variables.ptx").read_text(encoding="utf-8")
    assert break_(text) != text
    (tmp_path / "broken.ptx").write_text(break_(text), encoding="utf-8")
    (tmp_path / "script").write_text("continue line 149\nshow mode\n", encoding="utf-8")
    toml = launch(tmp_path, tmp_path / "broken.ptx", "variables", '["out", 7, 2.5]')
    done = CliRunner().invoke(main, ["debug", str(toml), "--script", str(tmp_path / "script")])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1 and "the PTX's debug information cannot be read" in done.stderr
