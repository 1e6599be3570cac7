"""A CTA of sm_100a from start to end."""
from ..common.config import GemmConfig
from ..common.cta import Cta
from .cta import finish, start
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7


@inline(.always)
def run[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, c_map: UInt64, k_iterations: UInt32):
    start(cta, a_map, b_map, c_map)
    comptime if config.kernel == "kernel5":
        kernel5(cta, a_map, b_map, c_map, k_iterations)
    elif config.kernel == "kernel6":
        kernel6(cta, a_map, b_map, c_map, k_iterations)
    else:
        comptime assert config.kernel == "kernel7"
        kernel7(cta, a_map, b_map, c_map, k_iterations)
    finish(cta)
