"""The process that compiles ops with MAX, all of them at once, and runs them on an emulated GPU.

A compilation of thirty graphs takes little longer than one of a single graph, but what ends it ends it for all.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from emugpu import emulated_gpu
from tests.nightly.max_board.ops import OPS, Array

TIMEOUT = 120.0
"""Seconds of one launch."""


COMPILED = "ops are compiled"
"""What it says then."""


def main(gpu: str, answers: Path, names: list[str], left: dict[str, list[int]]) -> None:
    """Compiles the ops of these names, and adds a line of JSON to the answers for each op and number of rows left."""
    begun = time.perf_counter()
    with emulated_gpu(gpu):
        board = Board(names)
    print(f"{len(names)} {COMPILED}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    for name, several in left.items():
        for rows in several:
            answer = {"gpu": gpu, "op": name, "rows": rows, **board.run(gpu, name, rows)}
            with answers.open("a", encoding="utf-8") as file:
                file.write(json.dumps(answer) + "\n")
            if board.failed:
                return  # what MAX does next would have the same error


class Board:
    """Compiled models, by op. failed: MAX has met an error of a launch."""

    def __init__(self, names: list[str]) -> None:
        from max.driver import Accelerator
        from max.dtype import DType
        from max.engine import InferenceSession
        from max.graph import DeviceRef, Graph, Module, TensorType, ops

        self.failed = False
        self._device = Accelerator()
        where, module = DeviceRef.from_device(self._device), Module()
        for number, name in enumerate(names):
            types = [
                TensorType(DType[i.dtype], ["rows" if size < 0 else size for size in i.shape], where)
                for i in OPS[name].inputs
            ]
            with Graph(f"op_{number}", input_types=types, module=module) as graph:
                graph.output(OPS[name].build(ops, *(value.tensor for value in graph.inputs)))
        session = InferenceSession(devices=[self._device])
        models = session.load_all(module)
        self._models = {name: models[f"op_{number}"] for number, name in enumerate(names)}

    def run(self, gpu: str, name: str, rows: int) -> dict[str, Any]:
        """Returns the verdict on an op, for so many rows."""
        op, dice, begun = OPS[name], np.random.default_rng(rows), time.perf_counter()
        values = [given.values(rows, dice) for given in op.inputs]
        exact = [v if v.dtype.kind in "iu" else v.astype(np.float64) for v in values]
        failure, worst = "", None
        with emulated_gpu(gpu, check=True, timeout=TIMEOUT) as section:
            try:
                got = self._execute(name, values)
            except Exception as error:  # of any kind: it is what MAX makes of it
                failure = f"MAX: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                self.failed = True
            else:
                failure, worst = compare(got, op.wanted(*exact), op.within)
            verdict = section.end(failure)
        kernels = sorted({launch["kernel"] for launch in section.launches})
        return {
            "verdict": verdict.word, "reasons": [list(reason) for reason in verdict.reasons], "worst": worst,
            "kernels": kernels, "launches": verdict.launches, "seconds": round(time.perf_counter() - begun, 1),
        }  # fmt: skip

    def _execute(self, name: str, values: list[Array]) -> Array:
        from max.driver import CPU, Buffer
        from max.dtype import DType

        given = [
            Buffer.from_numpy(v.view(np.uint16)).view(DType.bfloat16, v.shape)
            if v.dtype == ml_dtypes.bfloat16
            else Buffer.from_numpy(v)
            for v in values
        ]
        out = self._models[name].execute(*(buffer.to(self._device) for buffer in given))[0].to(CPU())
        if out.dtype != DType.bfloat16:
            return out.to_numpy()
        return out.view(DType.uint16, out.shape).to_numpy().view(ml_dtypes.bfloat16)


def compare(got: Array, wanted: Array, within: float) -> tuple[str, float | None]:
    """Returns what is wrong, and the largest difference as a part of 1 + the value."""
    if got.shape != wanted.shape:
        return f"the result has shape {got.shape}, not {wanted.shape}", None
    wanted = wanted.astype(np.float64)
    off = np.abs(got.astype(np.float64) - wanted) / (1 + np.abs(wanted))
    wrong = int((~(off <= within)).sum())
    return (f"{wrong} of {off.size} elements are wrong" if wrong else ""), float(off.max())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *json.loads(sys.argv[3]))
