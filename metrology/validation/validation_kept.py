"""The predictions of the runs of the recording, kept beside it: making them takes a minute, and every kernel compiled.

``python -m metrology.validation.validate --write`` writes them; `harness report` shows them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from harness.errors import CannotRun
from harness.paths import ROOT
from harness.timing.constants import Gpu
from metrology.validation.validation import RECORDING, Row, read_recording

PREDICTED = ROOT / "results" / "predicted-h200-timing.json"
WHAT = (
    "predicted by the timing model (docs/timing.md), not measured: cycles of the runs of nvidia-h200-timing.json, the "
    "cycles in which an average SM's tensor core works, bytes read from DRAM, bytes asked of L2; written by "
    "python -m metrology.validation.validate --write"
)
PREDICTED_KEYS = ("cycles", "tensor", "dram", "l2")
"""Of `Row`, beside whether it is whole."""


def as_json(rows: Sequence[Row], gpu: Gpu) -> str:
    """One run a line."""
    keys = (*PREDICTED_KEYS, "whole")
    kept = ({"name": row.measured.name, **{key: getattr(row, key) for key in keys}} for row in rows)
    runs = ",\n".join(f"  {json.dumps(run)}" for run in kept)
    about = {"what": WHAT, "status": "predicted", "constants": constants_digest(gpu)}
    return f'{json.dumps(about, indent=1)[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def read_predictions(gpu: Gpu, path: Path = PREDICTED, recording: Path = RECORDING) -> tuple[list[Row], bool]:
    """The rows, and whether they are of the constants that the model has now.

    Raises CannotRun if a file is missing or is not what is written here.
    """
    if not path.is_file() or not recording.is_file():
        raise CannotRun(f"{(recording if path.is_file() else path).name} is not there; it is part of a checkout")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = {run["name"]: run for run in data["runs"]}
        rows = [
            Row(
                run,
                **{key: float(found[run.name][key]) for key in PREDICTED_KEYS},
                whole=bool(found[run.name]["whole"]),
            )
            for run in read_recording(recording)
            if run.name in found
        ]
        current = data["constants"] == constants_digest(gpu)
    except (ValueError, KeyError, TypeError) as error:
        raise CannotRun(
            f"{path.name} cannot be read ({error!r}); `python -m metrology.validation.validate --write` makes it anew"
        ) from None
    if not rows:
        raise CannotRun(
            f"{path.name} has no run of {recording.name}; `python -m metrology.validation.validate --write` makes it"
        )
    return rows, current


def constants_digest(gpu: Gpu) -> str:
    """Changes with any value of a GPU's constants file but the stated error, which follows from the predictions."""
    constants = gpu.constants.items()
    numbers = sorted((name, one.value) for name, one in constants if not name.startswith("model."))
    values = (gpu.gpcs, gpu.spare, numbers)
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()
