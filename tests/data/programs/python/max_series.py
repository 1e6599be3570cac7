"""Several kernels as custom ops of one MAX graph, compiled, launched and checked by this program.

Argument: a JSON list of [configuration as `KernelConfig.to_json` has it, [M, N, K]].
"""

import json
import sys

import numpy as np
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import BufferType, DeviceRef, Graph, TensorType, ops

from harness import paths
from harness.compile.config import KernelConfig
from harness.launch.max_ops import op_parameters, operation
from harness.problem import OUT_TYPES

asked = [(KernelConfig.from_json(text), shape) for text, shape in json.loads(sys.argv[1])]
device = Accelerator()
where = DeviceRef.from_device(device)


def types(config, m, n, k):
    dtype, out = (getattr(DType, OUT_TYPES[name].numpy.name) for name in (config.dtype, config.out_dtype))
    return BufferType(out, [m, n], where), TensorType(dtype, [m, k], where), TensorType(dtype, [n, k], where)


inputs = [each for config, shape in asked for each in types(config, *shape)]
with Graph("series", input_types=inputs, custom_extensions=[paths.kernels_dir()]) as graph:
    for i, (config, _) in enumerate(asked):
        c, a, b = graph.inputs[3 * i : 3 * i + 3]
        ops.inplace_custom(operation(config), where, [c.buffer, a.tensor, b.tensor], parameters=op_parameters(config))
    graph.output()
model = InferenceSession(devices=[device]).load(graph)


def bits_of(values, dtype):
    return np.ascontiguousarray(values.astype(OUT_TYPES[dtype].numpy)).view(f"u{OUT_TYPES[dtype].bytes}")


def upload(values, dtype):
    bits = bits_of(values, dtype)
    return Buffer.from_numpy(bits).view(getattr(DType, OUT_TYPES[dtype].numpy.name), bits.shape).to(device)


buffers, products = [], []
for config, (m, n, k) in asked:
    a = ((np.arange(m * k) * 37 % 17).reshape(m, k) - 8).astype(np.float32)
    b = ((np.arange(n * k) * 53 % 19).reshape(n, k) - 9).astype(np.float32)
    products.append(bits_of(a @ b.T, config.out_dtype))
    buffers.append(upload(np.full((m, n), np.nan, np.float32), config.out_dtype))
    buffers += [upload(values, config.dtype) for values in (a, b)]
model.execute(*buffers)
device.synchronize()
for i, (config, _) in enumerate(asked):
    host = buffers[3 * i].to(CPU())
    bits = DType.uint32 if config.out_dtype == "f32" else DType.uint16
    wrong = int((host.view(bits, host.shape).to_numpy() != products[i]).sum())
    print(f"{config.kernel}: {wrong} wrong")
