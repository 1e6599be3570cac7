"""Reads the programs, and makes PTX and launch files of them."""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from emugpu.launch.launch_file import read_launch
from emugpu.launch.spec import Launchable
from emugpu.launch.toml_table import as_toml

FOLDER = Path(__file__).parent / "programs"
KERNEL = "program"
LOAD = "ld.global.b32 %in, [%from];"
"""The beginning of each program, unless it says otherwise."""
DECLARE = ".shared .align 1024 .b8 data[4096];\n.shared .align 8 .b64 bars[8];"
"""Shared memory, unless a program declares its own."""
FILLER = 0xDEADBEEF
"""The first value of each word of the output."""

HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry $kernel($parameters)$cluster
{
$declare
.reg .pred %p<8>, %first, %warp0, %warp1, %lane0;
.reg .b16 %h<4>;
.reg .b32 %r<32>, %t, %warp, %lane, %cta, %rank, %id, %in, %v, %own, %other, %mine;
.reg .f32 %f<8>;
.reg .b64 %d<8>, %from, %out, %lane_out$registers;
mov.u32 %t, %tid.x;
shr.u32 %warp, %t, 5;
and.b32 %lane, %t, 31;
mov.u32 %cta, %ctaid.x;
mov.u32 %rank, %cluster_ctarank;
mad.lo.u32 %id, %cta, $block, %t;
setp.eq.u32 %first, %t, 0;
setp.eq.u32 %lane0, %lane, 0;
setp.eq.u32 %warp0, %warp, 0;
setp.eq.u32 %warp1, %warp, 1;
mov.u32 %own, data;
shl.b32 %r0, %lane, 2;
add.u32 %mine, %own, %r0;
shl.b32 %r0, %t, 2;
add.u32 %own, %own, %r0;
xor.b32 %other, %own, 128;
$take
mul.wide.u32 %d0, %id, 4;
add.s64 %from, %x, %d0;
add.s64 %out, %y, %d0;
mul.wide.u32 %d0, %lane, 4;
add.s64 %lane_out, %y, %d0;
$load
$body
ret;
}
"""
"""%own is the thread's word in shared memory, %other that of the same lane in another warp, %mine one for each lane.
%in is the thread's word of x, %out the address of its word of y."""

PIECES = {
    "wait": "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 over, [$0], $1;\n"
    "@!over bra AGAIN;\n}",
    "wait_as": "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity$0.shared::cta.b64 over, [$1], $2;\n"
    "@!over bra AGAIN;\n}",
    "cluster_barrier": "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;",
    "map_word": "ld.param.b64 %d1, [p_m+$0];\nst.global.b64 [%work+$0], %d1;",
}
"""``wait!(bars, 0)`` in a body waits for a phase of that parity, and so on."""


@dataclass(frozen=True)
class Fault:
    """A wrong program. ``wrong`` says what stands in the places of its right twin, ``isa`` what it breaks: sections or
    instructions of the PTX ISA, or another manual. After a colon it says why.

    ``finding`` names the rules by which a checker may report it; "hangs" stands for one that does not end.
    """

    twin: Program
    name: str
    wrong: Mapping[str, str]
    isa: str
    finding: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.twin.id}-{_id(self.name)}"


@dataclass(frozen=True)
class Program:
    """A right program. ``table`` is what the data say of it."""

    kind: str
    name: str
    table: Mapping[str, Any]

    @property
    def id(self) -> str:
        return _id(self.name)

    @property
    def faults(self) -> list[Fault]:
        return [Fault(self, f["name"], f["wrong"], f["isa"], tuple(f["finding"])) for f in self.table["fault"]]

    def _sizes(self) -> tuple[int, int]:
        return self.table.get("grid", 1), self.table.get("block", 64)

    def _buffers(self) -> dict[str, dict[str, Any]]:
        threads = prod(self._sizes())
        own = {
            "x": {"dtype": "u32", "shape": threads, "init": "uniform"},
            "y": {"dtype": "u32", "shape": threads, "init": FILLER},
        }
        return own | self.table.get("buffers", {})

    @property
    def launches(self) -> list[list[str]]:
        """Returns the arguments of each launch."""
        return self.table.get("launches", [[*self._buffers(), *self.table.get("maps", {})]])

    @property
    def overlaps(self) -> bool:
        """Returns whether each launch may start before the one before it has ended."""
        return bool(self.table.get("overlap", False))

    def streams(self, wrong: Mapping[str, str]) -> list[int]:
        """Returns the stream of each launch: 0 is the default one."""
        given = {**self.table["right"], **wrong}.get("streams")
        return [int(number) for number in given.split()] if given else [0] * len(self.launches)

    def ptx(self, wrong: Mapping[str, str]) -> str:
        """Returns the PTX with these texts in place of the right ones."""
        right = self.table["right"]
        unknown = wrong.keys() - right.keys()
        if unknown:
            raise ValueError(f"{self.name}: no place of the right program is called {', '.join(sorted(unknown))}")
        maps = self.table.get("maps", {})
        buffers = list(self._buffers())[: len(self.launches[0]) - len(maps)]
        text = string.Template(self.table["body"]).substitute({**right, **wrong})
        take = [f"ld.param.u64 %{name}, [p_{name}];\ncvta.to.global.u64 %{name}, %{name};" for name in buffers]
        take += [f"mov.b64 %{name}, p_{name};\ncvta.param.u64 %{name}, %{name};" for name in maps]
        cluster = self.table.get("cluster", 0)
        return string.Template(HEAD).substitute(
            kernel=KERNEL,
            parameters=", ".join(
                [f".param .u64 p_{name}" for name in buffers] + [f".param .align 64 .b8 p_{name}[128]" for name in maps]
            ),
            cluster=f"\n.explicitcluster .reqnctapercluster {cluster}, 1, 1" if cluster else "",
            declare=self.table.get("declare", DECLARE),
            registers="".join(f", %{name}" for name in (*buffers, *maps)),
            block=self._sizes()[1],
            take="\n".join(take),
            load=self.table.get("load", LOAD),
            body=_expanded(text).strip(),
        )

    def launch(self, ptx: str) -> dict[str, Any]:
        """Returns the data of a launch file. ``ptx`` is the path of the PTX."""
        grid, block = self._sizes()
        expect = self.table["expect"]
        each = [{"kernel": KERNEL, "grid": grid, "block": block, "arguments": given} for given in self.launches]
        return {
            "ptx": ptx,
            "launch": each if len(each) > 1 else each[0],
            "buffers": self._buffers(),
            "maps": self.table.get("maps", {}),
            "expect": {"y": expect} if isinstance(expect, str) else expect,
        }


def _expanded(text: str) -> str:
    """Replaces the pieces, and ``only PREDICATE`` ... ``end`` by a branch around the lines between them."""

    def piece(found: re.Match[str]) -> str:
        given = [part.strip() for part in found[2].split(",")]
        return re.sub(r"\$(\d)", lambda place: given[int(place[1])], PIECES[found[1]])

    text = re.sub(r"\b(\w+)!\(([^)]*)\)", piece, text)
    text = re.sub(r"(?m)^only !(%\w+)$", r"{\n@\1 bra SKIP;", text)
    text = re.sub(r"(?m)^only (%\w+)$", r"{\n@!\1 bra SKIP;", text)
    return re.sub(r"\n\n+", "\n", re.sub(r"(?m)^end$", "SKIP:\n}", text))


def _id(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


@cache
def programs() -> tuple[Program, ...]:
    """Returns all right programs."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [Program(data["kind"], table["name"], table) for table in data["program"]]
    return tuple(found)


@cache
def by_id() -> dict[str, Program | Fault]:
    """Returns all programs, right and wrong ones. Raises ValueError if two have the same id."""
    found: dict[str, Program | Fault] = {}
    for program in programs():
        each: list[Program | Fault] = [program, *program.faults]
        for one in each:
            if one.id in found:
                raise ValueError(f"two programs are called {one.id}")
            found[one.id] = one
    return found


def _parts(one: Program | Fault) -> tuple[Program, Mapping[str, str]]:
    """Returns the right program, and what stands in its places instead."""
    return (one, {}) if isinstance(one, Program) else (one.twin, one.wrong)


def launchable(id: str) -> Launchable:
    """Returns a program to be launched."""
    program, wrong = _parts(by_id()[id])
    what = read_launch(Path(f"{id}.toml"), program.launch(f"{id}.ptx"))
    first, *others = what.launches
    launches = (first, *(replace(launch, overlap=program.overlaps) for launch in others))
    return replace(what, text_given=program.ptx(wrong), label=id, launches=launches)


def streams(id: str) -> list[int]:
    """Returns the stream of each launch of a program."""
    program, wrong = _parts(by_id()[id])
    return program.streams(wrong)


def of_one_launch() -> list[str]:
    """Returns the ids of the programs that a launch file can describe: one without streams or early starts."""
    return [id for id, one in by_id().items() if len(_parts(one)[0].launches) == 1]


def write(folder: Path) -> int:
    """Writes PTX and a launch file of each program that one can describe. Returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    for id in of_one_launch():
        one = by_id()[id]
        program, wrong = _parts(one)
        (folder / f"{id}.ptx").write_text(program.ptx(wrong), encoding="utf-8")
        says = program.table["does"] if isinstance(one, Program) else f"Wrong: {one.name}. See {one.isa}"
        launch = program.launch(f"{id}.ptx")
        lines = [f"# {says}", f"ptx = {as_toml(launch.pop('ptx'))}"]
        for key, table in launch.items():
            lines += [f"{key}.{name} = {as_toml(value)}" for name, value in table.items()]
        (folder / f"{id}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(of_one_launch())
