"""Reads the archive of a survey: a .tar.gz with what each part left, and a manifest that says how each of them ended.

manifest.json    {"schema", "time", "host", "gpu", "parts": [{"part", "what", "status", "seconds", "message"}]}
logs/PART.txt    what the part printed
...              what the part wrote

An archive may come from anywhere: nothing of it is written to the disk, and one that is damaged, or would unpack to
more than a survey leaves, is refused in one line.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emugpu.errors import UsageProblem

SCHEMA = 1
MANIFEST = "manifest.json"
MOST_BYTES = 256 << 20
"""A survey leaves 5 to 30 MB; an archive that unpacks to more than this is none."""


@dataclass(frozen=True)
class StepResult:
    """Says how a part of a survey ended. message: the last line it printed, or why it did not run."""

    part: str
    what: str
    status: str
    seconds: float
    message: str


BEGIN, END, POINT = "begin", "end", "point"
START, GLOBAL_TIMER, SM, STOP = "start", "global timer", "SM", "stop"


@dataclass(frozen=True)
class Site:
    """A place of a kernel that writes its events down. edge: whether something begins or ends there, or happens. line:
    of the original PTX.
    """

    number: int
    what: str
    edge: str
    line: int


class Survey:
    """An archive whose files are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._files = _files(_unpacked(path))
        except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageProblem(f"{path}: cannot be read as the archive of a survey ({reason})") from None
        manifest = self.json(MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise UsageProblem(f"{path}: has no manifest of schema {SCHEMA}; it is not what `harness survey -o` writes")
        self.manifest = manifest

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Refuses the archive where one of its files is not of the form that a survey gives it."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            found = f"{type(error).__name__}: {error}"
            raise UsageProblem(
                f"{self.path}: a file of it is not of the form that `harness survey -o` writes ({found}); "
                "survey again, or take another copy"
            ) from error

    @property
    def parts(self) -> list[StepResult]:
        with self.reading():
            return [StepResult(**part) for part in self.manifest["parts"]]

    @property
    def gpu(self) -> dict[str, Any]:
        """Name, compute capability, multiprocessors and CUDA version; empty if the driver did not answer."""
        gpu = self.manifest.get("gpu")
        return gpu if isinstance(gpu, dict) else {}

    def names(self, suffix: str) -> list[str]:
        """Returns the files whose names end so."""
        return sorted(name for name in self._files if name.endswith(suffix))

    def text(self, name: str) -> str | None:
        """Returns a file as text, None if there is none."""
        return self._files[name].decode("utf-8", "replace") if name in self._files else None

    def json(self, name: str) -> Any:
        """Returns a file as JSON, None if there is none, or if it was being written when its part was ended."""
        text = self.text(name)
        try:
            return None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return None

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a .npz file, none if there is no such file."""
        if name not in self._files:
            return {}
        with self.reading():
            return _arrays(self._files[name])


def _unpacked(path: Path) -> bytes:
    """The bytes of the tar file. The check sum comes last, so all is unpacked before any of it is used."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("it is not a file")
    with gzip.open(path, "rb") as file:
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES >> 20} MiB")
    return found


def _files(tar: bytes) -> dict[str, bytes]:
    """The contents of the tar file's files, by their names."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as members:
        return {
            member.name.removeprefix("./"): file.read()
            for member in members.getmembers()
            if member.isreg() and not member.issparse() and (file := members.extractfile(member))
        }


def _arrays(npz: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(npz)) as file:
            if sum(info.file_size for info in file.infolist()) > MOST_BYTES:
                raise ValueError(f"arrays of more than {MOST_BYTES >> 20} MiB")
            return {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(file.read(name)), allow_pickle=False)
                for name in file.namelist()
            }
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, MemoryError) as error:
        raise ValueError(f"arrays that cannot be read ({error})") from None
