"""The child process that launches a kernel through MAX on the emulated GPU. Its one argument is a folder.

It finds there ``model.mef``'s place in ``request.json`` and the operands, A and B first, in ``operands.npz``, and
leaves C, and scale factors that it has, in ``outputs.npz``. Neither torch nor a GPU is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from max_models import scalar


def main(folder: Path) -> None:
    """Runs one request."""
    from max.driver import CPU, Accelerator, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    device = Accelerator()
    model = InferenceSession(devices=[device]).load(request["model"])

    def upload(bits: np.ndarray, dtype: str) -> Buffer:
        return Buffer.from_numpy(bits).view(getattr(DType, dtype), bits.shape).to(device)

    with np.load(folder / "operands.npz") as kept:
        operands = [upload(bits, dtype) for bits, dtype in zip(kept.values(), request["types"], strict=True)]
    outputs = []
    for _, dtype, shape in request["outputs"]:
        nan = np.full(shape, np.nan, np.dtype(dtype))  # what the kernel does not write, found as wrong
        outputs.append(upload(nan.view(f"u{nan.itemsize}"), "uint8" if nan.itemsize == 1 else dtype))
    numbers = [Buffer.from_numpy(scalar(number)) for number in request["numbers"]]
    model.execute(*outputs, *operands, *numbers)
    device.synchronize()
    found = {}
    for (name, _, _), output in zip(request["outputs"], outputs, strict=True):
        host = output.to(CPU())
        words = getattr(DType, f"uint{8 * host.dtype.size_in_bytes}")
        found[name] = host.view(words, host.shape).to_numpy()
    np.savez(folder / "outputs.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
