"""The child process that launches a kernel through MAX on the emulated GPU. Its one argument is a folder.

It finds there ``model.mef``'s place in ``request.json`` and the operands, A and B first, in ``operands.npz``, and
leaves C in ``c.npy`` and what it learned of the device in ``device.json``. Neither torch nor a GPU is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

NAN = {"bf16": np.uint16(0x7FC0), "fp16": np.uint16(0x7E00), "f32": np.uint32(0x7FC00000)}
"""The bits of a NaN, which is in C before the launch: what the kernel does not write is found as wrong."""


def main(folder: Path) -> None:
    """Runs one request."""
    from max.driver import CPU, Accelerator, Buffer
    from max.dtype import DType
    from max.engine import InferenceSession

    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    device = Accelerator()
    about = {"api": device.api, "architecture": device.architecture_name}
    (folder / "device.json").write_text(json.dumps(about), encoding="utf-8")
    model = InferenceSession(devices=[device]).load(request["model"])
    types = {"bf16": DType.bfloat16, "fp16": DType.float16, "f32": DType.float32}
    dtype, out_dtype = request["dtype"], request["out_dtype"]

    def upload(bits: np.ndarray, dtype: str) -> Buffer:
        return Buffer.from_numpy(bits).view(types.get(dtype, DType.uint8), bits.shape).to(device)

    with np.load(folder / "operands.npz") as kept:
        operands = list(kept.values())
    c = upload(np.full([len(operand) for operand in operands[:2]], NAN[out_dtype]), out_dtype)
    alpha = [] if request["alpha"] is None else [Buffer.from_numpy(np.array(request["alpha"], np.float32))]
    model.execute(c, *(upload(operand, dtype) for operand in operands), *alpha)
    device.synchronize()
    host = c.to(CPU())
    bits = DType.uint32 if out_dtype == "f32" else DType.uint16
    np.save(folder / "c.npy", host.view(bits, host.shape).to_numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
