"""Starts a program with the emulated driver, and serves its processes until it has ended.

One thread handles all calls in the order of their arrival, because it is one GPU. The socket has a random name and no
file, so nothing is left of it if this process is killed. The server refuses connections of other users.
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
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from emugpu.driver.api import checksum
from emugpu.driver.library import libraries
from emugpu.driver.memory import WINDOWS, MappedFile, pinned_at
from emugpu.driver.protocol import BadMessage, receive, receive_request
from emugpu.driver.session import reply
from emugpu.driver.state import Abandoned, Session, SharedGpu
from emugpu.driver.toolchains import cute_variables, folder_for_ptx, startup, toolchain_variables, toolkit_variables
from emugpu.errors import UsageProblem
from emugpu.processes.program import end_all, tree

SOCKET = "EMULATED_GPU_SOCKET"
"""The environment variable with the socket's name in the abstract namespace (unix(7)), to which the library
connects.
"""
UNRESOLVED = 127
"""The exit code of a program if the dynamic linker does not find one of its functions."""
PATIENCE = 30.0
"""Once a message has begun, the rest must arrive within this many seconds."""
PATIENCE_AT_END = 0.5
"""Seconds that a program has to end after an interruption, before it is killed."""


def run_program(
    command: Sequence[str], gpu: SharedGpu, environment: Mapping[str, str], stderr: IO[bytes] | None = None
) -> int:
    """Runs a program with this GPU. Returns its exit code, or 128 + the signal that ended it, as shells do.

    ``stderr`` receives the program's standard error; with None it goes to this process's standard error.
    """
    folder = libraries()
    with folder_for_ptx() as kept, listening() as (listener, name):
        given = {**environment, **variables(environment, folder, name, kept), **startup(environment)}
        gpu.kept_ptx = Path(given["CUTE_DSL_DUMP_DIR"])
        program = _start(command, given, stderr)
        with Server(listener, gpu) as server:
            code = _serve_until_exit(server, program)
    if code == UNRESOLVED and (missing := _unresolved(command[0], folder)):
        gpu.log.failed(f"the program needs {', '.join(missing)}, which the emulated driver's libraries do not have")
    return code


def _unresolved(program: str, libraries: Path) -> list[str]:
    """Returns the CUDA functions that a program links to and that none of the libraries defines."""
    wanted = _names(shutil.which(program) or program, "--undefined-only")
    had = {name for library in libraries.glob("*.so*") for name in _names(library, "--defined-only")}
    return sorted(name for name in wanted - had if re.match(r"cu[A-Z]|cuda[A-Z]|__cuda|nvml[A-Z]", name))


def _names(library: str | Path, which: str) -> set[str]:
    """Returns the names in the dynamic symbol table of a file, or none if binutils are not installed."""
    try:
        done = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, encoding="utf-8", timeout=60)
    except (OSError, subprocess.SubprocessError):
        return set()
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line}


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, str]]:
    """Yields a socket that processes can connect to, and its name. It closes on exit."""
    name = f"emulated-gpu-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(16)
        yield listener, name


def variables(given: Mapping[str, str], libraries: Path, name: str, kept: Path) -> dict[str, str]:
    """Returns the environment variables by which a program finds the emulated GPU: additions and changes to ``given``.

    ``name`` is that of the socket, ``kept`` the folder for the PTX of compilers.
    """
    search = [str(libraries), *filter(None, [given.get("LD_LIBRARY_PATH", "")])]
    compilers = toolchain_variables(given) | toolkit_variables(given) | cute_variables(given, libraries, kept)
    return {**compilers, "LD_LIBRARY_PATH": os.pathsep.join(search), SOCKET: name}


def _start(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, stderr=stderr)
    except FileNotFoundError as error:
        raise UsageProblem(f"there is no program {command[0]!r}; give its path, or a name that PATH has") from error
    except OSError as error:
        way_out = "; name what runs it, too: python, mojo run" if isinstance(error, PermissionError) else ""
        raise UsageProblem(f"{command[0]!r} cannot be started: {error.strerror}{way_out}") from error


def _serve_until_exit(server: Server, program: subprocess.Popen[bytes]) -> int:
    """Serves until the program has ended; processes that it leaves behind then lose their GPU."""
    ended = os.pidfd_open(program.pid)
    try:
        server.serve(lambda: program.poll() is None, ended)
    except BaseException:
        end_all(tree(program.pid), PATIENCE_AT_END)
        program.wait()
        raise
    finally:
        os.close(ended)
    code = program.wait()
    return code if code >= 0 else 128 - code


class Server:
    """Serves the processes of a program.

    ``sessions`` is by connection; a session is None until the process has sent its checksum.
    """

    def __init__(self, listener: socket.socket, gpu: SharedGpu) -> None:
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

    def serve(self, should_continue: Callable[[], bool], wake: int) -> None:
        """Serves as long as ``should_continue`` returns true; the server calls it after each event.

        ``wake`` is a file that becomes readable when the result of ``should_continue`` may have changed.
        """
        self._selector.register(wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while should_continue():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._serve_one(key.fileobj)

    def use(self, gpu: SharedGpu) -> None:
        """Continues with other options and another log. Earlier failures are dropped; memory and modules stay."""
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
        """Serves one message of one process."""
        try:
            should_continue = self._reply(connection)
        except (BadMessage, OSError) as error:
            if not isinstance(error, ConnectionError):
                self.gpu.log.failed(f"a process was disconnected: it sent {error}")
            should_continue = False
        except Abandoned:
            should_continue = False
        if not should_continue:
            self._drop(connection)

    def _reply(self, connection: socket.socket) -> bool:
        session = self._sessions[connection]
        if session is None:
            return self._open_session(connection)
        request = receive_request(connection)
        if request is None:
            return False
        connection.sendall(reply(session, request))
        return True

    def _open_session(self, connection: socket.socket) -> bool:
        received = receive(connection, 8)
        if received is None:
            return False
        if received != checksum():
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
            session.order.end(session.pinned)
            session.close()


def _has_ended(connection: socket.socket) -> bool:
    """Returns whether the other side has closed the connection."""
    ask = select.poll()
    ask.register(connection, select.POLLRDHUP)
    return bool(ask.poll(0))
