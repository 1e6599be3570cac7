"""Starts a program with the emulated driver, and answers what its processes ask until it has ended.

One thread does everything, in the order in which it comes: it is one GPU. The socket has a name that is drawn at random
and no file, so that nothing is left of it when this process is killed; connections of other users are refused.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import secrets
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from emugpu.driver.api import checksum
from emugpu.driver.library import libraries
from emugpu.driver.memory import WINDOWS, MappedFile, pinned_at
from emugpu.driver.protocol import BadMessage, receive, receive_request
from emugpu.driver.session import answer
from emugpu.driver.state import Abandoned, Gpu, Session
from emugpu.driver.toolchains import cute_variables, folder_for_ptx, toolchain_variables
from emugpu.errors import UsageProblem

SOCKET = "EMULATED_GPU_SOCKET"
"""The environment variable that tells the library where to connect to: a name in the abstract namespace (unix(7))."""
UNRESOLVED = 127
"""The exit code of a program whose functions the dynamic linker does not find."""
PATIENCE = 30.0
"""Seconds that a message which has begun may take."""


def run_program(
    command: Sequence[str], gpu: Gpu, environment: Mapping[str, str], stderr: IO[bytes] | None = None
) -> int:
    """Runs a program to its end with this GPU; returns its exit code (128 + the signal that ended it, as shells do).

    stderr: takes what the program says on its standard error; None: it goes where this process's goes.
    """
    folder = libraries()
    with folder_for_ptx() as kept, listening() as (listener, name):
        given = {**environment, **variables(environment, folder, name, kept)}
        gpu.kept_ptx = Path(given["CUTE_DSL_DUMP_DIR"])
        program = _start(command, given, stderr)
        with _terminates(program), Server(listener, gpu) as server:
            code = _serve_to_its_end(server, program)
    if code == UNRESOLVED and (missing := _unresolved(command[0], folder)):
        gpu.log.failed(f"the program needs {', '.join(missing)}, which the emulated driver's libraries have not")
    return code


def _unresolved(program: str, libraries: Path) -> list[str]:
    """Functions of CUDA that a program is linked with and that no library has."""
    wanted = _names(shutil.which(program) or program, "--undefined-only")
    had = {name for library in libraries.glob("*.so*") for name in _names(library, "--defined-only")}
    return sorted(name for name in wanted - had if re.match(r"cu[A-Z]|cuda[A-Z]|__cuda|nvml[A-Z]", name))


def _names(library: str | Path, which: str) -> set[str]:
    """Names in the dynamic symbol table of a file; none where binutils are not installed."""
    try:
        done = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, encoding="utf-8", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return set()
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line}


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """Gives a socket that processes can connect to, with its name, for as long as this process uses it."""
    name = f"emulated-gpu-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(16)
        yield listener, name


def variables(given: Mapping[str, str], libraries: Path, name: str, kept: Path) -> dict[str, str]:
    """Returns the environment variables by which a program finds the emulated GPU: additions to those given, and
    changes. name: of the socket. kept: the folder for the PTX of compilers.
    """
    search = [str(libraries), *filter(None, [given.get("LD_LIBRARY_PATH", "")])]
    compilers = toolchain_variables(given) | cute_variables(given, libraries, kept)
    return {**compilers, "LD_LIBRARY_PATH": os.pathsep.join(search), SOCKET: name}


@contextlib.contextmanager
def _terminates(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Has the program end when somebody terminates this process, which ends after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: program.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, stderr=stderr)
    except FileNotFoundError as error:
        raise UsageProblem(f"there is no program {command[0]!r}; give its path, or a name that PATH has") from error
    except OSError as error:
        way_out = "; name what runs it, too: python, mojo run" if isinstance(error, PermissionError) else ""
        raise UsageProblem(f"{command[0]!r} cannot be started: {error.strerror}{way_out}") from error


def _serve_to_its_end(server: Server, program: subprocess.Popen[bytes]) -> int:
    """Serves until the program has ended; processes that it leaves behind lose their GPU then."""
    ended = os.pidfd_open(program.pid)
    try:
        server.serve(lambda: program.poll() is None, ended)
    except BaseException:
        _end(program)
        raise
    finally:
        os.close(ended)
    code = program.wait()
    return code if code >= 0 else 128 - code


class Server:
    """Serves the processes of a program. ``sessions``: by connection; None before it has said hello."""

    def __init__(self, listener: socket.socket, gpu: Gpu) -> None:
        self._listener = listener
        self.gpu = gpu
        self._selector = selectors.DefaultSelector()
        self._sessions: dict[socket.socket, Session | None] = {}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self._sessions):
            self._drop(connection)
        self._selector.close()

    def serve(self, going_on: Callable[[], bool], wake: int) -> None:
        """Serves for as long as it is to go on, which is asked after each event. wake: a file that becomes readable
        when there is a new answer to this question.
        """
        self._selector.register(wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while going_on():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._serve_one(key.fileobj)

    def use(self, gpu: Gpu) -> None:
        """Goes on with other options and another log. What has failed is forgotten; memory and modules stay."""
        self.gpu = gpu
        for session in self._sessions.values():
            if session is not None:
                session.use(gpu)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE)
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():
            connection.close()
            return
        self._sessions[connection] = None
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve_one(self, connection: socket.socket) -> None:
        """Answers what has come from one process."""
        try:
            going_on = self._answer(connection)
        except (BadMessage, OSError) as error:
            if not isinstance(error, ConnectionError):
                self.gpu.log.failed(f"a process was disconnected: it sent {error}")
            going_on = False
        except Abandoned:
            going_on = False
        if not going_on:
            self._drop(connection)

    def _answer(self, connection: socket.socket) -> bool:
        session = self._sessions[connection]
        if session is None:
            return self._greet(connection)
        request = receive_request(connection)
        if request is None:
            return False
        connection.sendall(answer(session, request))
        return True

    def _greet(self, connection: socket.socket) -> bool:
        hello = receive(connection, 8)
        if hello is None:
            return False
        if hello != checksum():
            raise BadMessage("the greeting of another version of the library")
        self.gpu.log.processes += 1
        file = MappedFile()
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.descriptor]))]
            connection.sendmsg([struct.pack("=I", len(WINDOWS))], rights)
            connection.sendall(b"".join(window.pack() for window in WINDOWS))
            base = receive(connection, 8)
            if base is None:
                raise ConnectionError
            pinned = pinned_at(*struct.unpack("=Q", base))
        except BaseException as error:
            file.close()
            if isinstance(error, ValueError):
                raise BadMessage(str(error)) from error
            raise
        number = self.gpu.log.processes
        self._sessions[connection] = Session(self.gpu, number, lambda: _has_ended(connection), file, pinned)
        return True

    def _drop(self, connection: socket.socket) -> None:
        session = self._sessions.pop(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()
        if session is not None:
            if any(session.printed):
                self.gpu.log.note("the program has ended without a synchronisation: what kernels printed since is lost")
            session.close()


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side is gone."""
    ask = select.poll()
    ask.register(connection, select.POLLRDHUP)
    return bool(ask.poll(0))


def _end(program: subprocess.Popen[bytes]) -> None:
    """Asks a program to end, then makes it."""
    program.terminate()
    try:
        program.wait(2)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
