"""Keeps all data of a wrong result for later analysis."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from emugpu.errors import CannotRun
from emugpu.files import whole_file, write_text
from harness.run.runner import Outcome


def dump(outcome: Outcome, folder: Path) -> Path:
    """Writes the files of a wrong result into a folder named after the kernel. Returns the folder.

    ``a.npy`` [M, K], ``b.npy`` [N, K] and ``output.npy`` [M, N] are f32, which represents the elements exactly;
    ``reference.npy`` [M, N] is not rounded. The operands of a fused epilogue follow (``bias.npy``, ``residual.npy``,
    ``alpha.npy``, ``beta.npy``), and ``kernel.ptx``, ``plan.json``, ``record.json``.
    """
    arrays = outcome.arrays
    assert arrays is not None, "only a wrong result has them"
    place = folder / outcome.request.config.kernel
    numbers = {
        "a": arrays.inputs.a.astype(np.float32),
        "b": arrays.inputs.b.astype(np.float32),
        "output": arrays.output.astype(np.float32),
        "reference": arrays.reference.values,
        **{name: np.asarray(value, np.float32) for name, value in arrays.inputs.given.items()},
    }
    texts = {
        "kernel.ptx": outcome.artifact.ptx,
        "plan.json": json.dumps(json.loads(outcome.artifact.plan_json(outcome.request.shape)), indent=2) + "\n",
        "record.json": json.dumps(outcome.record, indent=2) + "\n",
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, values in numbers.items():
            with whole_file(place / f"{name}.npy") as file:
                np.save(file, values)
    except OSError as error:
        raise CannotRun(f"cannot write to {place}: {error.strerror}") from error
    for name, text in texts.items():
        write_text(place / name, text)
    return place
