"""MAX's own matmul: graph, compilation, launch and check by this program.

Arguments: M N K, and a file for the compiled model if it is to be kept.
"""

import sys

import ml_dtypes
import numpy as np
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops

m, n, k = map(int, sys.argv[1:4])
device = Accelerator()
where = DeviceRef.from_device(device)
types = [TensorType(DType.bfloat16, ["m", k], where), TensorType(DType.bfloat16, [n, k], where)]
with Graph("product", input_types=types) as graph:
    a, b = (value.tensor for value in graph.inputs)
    graph.output(ops.matmul(a, ops.transpose(b, 0, 1)))
session = InferenceSession(devices=[device])
compiled = session.compile(graph)
if len(sys.argv) > 4:
    compiled.export_mef(sys.argv[4])
model = session.init(compiled)


def upload(values):
    bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return Buffer.from_numpy(bits).view(DType.bfloat16, bits.shape).to(device)


a = ((np.arange(m * k) * 37 % 17).reshape(m, k) - 8).astype(np.float32)
b = ((np.arange(n * k) * 53 % 19).reshape(n, k) - 9).astype(np.float32)
c = model.execute(upload(a), upload(b))[0].to(CPU())
bits = c.view(DType.uint16, c.shape).to_numpy()
wrong = int((bits != (a @ b.T).astype(ml_dtypes.bfloat16).view(np.uint16)).sum())
print(f"MAX matmul of {m} x {n} x {k}: {wrong} wrong")
raise SystemExit(wrong != 0)
