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
from harness.build.config import KernelConfig
from harness.problem import element_type
from harness.run.model import MAX_DTYPES, OPERATION, op_parameters

asked = [(KernelConfig.from_json(text), shape) for text, shape in json.loads(sys.argv[1])]
device = Accelerator()
where = DeviceRef.from_device(device)


def types(config, m, n, k):
    dtype = getattr(DType, MAX_DTYPES[config.dtype])
    return BufferType(dtype, [m, n], where), TensorType(dtype, [m, k], where), TensorType(dtype, [n, k], where)


inputs = [each for config, shape in asked for each in types(config, *shape)]
with Graph("series", input_types=inputs, custom_extensions=[paths.kernels_dir()]) as graph:
    for i, (config, _) in enumerate(asked):
        c, a, b = graph.inputs[3 * i : 3 * i + 3]
        ops.inplace_custom(OPERATION, where, [c.buffer, a.tensor, b.tensor], parameters=op_parameters(config))
    graph.output()
model = InferenceSession(devices=[device]).load(graph)


def upload(values, config):
    bits = values.astype(element_type(config.dtype).numpy).view(np.uint16)
    return Buffer.from_numpy(bits).view(getattr(DType, MAX_DTYPES[config.dtype]), bits.shape).to(device)


buffers, products = [], []
for config, (m, n, k) in asked:
    a = ((np.arange(m * k) * 37 % 17).reshape(m, k) - 8).astype(np.float32)
    b = ((np.arange(n * k) * 53 % 19).reshape(n, k) - 9).astype(np.float32)
    products.append((a @ b.T).astype(element_type(config.dtype).numpy).view(np.uint16))
    buffers += [upload(values, config) for values in (np.full((m, n), np.nan, np.float32), a, b)]
model.execute(*buffers)
device.synchronize()
for i, (config, _) in enumerate(asked):
    host = buffers[3 * i].to(CPU())
    wrong = int((host.view(DType.uint16, host.shape).to_numpy() != products[i]).sum())
    print(f"{config.kernel}: {wrong} wrong")
