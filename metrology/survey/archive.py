"""Writes a survey's archive, which `harness.timing.survey_archive` reads."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.errors import CannotRun
from harness.files import whole_file
from harness.timing.survey_archive import MANIFEST, SCHEMA, StepResult

DONE, FAILED, TIMED_OUT, SKIPPED = "done", "failed", "timed out", "skipped"


def write(path: Path, folder: Path, about: dict[str, Any], ended: list[StepResult]) -> None:
    """Packs all of ``folder`` and a manifest. The file is whole, or what was there before stays."""
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
