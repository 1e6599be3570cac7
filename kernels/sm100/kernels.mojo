"""The kernels by name."""
from ..common.config import GemmConfig
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7

comptime ARCH = "sm_100a"

comptime kernel[config: GemmConfig] = kernel5[config] if config.kernel == "kernel5" else (
    kernel6[config] if config.kernel == "kernel6" else kernel7[config]
)
"""The device function of a configuration; GemmConfig.error() knows which names exist."""
