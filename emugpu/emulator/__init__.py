"""An emulated GPU that runs compiler-emitted PTX for sm_100a and sm_90a, exactly.

Use it on any PTX file:

    from emugpu.emulator import Device, Module, TensorMap

    device = Device()                                   # or Device(schedule="random", seed=7)
    a, b = device.upload(a_array), device.upload(b_array)
    c = device.alloc(m * n * 2)
    a_map = TensorMap.tiled(a, "bf16", shape=(m, k), box=(128, 64), swizzle="128B")
    ...
    result = device.launch(Module.from_file("kernel.ptx"), grid=(4, 2), cluster=(2, 1), block=192,
                           dynamic_smem=200_000, arguments=[a_map, b_map, c_map, k // 64])
    print(result.counters, device.download(c, "bfloat16", (m, n)))

Memory starts poisoned. Behaviour that the hardware leaves undefined stops the run with a Fault that names the PTX line,
the instruction, the CTA and the warp. A hang is detected exactly and explained (Deadlock). Nothing here measures the
time of a GPU.
"""

from emugpu.emulator.device import Device, LaunchResult, Module
from emugpu.emulator.errors import (
    Deadlock,
    EmulatorError,
    Fault,
    Interrupted,
    LaunchError,
    LimitExceeded,
    Livelock,
    PtxSyntaxError,
)
from emugpu.emulator.machine.counters import Counters
from emugpu.emulator.machine.kernel_launch import Region
from emugpu.emulator.memory.swizzle import Swizzle
from emugpu.emulator.memory.tensor_map import Im2colMap, TensorMap
from emugpu.emulator.rules import RULES, RuleWarning

__all__ = [
    "RULES", "Counters", "Deadlock", "Device", "EmulatorError", "Fault", "Im2colMap", "Interrupted", "LaunchError",
    "LaunchResult", "LimitExceeded", "Livelock", "Module", "PtxSyntaxError", "Region", "RuleWarning", "Swizzle",
    "TensorMap",
]  # fmt: skip
