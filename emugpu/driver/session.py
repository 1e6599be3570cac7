"""Handles one call of a process and returns the reply."""

from __future__ import annotations

import traceback

from emugpu.driver import (  # noqa: F401  they register the functions that answer
    blas_calls,
    device_calls,
    launch_calls,
    memory_calls,
    module_calls,
    stream_calls,
    tensor_calls,
    tensor_map_calls,
)
from emugpu.driver.api import HANDLERS
from emugpu.driver.memory import HostMemoryShort
from emugpu.driver.observed_calls import BEFORE, ObservedCall, observe
from emugpu.driver.protocol import ApiCall, HostCopy, encode_reply
from emugpu.driver.results import CODES, DriverError, name_of
from emugpu.driver.state import Abandoned, Session
from emugpu.errors import CannotRun
from emugpu.paths import setting

QUIET = frozenset({"cuPointerGetAttribute", "cuDeviceGetAttribute"})
"""Libraries call these speculatively, so the log has no line if one fails."""


def reply(session: Session, request: ApiCall) -> bytes:
    """Handles a call and returns the reply message."""
    name = request.function.name
    log = session.gpu.log
    if request.function.disposition == "refused":
        log.refused(name)
        return encode_reply(request, CODES["NOT_SUPPORTED"], ())
    text = session.take_printed() if request.function.prints else b""
    if session.error and request.function.disposition == "served":
        return encode_reply(request, session.error, (), text=text)
    if not _is_whole(request):
        return encode_reply(request, CODES["INVALID_VALUE"], (), text=text)
    try:
        observed = ObservedCall(name, session.order, session.find, session.pinned) if session.gpu.check else None
        if observed is not None and name in BEFORE:
            observe(observed, request.inputs)
        given = HANDLERS[name](session, *request.inputs)
        if observed is not None and name not in BEFORE:
            observe(observed, request.inputs)
    except HostMemoryShort as error:
        log.failed(f"{name}: {error.reason}")
        return encode_reply(request, error.code, (), text=text)
    except DriverError as error:
        if error.reason and name not in QUIET:
            log.note(f"{name}: {error.reason} ({name_of(error.code)})")
        return encode_reply(request, error.code, (), text=text)
    except Abandoned:
        raise
    except CannotRun as error:
        log.failed(str(error))
        session.fail("UNKNOWN")
        return encode_reply(request, session.error, (), text=text)
    except Exception as error:
        if setting("TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, MemoryError):
            why = f" ({error})" if str(error) else ""
            what = f"this machine has not enough memory{why}; allocate less, or use a machine that has more"
        else:
            what = f"unexpected {type(error).__name__}: {error}; set EMUGPU_TRACEBACK=1 to see where"
        log.failed(f"{name}: {what}")
        session.fail("UNKNOWN")
        return encode_reply(request, session.error, (), text=text)
    copies: list[HostCopy] = given if request.function.copies else []
    outputs = () if request.function.copies or given is None else given if isinstance(given, tuple) else (given,)
    return encode_reply(request, 0, outputs, copies, text)


def _is_whole(request: ApiCall) -> bool:
    """Returns whether inputs of fixed size have that size (a null pointer has none), and some output has room."""
    inputs = [parameter for parameter in request.function.parameters if parameter.kind != "out"]
    for parameter, value in zip(inputs, request.inputs, strict=True):
        if parameter.kind == "in" and parameter.size.isdigit() and len(value) != int(parameter.size):  # type: ignore[arg-type]
            return False
    return not request.room or any(request.room)
