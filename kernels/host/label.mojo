"""Readable names of configurations, which are the entry names of the kernels."""
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from ..common.types import float_name


def label(config: LayerConfig) -> String:
    """Returns a name that contains everything in which two kernels can differ."""
    var gemm = config.gemm
    var tensor_core = String(t"{gemm.cta_group}cta") if gemm.has_tmem() else String("wgmma")
    if gemm.kernel.reads_directly:
        tensor_core = "mma"
    var blocks = "_blocks" if config.promotes() else ""
    var usual = config.c_dtype_name() == float_name(gemm.dtype)
    var out = String() if usual else String(t"_{config.c_dtype_name()}")
    var name = String(
        t"{gemm.kernel.name}_{config.dtype_name()}{blocks}{out}_{tensor_core}"
        t"_{gemm.mma_m}x{gemm.mma_n}x{config.block_k()}"
        t"_s{gemm.stages}_c{gemm.cluster_m}x{gemm.cluster_n}_e{gemm.epilogue_width}"
        t"{'' if gemm.multicast else '_nomulticast'}"
        t"{'' if config.layout == 'nt' else '_'}{'' if config.layout == 'nt' else config.layout}"
    )
    if not gemm.kernel.is_persistent and not gemm.kernel.fuses:
        return name^
    if gemm.kernel.is_persistent:
        name += String(t"_{gemm.scheduler}_g{gemm.raster_group}_a{config.accumulators}")
    name += String(t"_n{config.sms}") if gemm.fills_sms() else String()
    name += String(t"_d{config.clc_depth}") if gemm.cancels_clusters() else String()
    name += "_pp" if config.ping_pong else ""
    name += String(t"_k{config.split_k}") if config.split_k > 1 else String()
    name += "_swapped" if config.swapped else ""
    name += "_masked" if config.masked else "_grouped" if config.grouped else ""
    return name if not config.is_fused() else name + "_" + config.fusion().name.text().replace("-", "_")
