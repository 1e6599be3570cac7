"""The child process that launches a kernel through MAX on the emulated GPU. Its one argument is a folder.

It finds there ``model.mef``'s place in ``request.json`` and the operands, A and B first, in ``operands.npz``, and
leaves C in ``c.npy``. Neither torch nor a GPU is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from harness.problem import OUT_TYPES
from harness.run.model import scalar


def main(folder: Path) -> None:
    """Runs one request."""
    from max.driver import CPU, Accelerator, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    device = Accelerator()
    model = InferenceSession(devices=[device]).load(request["model"])
    out = OUT_TYPES[request["out_dtype"]].numpy

    def upload(bits: np.ndarray, dtype: str) -> Buffer:
        return Buffer.from_numpy(bits).view(getattr(DType, dtype), bits.shape).to(device)

    with np.load(folder / "operands.npz") as kept:
        operands = [upload(bits, dtype) for bits, dtype in zip(kept.values(), request["types"], strict=True)]
    words = np.uint32 if out.itemsize == 4 else np.uint16
    # What the kernel does not write stays NaN, and is found as wrong.
    c = upload(np.full(request["output"], np.nan, out).view(words), out.name)
    numbers = [Buffer.from_numpy(scalar(number)) for number in request["numbers"]]
    model.execute(c, *operands, *numbers)
    device.synchronize()
    host = c.to(CPU())
    np.save(folder / "c.npy", host.view(getattr(DType, words.__name__), host.shape).to_numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
