"""Readable names of configurations, which are the entry names of the kernels."""
from ..common.config import GemmConfig
from ..common.types import *
from ..common.epilogues import *


def label(config: GemmConfig) -> String:
    """Returns a name that contains everything in which two kernels can differ."""
    var tensor_core = String(t"{config.cta_group}cta") if config.has_tmem() else String("wgmma")
    var blocks = "_blocks" if config.promotes() else ""
    var out = String() if config.out_dtype == config.dtype else String(t"_{config.c_dtype_name()}")
    var name = String(
        t"{config.kernel.name}_{config.dtype_name()}{blocks}{out}_{tensor_core}"
        t"_{config.mma_m}x{config.mma_n}x{config.block_k}"
        t"_s{config.stages}_c{config.cluster_m}x{config.cluster_n}_e{config.epilogue_width}"
        t"{'' if config.multicast else '_nomulticast'}"
        t"{'' if config.layout == 'nt' else '_'}{'' if config.layout == 'nt' else config.layout}"
    )
    if not config.kernel.is_persistent:
        return name^
    name += String(t"_{config.scheduler}_g{config.raster_group}_a{config.accumulators}")
    name += String(t"_n{config.sms}") if config.fills_sms() else String()
    name += String(t"_d{config.clc_depth}") if config.cancels_clusters() else String()
    name += "_pp" if config.ping_pong else ""
    name += String(t"_k{config.split_k}") if config.splits_k() else String()
    name += "_swapped" if config.swapped else ""
    name += "_masked" if config.masked else "_grouped" if config.grouped else ""
    return name if not config.is_fused() else name + "_" + config.fusion().name.text().replace("-", "_")
