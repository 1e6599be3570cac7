"""Runs a micro-benchmark on the emulated GPU: that it ends and writes its words, not how long it takes."""

from __future__ import annotations

import numpy as np

from harness.emulator import Device, Module, TensorMap
from metrology.survey.micro.benchmark import COLUMNS, Argument, Benchmark, Clocks, Counter, Launch, Tensor

ROWS = 512
"""Rows of the tensor, whatever the launch asks for."""


def run(benchmark: Benchmark, launch: Launch) -> Clocks:
    """The clocks of one launch, in the emulator's steps."""
    device = Device()
    tensor = device.upload(np.zeros((ROWS, COLUMNS), np.uint16), "tensor")
    out = device.upload(np.zeros((launch.grid, launch.words), np.uint64), "out")
    counter = device.upload(np.zeros(2, np.uint32), "counter")

    def value(argument: Argument) -> object:
        if isinstance(argument, Tensor):
            return TensorMap.tiled(
                tensor, "bf16", (ROWS, COLUMNS), (argument.box_rows, argument.box_columns), argument.swizzle
            )
        if isinstance(argument, int):
            rows = {a.rows for a in launch.arguments if isinstance(a, Tensor)}
            return np.uint32(ROWS if argument in rows else argument)
        return counter if isinstance(argument, Counter) else out

    device.launch(
        Module.from_text(benchmark.texts[launch.ptx]),
        grid=(launch.grid, 1),
        cluster=(launch.cluster, 1),
        block=launch.threads,
        dynamic_smem=launch.shared,
        arguments=[value(argument) for argument in launch.arguments],
    )
    return device.download(out, np.dtype(np.uint64), (launch.grid, launch.words))
