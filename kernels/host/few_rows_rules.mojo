"""Rules for the kernel that reads global memory directly (common/few_rows.mojo)."""
from ..common.epilogues import UNKNOWN_EPILOGUE, epilogue_names
from ..common.layer_config import LayerConfig
from ..common.tile import *
from .config_error import ConfigError, check_only


def check_few_rows(config: LayerConfig) raises ConfigError:
    """Checks all but the type of A and B."""
    var name = config.gemm.kernel.name
    var shown = String(t"mma shape {config.gemm.mma_m}x{config.gemm.mma_n}")
    if config.epilogue == UNKNOWN_EPILOGUE:
        raise ConfigError("epilogue", "epilogue: use one of " + String(", ").join(epilogue_names()))
    var multiple = 64 // config.fusion().results  # of a pair of gate and up, 8 columns each
    if config.gemm.mma_m != 8 and config.gemm.mma_m != 16:
        raise ConfigError("mma_shape", t"{shown}: {name} has 8 or 16 rows of A a CTA")
    if config.gemm.mma_n < multiple or config.gemm.mma_n > 64 or config.gemm.mma_n % multiple != 0:
        raise ConfigError("mma_shape", t"{shown}: a multiple of {multiple} rows of B a CTA, up to 64")
    if config.split_k < 1 or config.split_k > 16:
        raise ConfigError("split_k", t"split k {config.split_k}: {name} has 1 to 16 warps a CTA")
    var most = 128 // config.gemm.mma_n
    if config.gemm.stages < 1 or config.gemm.stages > most:
        var rule = String(t"{name} loads 1 to {most} times before it multiplies {config.gemm.mma_n} rows of B")
        raise ConfigError("stages", t"stages {config.gemm.stages}: {rule}")
    if config.scales == "block":
        raise ConfigError("scales", t"scales block: {name} has one factor for all of C")
    if config.quantises():
        raise ConfigError("out_dtype", t"out dtype {config.c_dtype_name()}: not with {name}", instead="kernel")
    if config.layout != "nt":
        var message = String(t"layout {config.layout}: {name} reads A as [M, K] and B as [N, K]")
        raise ConfigError("layout", message, instead="kernel")
    if config.grouped:
        raise ConfigError("kernel", t"groups: {name} multiplies one A and one B")
    if config.is_fused() and config.scales != "none":
        var message = String(t"epilogue {config.fusion().name}: not with e4m3, which is multiplied by alpha")
        raise ConfigError("epilogue", message, instead="dtype")
    check_unused(config)


def check_unused(config: LayerConfig) raises ConfigError:
    """Refuses other values than the only ones of options that are about clusters, TMA or the order of operands."""
    var gemm = config.gemm
    var rule = String(t": {gemm.kernel.name} has no clusters and no TMA")
    check_only(gemm.cta_group == 1, "cta_group", t"cta group {gemm.cta_group}{rule}")
    check_only(gemm.cluster_size() == 1, "cluster", t"cluster {gemm.cluster_m}x{gemm.cluster_n}{rule}")
    check_only(gemm.multicast, "multicast", t"multicast=false{rule}")
    check_only(gemm.epilogue_width == 16, "epilogue_width", t"epilogue width {gemm.epilogue_width}{rule}")
    check_only(gemm.band_m == 0, "band_m", t"band of {gemm.band_m} CTAs{rule}")
    check_only(not config.swapped, "swapped", t"swapped{rule}")
