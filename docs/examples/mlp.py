"""The MLP block of a transformer in two launches of kernel 8, through MAX:

    h = silu(x . gate^T) * (x . up^T)      one GEMM with the fused epilogue swiglu; h [tokens, ffn]
    y = h . down^T + x                     one GEMM with the fused epilogue residual

    emugpu exec --gpu h200 -- python docs/examples/mlp.py       # no GPU: MAX launches on the emulated one

All of x, h and y is bf16. y is held against float64 without a rounding in between: an element may be off by what
rounding h and y, and adding in f32, can make of it.
"""

import ml_dtypes
import numpy as np
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

from harness import paths
from harness.compile.config import make_config
from harness.epilogues import EPILOGUES
from harness.launch.max_ops import op_parameters, operation
from harness.problem import BF16, Inputs
from harness.validation import allowed_error, compute_reference

TOKENS, HIDDEN, FFN = 96, 256, 384

rng = np.random.default_rng(0)


def draw(rows: int, columns: int) -> np.ndarray:
    return (rng.standard_normal((rows, columns)) / columns**0.5).astype(ml_dtypes.bfloat16)


x, gate, up, down = draw(TOKENS, HIDDEN), draw(FFN, HIDDEN), draw(FFN, HIDDEN), draw(HIDDEN, FFN)
# Of each 16 rows the first 8 are gates, the last 8 what they gate.
gate_up = np.stack([w.reshape(-1, 8, HIDDEN) for w in (gate, up)], axis=1).reshape(2 * FFN, HIDDEN)

# ---- on the GPU ----
device = Accelerator()
where = DeviceRef.from_device(device)


def shaped(kind: type, *shape: int) -> BufferType | TensorType:
    return kind(DType.bfloat16, list(shape), where)


inputs = [
    shaped(BufferType, TOKENS, HIDDEN),
    shaped(BufferType, TOKENS, FFN),
    shaped(TensorType, TOKENS, HIDDEN),
    shaped(TensorType, 2 * FFN, HIDDEN),
    shaped(TensorType, HIDDEN, FFN),
    shaped(TensorType, 1),
]
arch = {"9": "sm_90a", "1": "sm_100a"}[device.architecture_name.removeprefix("sm_")[0]]
with Graph("mlp", input_types=inputs, custom_extensions=[paths.kernels_dir()]) as graph:
    y, h, tokens, into, out_of, nothing = (each.buffer if i < 2 else each.tensor for i, each in enumerate(graph.inputs))
    one = ops.constant(1.0, DType.float32, DeviceRef.CPU())
    for epilogue, c, a, b in (("swiglu", h, tokens, into), ("residual", y, h, out_of)):
        config = make_config("kernel8", arch=arch, cluster=(2, 1), epilogue=epilogue)
        operand = a if a is tokens else ops.buffer_load(a)
        values = [c, operand, b, nothing, tokens, one, one]
        ops.inplace_custom(operation(config), where, values, parameters=op_parameters(config))
    graph.output()
model = InferenceSession(devices=[device]).load(graph)


def upload(values: np.ndarray) -> Buffer:
    bits = np.ascontiguousarray(values).view(np.uint16)
    return Buffer.from_numpy(bits).view(DType.bfloat16, bits.shape).to(device)


result = upload(np.full((TOKENS, HIDDEN), np.nan, ml_dtypes.bfloat16))
between = upload(np.full((TOKENS, FFN), np.nan, ml_dtypes.bfloat16))
model.execute(result, between, *map(upload, (x, gate_up, down, np.zeros(1, ml_dtypes.bfloat16))))
device.synchronize()
host = result.to(CPU())
got = host.view(DType.uint16, host.shape).to_numpy().view(ml_dtypes.bfloat16).astype(np.float64)

# ---- in float64 ----
x64, gate64, up64, down64 = (each.astype(np.float64) for each in (x, gate, up, down))
gated = x64 @ gate64.T
expected_h = gated / (1 + np.exp(-gated)) * (x64 @ up64.T)
expected = expected_h @ down64.T + x64
of_h = allowed_error(compute_reference(Inputs(x, gate_up, "normal", 0, epilogue=EPILOGUES["swiglu"])), BF16)
rounded_h = expected_h.astype(ml_dtypes.bfloat16)
of_y = allowed_error(compute_reference(Inputs(rounded_h, down, "normal", 0)), BF16)
allowed = of_h @ np.abs(down64).T + of_y + BF16.unit_roundoff * (np.abs(expected) + np.abs(x64))
error = np.abs(got - expected)
wrong = int((~(error <= allowed)).sum())
print(f"y[{TOKENS},{HIDDEN}]: {wrong} wrong; the largest error is {(error / allowed).max():.2f} of what is allowed")
raise SystemExit(wrong > 0)
