"""A survey's archive: a .tar.gz with what each part left, and a manifest that says how each of them ended.

manifest.json    {"schema", "time", "host", "gpu", "parts": [{"part", "what", "status", "seconds", "message"}]}
logs/PART.txt    what it printed
...              what it wrote: see `metrology.survey.parts`
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import CannotRun, UsageProblem
from harness.files import whole_file

SCHEMA = 1
MANIFEST = "manifest.json"
DONE, FAILED, TIMED_OUT, SKIPPED = "done", "failed", "timed out", "skipped"


@dataclass(frozen=True)
class Ended:
    """How a part ended. message: the last line it printed, or why it did not run."""

    part: str
    what: str
    status: str
    seconds: float
    message: str


def write(path: Path, folder: Path, about: dict[str, Any], ended: list[Ended]) -> None:
    """All of ``folder`` and a manifest. The file is whole, or what was there before stays."""
    manifest = {"schema": SCHEMA, **about, "parts": [asdict(part) for part in ended]}
    try:
        with whole_file(path.resolve()) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            text = json.dumps(manifest, indent=1).encode()
            entry = tarfile.TarInfo(MANIFEST)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
            for each in sorted(folder.rglob("*")):
                if each.is_file():
                    tar.add(each, str(each.relative_to(folder)))
    except OSError as error:
        raise CannotRun(f"cannot write {path}: {error.strerror or error}") from error


def _files(tar: bytes) -> dict[str, bytes]:
    """By name. All was unpacked before, as its check sum comes last: tarfile ends where it finds no next file."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as members:
        return {
            member.name.removeprefix("./"): file.read()
            for member in members.getmembers()
            if member.isfile() and (file := members.extractfile(member))
        }


class Survey:
    """An archive that is read. Nothing of it is written to the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._files = _files(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageProblem(f"{path}: cannot be read as the archive of a survey ({reason})") from None
        manifest = self.json(MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise UsageProblem(f"{path}: has no manifest of schema {SCHEMA}; it is not what `harness survey -o` writes")
        self.manifest = manifest

    @property
    def parts(self) -> list[Ended]:
        return [Ended(**part) for part in self.manifest["parts"]]

    @property
    def gpu(self) -> dict[str, Any]:
        """Name, compute capability, multiprocessors, cuda; empty if the driver did not answer."""
        return self.manifest.get("gpu") or {}

    def names(self, suffix: str) -> list[str]:
        return sorted(name for name in self._files if name.endswith(suffix))

    def text(self, name: str) -> str | None:
        """A file of it, None if there is none."""
        return self._files[name].decode("utf-8", "replace") if name in self._files else None

    def json(self, name: str) -> Any:
        """A file of it, None if there is none. A file that was being written when its part was ended counts as none."""
        text = self.text(name)
        try:
            return None if text is None else json.loads(text)
        except ValueError:
            return None

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a .npz file, none if there is none."""
        if name not in self._files:
            return {}
        with np.load(io.BytesIO(self._files[name])) as found:
            return {key: found[key] for key in found.files}
