"""The rules for configurations, and the messages for those that break one. All other programs ask these (plan.mojo)."""
from ..common.block_scaling import ATOM_BLOCKS, E4M3, F32_BLOCK, block_scaled_names
from ..common.config import SWIZZLE_ROW_BYTES
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from ..common.epilogues import UNKNOWN_EPILOGUE, epilogue_names
from ..common.series import find_kernel, kernel_names
from .config_error import ConfigError
from .declared_rules import declared_error
from .few_rows_rules import few_rows_error
from .tile_rules import cluster_error, layout_error, mma_error, sharing_error, stages_error


def config_error(config: LayerConfig) -> String:
    """Returns the value and the rule that it breaks in one line; empty for a legal configuration."""
    return find_error(config).message


def find_error(config: LayerConfig) -> ConfigError:
    """Returns the first rule that a configuration breaks."""
    var gemm = config.gemm
    if gemm.kernel.name not in kernel_names():
        var names = String(", ").join(kernel_names())
        return ConfigError("kernel", t"kernel {gemm.kernel.name} is not one of {names}")
    if gemm.kernel.is_block_scaled != (config.scaling.factors > 0):
        var takes = String("bf16 or fp16")
        if gemm.kernel.is_block_scaled:
            takes = String(", ").join(block_scaled_names())
        var message = String(t"dtype {config.dtype_name()}: {gemm.kernel.name} multiplies {takes}")
        return ConfigError("dtype", message, instead="kernel")
    if gemm.kernel.is_block_scaled and gemm.arch != "sm_100a":
        return ConfigError("arch", t"arch {gemm.arch}: block-scaled MMAs are those of sm_100a")
    if gemm.arch != "sm_100a" and gemm.arch != "sm_90a":
        return ConfigError("arch", t"arch {gemm.arch} is not sm_100a or sm_90a")
    var wrong = declared_error(find_kernel(gemm.kernel.name))
    if wrong.is_none():
        wrong = scales_error(config)
    if wrong.is_none() and gemm.kernel.reads_directly:
        wrong = one_tile_error(config)
        return few_rows_error(config) if wrong.is_none() else wrong^
    if wrong.is_none():
        wrong = mma_error(config)
    if wrong.is_none():
        wrong = layout_error(config)
    if wrong.is_none():
        wrong = cluster_error(config)
    if wrong.is_none():
        wrong = schedule_error(config) if gemm.kernel.is_persistent else one_tile_error(config)
    if wrong.is_none():
        wrong = split_error(config)
    if wrong.is_none():
        wrong = swapped_error(config)
    if wrong.is_none() and config.quantises():
        wrong = quantised_error(config)
    if wrong.is_none():
        wrong = grouped_error(config)
    if wrong.is_none():
        wrong = epilogue_error(config)
    if wrong.is_none():
        wrong = sharing_error(config)
    if wrong.is_none():
        wrong = stages_error(config)
    return wrong^


def scales_error(config: LayerConfig) -> ConfigError:
    """Checks e4m3, which only kernel8 and `rows` of sm_90a multiply, with one factor for C or, kernel8, with scale
    factors of blocks."""
    var gemm = config.gemm
    if config.scaling.name == E4M3.name:
        if not gemm.kernel.fuses:
            var message = String(t"dtype e4m3: {gemm.kernel.name} multiplies bf16 or fp16")
            return ConfigError("dtype", message, instead="kernel")
        if gemm.arch == "sm_100a":
            return ConfigError("dtype", t"dtype e4m3: {gemm.kernel.name} multiplies it on sm_90a", instead="arch")
        if config.scales != "tensor" and config.scales != "block":
            return ConfigError("scales", t"scales {config.scales}: e4m3 has tensor or block")
        return ConfigError()
    var only: StaticString = "block" if gemm.kernel.is_block_scaled else "none"
    if config.scales != only:
        var message = String(t"scales {config.scales}: with dtype {config.dtype_name()} it is {only}")
        return ConfigError("scales", message, instead="dtype")
    return ConfigError()


def one_tile_error(config: LayerConfig) -> ConfigError:
    """Refuses options about the order of tiles for kernels whose CTAs compute one tile each."""
    var gemm = config.gemm
    var rule = String(t": {gemm.kernel.name} computes one tile a CTA, at its place in the grid")
    if gemm.scheduler != "none":
        return ConfigError("scheduler", t"scheduler {gemm.scheduler}{rule}", instead="kernel")
    if gemm.raster_group != 1:
        return ConfigError("raster_group", t"raster group {gemm.raster_group}{rule}", instead="kernel")
    if config.accumulators != 1:
        return ConfigError("accumulators", t"accumulators {config.accumulators}{rule}", instead="kernel")
    if config.clc_depth != 0:
        return ConfigError("clc_depth", t"clc depth {config.clc_depth}{rule}", instead="kernel")
    if config.sms != 0:
        return ConfigError("sms", t"sms {config.sms}{rule}", instead="kernel")
    if config.ping_pong:
        return ConfigError("ping_pong", t"ping-pong{rule}", instead="kernel")
    return ConfigError()


def schedule_error(config: LayerConfig) -> ConfigError:
    """Checks the scheduler, the raster and the accumulators of persistent kernels."""
    var gemm = config.gemm
    var known = gemm.scheduler == "none" or gemm.is_static()
    if not known and not (gemm.cancels_clusters() if gemm.has_tmem() else gemm.counts_tiles()):
        return ConfigError("scheduler", t"scheduler '{gemm.scheduler}' is not one of {gemm.arch}'s")
    if gemm.raster_group != 1 and gemm.raster_group != 4 and gemm.raster_group != 8 and gemm.raster_group != 16:
        return ConfigError("raster_group", t"raster group {gemm.raster_group} is not one of 1, 4, 8, 16")
    if config.accumulators != 1 and not (config.accumulators == 2 and gemm.has_tmem()):
        var rule: StaticString = "there are 1 or 2, in tensor memory"
        if not gemm.has_tmem():
            rule = "there is 1, in registers, as sm_90a has no tensor memory"
        return ConfigError("accumulators", t"accumulators {config.accumulators}: {rule}")
    if gemm.cancels_clusters() and (config.clc_depth < 1 or config.clc_depth > 3):
        return ConfigError("clc_depth", t"clc depth {config.clc_depth} is not one of 1, 2, 3")
    if not gemm.cancels_clusters() and config.clc_depth != 0:
        var rule: StaticString = "has no responses of cluster launch control"
        return ConfigError("clc_depth", t"clc depth {config.clc_depth}: the scheduler {gemm.scheduler} {rule}")
    if gemm.fills_sms() and config.sms < gemm.cluster_size():
        var cluster = String(t"a cluster of {gemm.cluster_m}x{gemm.cluster_n}")
        return ConfigError("sms", t"sms {config.sms}: {cluster} needs {gemm.cluster_size()}")
    if not gemm.fills_sms() and config.sms != 0:
        var message = String(t"sms {config.sms}: the scheduler {gemm.scheduler} launches all tiles")
        return ConfigError("sms", message, instead="scheduler")
    if config.ping_pong and (gemm.has_tmem() or not gemm.is_static()):
        var what = String(t"ping-pong with {gemm.kernel.name} of {gemm.arch} and the scheduler {gemm.scheduler}")
        var message = String(t"{what}: the warpgroups of sm_90a take turns on a fixed list of tiles")
        return ConfigError("ping_pong", message, instead="scheduler")
    if config.ping_pong and (gemm.mma_m > 128 or gemm.mma_m * gemm.mma_n > 128 * 128):
        var rule: StaticString = "one warpgroup has all rows of a tile and holds 128x128 or 64x256 accumulators"
        var message = String(t"mma shape {gemm.mma_m}x{gemm.mma_n} with ping-pong: {rule}")
        return ConfigError("mma_shape", message, instead="ping_pong")
    return ConfigError()


def epilogue_error(config: LayerConfig) -> ConfigError:
    """Checks the width of an epilogue step, and the fused epilogue."""
    var gemm = config.gemm
    var width = gemm.epilogue_width
    if width != 16 and width != 32 and width != 64:
        return ConfigError("epilogue_width", t"epilogue width {width} is not one of 16, 32, 64")
    if config.epilogue == UNKNOWN_EPILOGUE:
        return ConfigError("epilogue", "epilogue: use one of " + String(", ").join(epilogue_names()))
    if config.is_fused() and config.scaling.name == E4M3.name:
        var message = String(t"epilogue {config.fusion().name}: not behind e4m3, whose epilogue multiplies by alpha")
        return ConfigError("epilogue", message, instead="dtype")
    if config.is_fused() and not gemm.kernel.fuses:
        var message = String(t"epilogue {config.fusion().name}: {gemm.kernel.name} stores the product as it is")
        return ConfigError("epilogue", message, instead="kernel")
    if config.step_columns() < 16 and not config.swapped:
        var pairs = config.out_scaling.bits == 4
        var what = config.c_dtype_name() if pairs else config.fusion().name
        var made = String(t"{what} makes {config.step_columns()} {'bytes' if pairs else 'columns'} of C of it, not 16")
        return ConfigError("epilogue_width", t"epilogue width {width}: {made}", instead="epilogue")
    var bytes = config.c_box()[1] * element_bytes(gemm.out_dtype)
    if bytes > SWIZZLE_ROW_BYTES:
        return ConfigError(
            "epilogue_width",
            t"epilogue width {width}: {bytes} bytes of {config.c_dtype_name()}, a swizzled row has at most 128",
            instead="out_dtype",
        )
    if gemm.warp_columns() % width != 0:
        return ConfigError(
            "epilogue_width",
            t"epilogue width {width} does not divide the {gemm.warp_columns()} accumulator columns of a warp",
        )
    return ConfigError()


def split_error(config: LayerConfig) -> ConfigError:
    """Checks split-K."""
    var shown = String(t"split k {config.split_k}")
    if config.split_k < 1 or config.split_k > 16:
        return ConfigError("split_k", t"{shown} is not one of 1 to 16")
    if config.splits_k() and not config.gemm.kernel.fuses:
        return ConfigError("split_k", t"{shown}: {config.gemm.kernel.name} multiplies all of K", instead="kernel")
    if config.splits_k() and config.promotes():
        return ConfigError("split_k", t"{shown}: with scales block a CTA adds up all of K", instead="scales")
    if config.splits_k() and config.ping_pong:
        return ConfigError("split_k", t"{shown}: with ping-pong a warpgroup adds up all of K", instead="ping_pong")
    return ConfigError()


def swapped_error(config: LayerConfig) -> ConfigError:
    """Checks kernels that compute the transpose of C."""
    var gemm = config.gemm
    if not config.swapped:
        return ConfigError()
    if not gemm.kernel.fuses:
        return ConfigError("swapped", t"swapped: {gemm.kernel.name} multiplies A . B^T", instead="kernel")
    if not gemm.has_tmem() and gemm.consumer_m() > 64:
        var message = String(t"mma shape {gemm.mma_m}x{gemm.mma_n}, swapped: a warpgroup stores 64 columns of C")
        return ConfigError("mma_shape", message, instead="swapped")
    if config.promotes():
        return ConfigError("scales", "scales block: not with swapped", instead="swapped")
    return ConfigError()


def grouped_error(config: LayerConfig) -> ConfigError:
    """Checks kernels for groups of rows."""
    var gemm = config.gemm
    if not config.grouped:
        return ConfigError("masked", "masked: there are no groups") if config.masked else ConfigError()
    if config.masked and config.quantises():
        return ConfigError("out_dtype", t"out dtype {config.c_dtype_name()}: not with masked groups")
    if not gemm.kernel.fuses:
        return ConfigError("kernel", t"groups: {gemm.kernel.name} multiplies one A and one B")
    if not gemm.is_static():
        var rule: StaticString = "with groups a cluster has a fixed list of tiles"
        return ConfigError("scheduler", t"scheduler {gemm.scheduler}: {rule}")
    if config.scaling.bits < 16:
        return ConfigError("dtype", t"dtype {config.dtype_name()}: with groups A and B have 16 bits")
    if config.layout != "nt":
        return ConfigError("layout", t"layout {config.layout}: with groups A is [M, K] and each B [N, K]")
    if config.splits_k():
        return ConfigError("split_k", t"split k {config.split_k}: with groups a CTA adds up all of K")
    if config.swapped:
        return ConfigError("swapped", "swapped: with groups rows of A lie along the MMA's M")
    return ConfigError()


def quantised_error(config: LayerConfig) -> ConfigError:
    """Checks a C with scale factors: f32 with e4m3 on sm_90a, atoms as kernel9 takes them on sm_100a."""
    var gemm = config.gemm
    var format = config.out_scaling
    if (format.factors > 0) != gemm.has_tmem() or not (gemm.kernel.fuses or gemm.kernel.is_block_scaled):
        var message = String(t"out dtype {format.name}: {gemm.kernel.name} of {gemm.arch} has no such C")
        return ConfigError("out_dtype", message, instead="arch")
    if config.swapped:
        return ConfigError("out_dtype", t"out dtype {format.name}: not with swapped", instead="swapped")
    var columns = gemm.mma_n * config.fusion().results // 8
    var together = format.block() * ATOM_BLOCKS if gemm.has_tmem() else F32_BLOCK
    if columns % together != 0:
        var shown = String(t"mma shape {gemm.mma_m}x{gemm.mma_n}: {columns} columns of C, of which {together}")
        var what: StaticString = "have an atom of scale factors" if gemm.has_tmem() else "share a scale factor"
        return ConfigError("mma_shape", t"{shown} {what} of {format.name}", instead="out_dtype")
    if gemm.has_tmem() and config.blocks_in_step() == 0:
        var shown = String(t"epilogue width {gemm.epilogue_width}: less than the {format.block()} columns of C")
        return ConfigError("epilogue_width", t"{shown} that share a scale factor of {format.name}")
    return ConfigError()
