"""Calls the kernel of a configuration of sm_90a after `start`, with the tile or tiles of the CTA."""
from ..common.config import GemmConfig
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
from .start import start
from max.gpu import block_idx, grid_dim


@inline(.always)
def cluster_is_out_of_bounds[config: GemmConfig](problem: Problem) -> Bool:
    """No CTA of the cluster has a row of C: if the bands do not divide C, the last one reaches beyond it."""
    comptime if config.kernel.is_persistent or config.band_m == 0:
        return False
    comptime cluster_m = UInt32(config.cluster_m)
    var first = UInt32(block_idx.z) * UInt32(grid_dim.x) + UInt32(block_idx.x) // cluster_m * cluster_m
    return Int32(first) * Int32(config.cta_m()) >= Int32(problem.m)


@inline(.always)
def run[config: LayerConfig](cta: Cta[config.gemm], problem: Problem, layer: Layer):
    """Runs the kernel in one CTA. All threads call this."""
    comptime kernel = config.gemm.kernel
    comptime if kernel.name == "kernel8":
        var tiles = LayerTiles[config](cta, problem, LayerOrder[config](problem, layer.groups))
        start(cta, problem)
        tiles.find_first_tile()
        kernel8(cta, problem, layer, tiles)
    else:
        var tiles = TileScheduler[config.gemm](cta, problem, RasterOrder[config.gemm](problem))
        if cluster_is_out_of_bounds[config.gemm](problem):
            return  # the whole cluster, so no CTA waits for it
        start(cta, problem)
        comptime if kernel.name == "kernel5":
            kernel5(cta, problem, tiles.tile)
        elif kernel.name == "kernel6":
            kernel6(cta, problem, tiles.tile)
        elif kernel.name == "kernel7":
            kernel7(cta, problem, tiles.tile)
        else:
            own_kernel(cta, problem, tiles)
