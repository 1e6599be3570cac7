"""Readable names of configurations, used as the kernels' entry names."""
from .config import GemmConfig


def label(config: GemmConfig) -> String:
    """Everything in which two kernels can differ."""
    var tensor_core = String(config.cta_group, "cta") if config.has_tmem() else String("wgmma")
    return String(
        config.kernel,
        "_",
        config.dtype_name(),
        "_",
        tensor_core,
        "_",
        config.mma_m,
        "x",
        config.mma_n,
        "x",
        config.block_k,
        "_s",
        config.stages,
        "_c",
        config.cluster_m,
        "x",
        config.cluster_n,
        "_e",
        config.epilogue_width,
        "" if config.multicast else "_nomulticast",
        schedule_label(config) if config.is_persistent() else String(),
    )


def schedule_label(config: GemmConfig) -> String:
    """In which order its clusters take tiles."""
    return String(
        "_",
        config.scheduler,
        "_g",
        config.raster_group,
        "_a",
        config.accumulators,
        String("_n", config.sms) if config.fills_sms() else String(),
        String("_d", config.clc_depth) if config.cancels_clusters() else String(),
        "_pp" if config.ping_pong else "",
    )
