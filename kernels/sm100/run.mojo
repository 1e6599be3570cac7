"""Calls the kernel of a configuration of sm_100a between `start` and `finish`, with the tile or tiles of the CTA."""
from ..common.cta import Cta, Problem
from ..common.layer import Layer
from ..common.layer_config import LayerConfig
from ..common.layer_order import LayerOrder, LayerTiles
from ..common.scheduler import RasterOrder, TileScheduler
from ..own import kernel as own_kernel
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7
from .kernel8 import kernel8
from .kernel9 import kernel9
from .start_and_finish import finish, start


@inline(.always)
def run[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer):
    """Runs the kernel in one CTA. All threads call this."""
    comptime kernel = config.gemm.kernel
    comptime if kernel.name == "kernel8" or kernel.name == "kernel9":
        var tiles = LayerTiles[config](cta, problem, LayerOrder[config](problem, layer.groups))
        start(cta, problem)
        tiles.find_first_tile()
        comptime if kernel.name == "kernel8":
            kernel8(cta, problem, layer, tiles)
        else:
            kernel9(cta, problem, layer, tiles)
    else:
        var tiles = TileScheduler[config.gemm](cta, problem, RasterOrder[config.gemm](problem))
        start(cta, problem)
        comptime if kernel.name == "kernel5":
            kernel5(cta, problem, tiles.tile)
        elif kernel.name == "kernel6":
            kernel6(cta, problem, tiles.tile)
        elif kernel.name == "kernel7":
            kernel7(cta, problem, tiles.tile)
        else:
            own_kernel(cta, problem, tiles)
    finish(cta)
