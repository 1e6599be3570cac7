"""The Debug Adapter, asked by a client that speaks the protocol over pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[2] / "data"
MATMUL = DATA / "launches" / "triton_tma_matmul_sm100.toml"
PTX = DATA / "triton" / "tma_matmul_sm100.ptx"


class Client:
    """An editor, as far as a test needs one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "emugpu", "debug", "--adapter"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        header = self._process.stdout.readline()
        assert header.startswith(b"Content-Length: ") and self._process.stdout.readline() == b"\r\n"
        message = json.loads(self._process.stdout.read(int(header.split()[1])))
        if message["type"] == "event":
            self.events.append(message)
        return message

    def send(self, text: bytes, nbytes: int | None = None) -> dict[str, Any]:
        """The response to a message. nbytes: its length, where that is not to be the right one."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(text) if nbytes is None else nbytes, text))
        self._process.stdin.flush()
        while (message := self.read())["type"] != "response":
            pass
        return message

    def request(self, command: str, arguments: Any = None, /, **more: Any) -> dict[str, Any]:
        """The response to a request. arguments: in place of the object of the others."""
        self._last += 1
        asked = {"seq": self._last, "type": "request", "command": command, "arguments": arguments or more}
        message = self.send(json.dumps(asked).encode())
        assert message["request_seq"] == self._last and message["command"] == command
        return message

    def ask(self, command: str, **arguments: Any) -> Any:
        """The body of a response that is no refusal."""
        message = self.request(command, **arguments)
        assert message["success"], message
        return message.get("body")

    def refused(self, command: str, arguments: Any = None, /, **more: Any) -> str:
        return problem(self.request(command, arguments, **more))

    def wait(self, event: str) -> dict[str, Any]:
        """The body of the next event of this name."""
        while not any(e["event"] == event for e in self.events):
            self.read()
        return self.events.pop(next(n for n, e in enumerate(self.events) if e["event"] == event))["body"]

    def goes(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Where a request that moves stops."""
        self.ask(command, **arguments)
        return self.wait("stopped")

    def launch(self, program: Path, *words: str, **arguments: Any) -> None:
        self.ask("initialize", adapterID="emugpu", linesStartAt1=True)
        self.ask("launch", program=str(program), args=list(words), **arguments)
        self.wait("initialized")

    def frames(self, stopped: dict[str, Any]) -> list[dict[str, Any]]:
        return self.ask("stackTrace", threadId=stopped["threadId"])["stackFrames"]

    def scope(self, frame: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
        (reference,) = [
            s["variablesReference"] for s in self.ask("scopes", frameId=frame["id"])["scopes"] if s["name"] == name
        ]
        return {v["name"]: v for v in self.ask("variables", variablesReference=reference)["variables"]}

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> tuple[int, bytes]:
        """The exit code, and what is left of the output."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        rest = self._process.stdout.read()
        return self._process.wait(timeout=30), rest


def problem(response: dict[str, Any]) -> str:
    """What a refusal says, in one line."""
    assert not response["success"], response
    said = response["body"]["error"]["variables"]["problem"]
    assert said == response["message"] and "\n" not in said and "unexpected" not in said
    return said


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    try:
        yield client
    finally:
        client.kill()


def loaded_twice(folder: Path) -> Path:
    """The third slice of B is loaded from where the second one is."""
    text = PTX.read_text(encoding="utf-8")
    (folder / "slice.ptx").write_text(text.replace("{%r31, %r131}", "{%r13, %r131}"), encoding="utf-8")
    launch = MATMUL.read_text(encoding="utf-8").replace("../triton/tma_matmul_sm100.ptx", "slice.ptx")
    (folder / "slice.toml").write_text(launch, encoding="utf-8")
    return folder / "slice.toml"


def test_an_editor_goes_back_from_the_wrong_element(client, tmp_path):
    """The exception, its cause by `why`, a breakpoint on the PTX line backwards, and what the registers hold there."""
    assert client.ask("initialize", adapterID="emugpu")["supportsStepBack"]
    client.ask("launch", program=str(loaded_twice(tmp_path)))
    client.wait("initialized")
    ptx = str(tmp_path / "slice.ptx")
    client.ask("setExceptionBreakpoints", filters=["wrong"])
    (load, none) = client.ask("setBreakpoints", source={"path": ptx}, breakpoints=[{"line": 166}, {"line": 99999}])[
        "breakpoints"
    ]
    assert load["verified"] and load["line"] == 167
    assert not none["verified"] and "no event belongs to line 99999" in none["message"]
    stopped = client.goes("configurationDone")
    assert stopped["reason"] == "breakpoint" and stopped["hitBreakpointIds"] == [load["id"]]
    client.ask("setBreakpoints", source={"path": ptx}, breakpoints=[])
    stopped = client.goes("continue", threadId=stopped["threadId"])
    assert stopped["reason"] == "exception"
    about = client.ask("exceptionInfo", threadId=stopped["threadId"])
    assert about["exceptionId"] == "wrong" and "wrong from here on" in about["description"]
    why = client.ask("evaluate", expression="why C[0,7]", context="repl")["result"]
    assert "step 3 is the first that is wrong: K = 128 of A meets K = 64 of B" in why

    client.ask("setBreakpoints", source={"path": ptx}, breakpoints=[{"line": 167}])
    stopped = client.goes("reverseContinue", threadId=stopped["threadId"])
    assert stopped["reason"] == "breakpoint"
    top = client.frames(stopped)[0]
    assert (top["source"]["path"], top["line"]) == (ptx, 167) and "cp.async.bulk.tensor" in top["name"]
    threads = client.ask("threads")["threads"]
    assert len(threads) == 8 and {"id": stopped["threadId"], "name": "warp 0 of CTA 0"} in threads
    for register, value in (("%r13", " 64"), ("%r31", "not kept, because no instruction reads it any more")):
        shown = client.ask("evaluate", expression=register, context="hover", frameId=top["id"])["result"]
        assert shown.endswith(value)
    barriers = client.scope(top, "Barriers")
    assert any("pending" in barrier["value"] for barrier in barriers.values())


def test_steps_of_a_warp_forward_and_back(client):
    client.launch(MATMUL, stopOnEntry=True)
    stopped = client.goes("configurationDone")
    assert stopped["reason"] == "entry"
    thread = {"threadId": stopped["threadId"]}
    assert client.frames(stopped)[0]["name"] == "has done nothing yet"
    for there, granularity in (("stepIn", "instruction"), ("next", "line")):
        lines = [client.frames(client.goes(there, **thread))[0]["line"] for _ in range(6)]
        again = [client.frames(client.goes("stepBack", granularity=granularity, **thread))[0]["line"] for _ in range(5)]
        assert again == lines[-2::-1] and all(lines)
    stopped = client.goes("evaluate", expression="continue tcgen05.mma", context="repl")
    assert stopped["reason"] == "goto" and "tcgen05.mma" in client.frames(stopped)[0]["name"]
    (tile,) = [t for t in client.scope(client.frames(stopped)[0], "Tiles").values() if t["value"].startswith("B[0,0]")]
    rows = client.ask("variables", variablesReference=tile["variablesReference"], start=3, count=1)["variables"]
    shown = client.ask("evaluate", expression="B[3,0] 1x64", context="watch")["result"]
    assert [row["name"] for row in rows] == ["[3]"] and rows[0]["value"].split() == shown.split()
    ended = client.goes("continue", **thread)
    assert ended["reason"] == "end" and ended["description"] == "the end of the recording: the program has ended"
    assert client.goes("reverseContinue", **thread)["reason"] == "entry"
    assert client.ask("disconnect") is None
    assert client.end() == (0, b"")


def test_lines_of_the_source(client, tmp_path):
    """CUDA C++ with .loc: a frame of the source lies on that of the PTX; the file is found by its name."""
    launch = (DATA / "launches" / "nvcc_calls.toml").read_text(encoding="utf-8")
    (tmp_path / "calls.toml").write_text(
        launch.replace("../cuda/calls.ptx", str(DATA / "cuda" / "calls_debug.ptx")), encoding="utf-8"
    )
    source = DATA / "cuda" / "calls.cu"
    line = next(n for n, text in enumerate(source.read_text(encoding="utf-8").splitlines(), 1) if "atomicAdd" in text)
    ptx_lines = (DATA / "cuda" / "calls_debug.ptx").read_text(encoding="utf-8").splitlines()
    client.launch(tmp_path / "calls.toml")
    (set_,) = client.ask("setBreakpoints", source={"path": str(source)}, breakpoints=[{"line": line}])["breakpoints"]
    assert set_["verified"] and set_["line"] == line
    (unknown,) = client.ask("setBreakpoints", source={"path": "/x/other.cu"}, breakpoints=[{"line": 1}])["breakpoints"]
    assert "files with events: calls_debug.ptx, calls.cu" in unknown["message"]
    above, below = client.frames(client.goes("configurationDone"))[:2]
    instruction = ptx_lines[below["line"] - 1].rstrip(";").split()
    assert (above["source"]["path"], above["line"]) == (str(source), line)
    assert below["source"]["name"] == "calls_debug.ptx" and below["name"].split() == instruction


def test_places_as_function_breakpoints_and_a_hang_as_an_exception(client, tmp_path):
    text = PTX.read_text(encoding="utf-8")
    launch = MATMUL.read_text(encoding="utf-8").replace("../triton/tma_matmul_sm100.ptx", "hang.ptx")
    (tmp_path / "hang.ptx").write_text(text.replace("24576", "24592", 1), "utf-8")
    (tmp_path / "hang.toml").write_text(launch, encoding="utf-8")
    client.launch(tmp_path / "hang.toml")
    names = [{"name": "tma.lod"}, {"name": "watch shared 0x400 bf16"}, {"name": "cp.async.bulk.tensor"}]
    none, watched, load = client.ask("setFunctionBreakpoints", breakpoints=names)["breakpoints"]
    assert watched["verified"]
    assert not none["verified"] and "'tma.lod' names nothing in this run" in none["message"]
    stopped = client.goes("configurationDone")
    assert stopped["reason"] == "function breakpoint" and load["verified"]
    client.ask("setFunctionBreakpoints", breakpoints=[])
    stopped = client.goes("continue", threadId=stopped["threadId"])
    assert stopped["reason"] == "exception"
    about = client.ask("exceptionInfo", threadId=stopped["threadId"])
    assert about["exceptionId"] == "fault" and "deadlock" in about["description"]
    waits = client.ask("evaluate", expression="why-waits", context="repl")["result"]
    assert "pending: 16 bytes" in waits
    client.ask("threads")
    assert any("waits" in client.frames({"threadId": n})[0]["name"] for n in range(1, 9))


def test_a_launch_of_a_program(client):
    """What the program prints goes past the protocol; the default is its last launch."""
    program = f"""
import sys
sys.path.insert(0, {str(DATA.parent / "support")!r})
from driver_client import *
start()
add, twice = load(open({str(DATA / "cuda" / "driver_kernels.ptx")!r}).read(), "add", "add")
a = upload((c_float * 4)(1, 2, 3, 4))
b = asked("cuMemAlloc_v2", 16)
launch(add, 1, 32, a, a, b, c_int(4))
launch(add, 1, 32, b, b, a, c_int(4))
call("cuCtxSynchronize")
print("done")
"""
    client.launch(Path(sys.executable), "--", "-c", program)
    client.ask("setFunctionBreakpoints", breakpoints=[{"name": "st.global"}])
    assert client.goes("configurationDone")["reason"] == "function breakpoint"
    client.ask("evaluate", expression="buffer A param_2 f32 4", context="repl")
    assert client.ask("evaluate", expression="A[0] 1x4", context="watch")["result"].split() == ["4", "8", "12", "16"]


def test_what_cannot_be_done_is_the_answer(client, tmp_path):
    assert "linesStartAt1 is false" in client.refused("initialize", linesStartAt1=False)
    assert "launch first" in client.refused("threads")
    assert 'write the target as "program"' in client.refused("launch")
    assert "none.toml" in client.refused("launch", program=str(tmp_path / "none.toml"))
    assert "is not a program" in client.refused("launch", program=str(MATMUL), args=["--launch", "1"])
    assert "No such option" in client.refused("launch", program=str(MATMUL), args=["--launches", "1"])
    client.launch(MATMUL)
    assert "not a request that this adapter supports" in client.refused("stepOut", threadId=1)
    assert "there is no such thread" in client.refused("next", threadId=77)
    client.goes("configurationDone")
    assert "show whither: that is neither" in client.refused("evaluate", expression="whither", context="repl")
    assert "it has not stopped at a fault" in client.refused("exceptionInfo", threadId=1)


def test_what_is_no_request_is_the_answer_too(client):
    """Wrong messages at the beginning, then in a session; the length of one is too small, so that its rest follows."""
    request = json.dumps({"seq": 3, "type": "request", "command": "threads"}).encode()
    for body in (b"[]", b'"threads"', b"null", b"{", b"\xff", b"[" * 100_000, request[:-1]):
        assert "is not a message of the Debug Adapter Protocol" in problem(client.send(body))
    assert "is not a message" in problem(client.send(request, nbytes=len(request) - 20))
    assert "launch first" in problem(client.send(request))
    for nbytes in (1 << 30, -1):
        assert "up to 16,777,216" in problem(client.send(request, nbytes=nbytes))
    assert "'3' is not a request" in problem(client.send(b'{"seq": 1, "type": "request", "command": 3}'))
    assert "'' is not a request" in problem(client.send(b'{"seq": [], "type": "request"}'))
    assert "arguments: must be an object, not ['x']" in client.refused("initialize", ["x"])
    assert "--help" in client.refused("launch", program=str(MATMUL), args=["--help"])
    client.launch(MATMUL, stopOnEntry=True)
    assert "is debugged already" in client.refused("launch", program=str(MATMUL))
    thread = client.goes("configurationDone")["threadId"]
    for command, arguments, said in (
        ("setBreakpoints", {}, "source: must be an object, and it is missing"),
        ("setBreakpoints", {"source": []}, "source: must be an object, not []"),
        (
            "setBreakpoints",
            {"source": {"path": str(PTX)}, "breakpoints": [3]},
            "breakpoints: must be an object, not 3",
        ),
        ("setBreakpoints", {"source": {"path": str(PTX)}, "breakpoints": [{}]}, "line: must be a whole number"),
        ("setFunctionBreakpoints", {"breakpoints": [{"name": 3}]}, "name: must be text, not 3"),
        ("setExceptionBreakpoints", {"filters": "wrong"}, "filters: must be a list, not wrong"),
        ("setExceptionBreakpoints", {"filters": [[]]}, "filters: must be text, not []"),
        ("stackTrace", {}, "threadId: must be a whole number, and it is missing"),
        ("stackTrace", {"threadId": "1"}, "threadId: must be a whole number, not 1"),
        ("stackTrace", {"threadId": thread, "startFrame": -1}, "startFrame: must be a whole number, not -1"),
        ("evaluate", {"expression": 3}, "expression: must be text, not 3"),
        ("evaluate", {"expression": "where", "frameId": []}, "frameId: must be a whole number, not []"),
        ("source", {"sourceReference": 7}, "sourceReference 7: there is no such source"),
        ("source", {"sourceReference": 0}, "sourceReference 0: there is no such source"),
    ):
        assert said in client.refused(command, arguments), (command, arguments)
    client.ask("setExceptionBreakpoints", filters=["wrong", "none"])
    client.ask("setBreakpoints", source={"path": str(PTX)}, breakpoints=[{"line": 167}])
    client.ask("evaluate", expression="delete 2", context="repl")
    assert client.ask("setBreakpoints", source={"path": str(PTX)}, breakpoints=[]) == {"breakpoints": []}


def test_a_person_is_told_to_leave_it(tmp_path):
    command = [sys.executable, "-m", "emugpu", "debug", "--adapter"]
    said = subprocess.run(command, input=b"continue\n", capture_output=True, timeout=60)
    assert said.returncode == 2 and b"is not a message of the Debug Adapter Protocol" in said.stderr and not said.stdout
    said = subprocess.run([*command, str(MATMUL), "--schedules", "random:3"], capture_output=True, timeout=60)
    assert said.returncode == 2 and b"--schedules: with --adapter the editor's launch request" in said.stderr
