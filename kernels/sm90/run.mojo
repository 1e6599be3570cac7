"""A CTA of sm_90a from start to end."""
from ..common.config import GemmConfig
from ..common.cta import Cta, Problem
from ..common.scheduler import TileScheduler
from ..own import kernel as own_kernel
from .cta import start
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7
from .kernel8 import kernel8


@inline(.always)
def run[config: GemmConfig](cta: Cta[config], problem: Problem):
    """Runs the kernel in one CTA. All threads call this."""
    var tiles = TileScheduler[config](cta, problem)
    if tiles.cluster_is_out_of_bounds():
        return  # the whole cluster, so no CTA waits for it
    start(cta, problem)
    tiles.find_first_grouped_tile()
    comptime if config.kernel.name == "kernel5":
        kernel5(cta, problem, tiles)
    elif config.kernel.name == "kernel6":
        kernel6(cta, problem, tiles)
    elif config.kernel.name == "kernel7":
        kernel7(cta, problem, tiles)
    elif config.kernel.name == "kernel8":
        kernel8(cta, problem, tiles)
    else:
        own_kernel(cta, problem, tiles)
