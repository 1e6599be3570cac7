"""The rules for configurations, and the messages for those that break one. All other programs ask these (plan.mojo)."""
from ..common.block_scaling import ATOM_BLOCKS, E4M3, F32_BLOCK, block_scaled_names
from ..common.config import SWIZZLE_ROW_BYTES, GemmConfig
from ..common.types import *
from ..common.epilogues import UNKNOWN_EPILOGUE, epilogue_names
from ..common.series import find_kernel, kernel_names
from .config_error import ConfigError
from .declared_rules import declared_error
from .tile_rules import cluster_error, layout_error, mma_error, sharing_error, stages_error


def config_error(config: GemmConfig) -> String:
    """Returns the value and the rule that it breaks in one line; empty for a legal configuration."""
    return find_error(config).message


def find_error(config: GemmConfig) -> ConfigError:
    """Returns the first rule that a configuration breaks."""
    if config.kernel.name not in kernel_names():
        var names = String(", ").join(kernel_names())
        return ConfigError("kernel", String(t"kernel {config.kernel.name} is not one of {names}"))
    if config.dtype != DType.bfloat16 and config.dtype != DType.float16:
        return ConfigError("dtype", String(t"dtype {config.dtype} is not bfloat16 or float16"))
    if config.kernel.is_block_scaled != (config.scaling.factors > 0):
        var takes = String("bf16 or fp16")
        if config.kernel.is_block_scaled:
            takes = String(", ").join(block_scaled_names())
        var message = String(t"dtype {config.dtype_name()}: {config.kernel.name} multiplies {takes}")
        return ConfigError("dtype", message, instead="kernel")
    if config.kernel.is_block_scaled and config.arch != "sm_100a":
        return ConfigError("arch", String(t"arch {config.arch}: block-scaled MMAs are those of sm_100a"))
    if config.arch != "sm_100a" and config.arch != "sm_90a":
        return ConfigError("arch", String(t"arch {config.arch} is not sm_100a or sm_90a"))
    var wrong = declared_error(find_kernel(config.kernel.name))
    if wrong.is_none():
        wrong = scales_error(config)
    if wrong.is_none():
        wrong = mma_error(config)
    if wrong.is_none():
        wrong = layout_error(config)
    if wrong.is_none():
        wrong = cluster_error(config)
    if wrong.is_none():
        wrong = schedule_error(config) if config.kernel.is_persistent else one_tile_error(config)
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


def scales_error(config: GemmConfig) -> ConfigError:
    """Checks e4m3, which only kernel8 of sm_90a multiplies, with one factor for C or with scale factors of blocks."""
    if config.scaling.name == E4M3.name:
        if not config.kernel.is_persistent:
            var message = String(t"dtype e4m3: {config.kernel.name} multiplies bf16 or fp16")
            return ConfigError("dtype", message, instead="kernel")
        if config.has_tmem():
            return ConfigError(
                "dtype", String(t"dtype e4m3: {config.kernel.name} multiplies it on sm_90a"), instead="arch"
            )
        if config.scales != "tensor" and config.scales != "block":
            return ConfigError("scales", String(t"scales {config.scales}: e4m3 has tensor or block"))
        return ConfigError()
    var only: StaticString = "block" if config.kernel.is_block_scaled else "none"
    if config.scales != only:
        var message = String(t"scales {config.scales}: with dtype {config.dtype_name()} it is {only}")
        return ConfigError("scales", message, instead="dtype")
    return ConfigError()


def one_tile_error(config: GemmConfig) -> ConfigError:
    """Refuses options about the order of tiles for kernels whose CTAs compute one tile each."""
    var rule = String(t": {config.kernel.name} computes one tile a CTA, at its place in the grid")
    if config.scheduler != "none":
        return ConfigError("scheduler", String(t"scheduler {config.scheduler}{rule}"), instead="kernel")
    if config.raster_group != 1:
        return ConfigError("raster_group", String(t"raster group {config.raster_group}{rule}"), instead="kernel")
    if config.accumulators != 1:
        return ConfigError("accumulators", String(t"accumulators {config.accumulators}{rule}"), instead="kernel")
    if config.clc_depth != 0:
        return ConfigError("clc_depth", String(t"clc depth {config.clc_depth}{rule}"), instead="kernel")
    if config.sms != 0:
        return ConfigError("sms", String(t"sms {config.sms}{rule}"), instead="kernel")
    if config.ping_pong:
        return ConfigError("ping_pong", String(t"ping-pong{rule}"), instead="kernel")
    return ConfigError()


def schedule_error(config: GemmConfig) -> ConfigError:
    """Checks the scheduler, the raster and the accumulators of persistent kernels."""
    var known = config.scheduler == "none" or config.is_static()
    if not known and not (config.cancels_clusters() if config.has_tmem() else config.counts_tiles()):
        return ConfigError("scheduler", String(t"scheduler '{config.scheduler}' is not one of {config.arch}'s"))
    if config.raster_group != 1 and config.raster_group != 4 and config.raster_group != 8 and config.raster_group != 16:
        return ConfigError("raster_group", String(t"raster group {config.raster_group} is not one of 1, 4, 8, 16"))
    if config.accumulators != 1 and not (config.accumulators == 2 and config.has_tmem()):
        return ConfigError(
            "accumulators",
            String(
                "accumulators ",
                config.accumulators,
                ": there are 1 or 2, in tensor memory" if config.has_tmem() else (
                    ": there is 1, in registers, as sm_90a has no tensor memory"
                ),
            ),
        )
    if config.cancels_clusters() and (config.clc_depth < 1 or config.clc_depth > 3):
        return ConfigError("clc_depth", String(t"clc depth {config.clc_depth} is not one of 1, 2, 3"))
    if not config.cancels_clusters() and config.clc_depth != 0:
        return ConfigError(
            "clc_depth",
            String(
                t"clc depth {config.clc_depth}: the scheduler {config.scheduler} has no responses of cluster launch"
                t" control"
            ),
        )
    if config.fills_sms() and config.sms < config.cluster_size():
        return ConfigError(
            "sms",
            String(
                t"sms {config.sms}: a cluster of {config.cluster_m}x{config.cluster_n} needs {config.cluster_size()}"
            ),
        )
    if not config.fills_sms() and config.sms != 0:
        return ConfigError(
            "sms",
            String(t"sms {config.sms}: the scheduler {config.scheduler} launches all tiles"),
            instead="scheduler",
        )
    if config.ping_pong and (config.has_tmem() or not config.is_static()):
        return ConfigError(
            "ping_pong",
            String(
                t"ping-pong with {config.kernel.name} of {config.arch} and the scheduler {config.scheduler}: the"
                t" warpgroups of sm_90a take turns on a fixed list of tiles"
            ),
            instead="scheduler",
        )
    if config.ping_pong and (config.mma_m > 128 or config.mma_m * config.mma_n > 128 * 128):
        return ConfigError(
            "mma_shape",
            String(
                t"mma shape {config.mma_m}x{config.mma_n} with ping-pong: one warpgroup has all rows of a tile and"
                t" holds 128x128 or 64x256 accumulators"
            ),
            instead="ping_pong",
        )
    return ConfigError()


def epilogue_error(config: GemmConfig) -> ConfigError:
    """Checks the width of an epilogue step, and the fused epilogue."""
    var width = config.epilogue_width
    if width != 16 and width != 32 and width != 64:
        return ConfigError("epilogue_width", String(t"epilogue width {width} is not one of 16, 32, 64"))
    if config.epilogue == UNKNOWN_EPILOGUE:
        return ConfigError("epilogue", String("epilogue: use one of ") + String(", ").join(epilogue_names()))
    if config.is_fused() and config.scaling.name == E4M3.name:
        return ConfigError(
            "epilogue",
            String(t"epilogue {config.fusion().name}: not behind e4m3, whose epilogue multiplies by alpha"),
            instead="dtype",
        )
    if config.is_fused() and not config.kernel.fuses():
        return ConfigError(
            "epilogue",
            String(t"epilogue {config.fusion().name}: {config.kernel.name} stores the product as it is"),
            instead="kernel",
        )
    if config.step_columns() < 16 and not config.swapped:
        var pairs = config.out_scaling.bits == 4
        var what = config.c_dtype_name() if pairs else config.fusion().name
        var made = String(t"{what} makes {config.step_columns()} {'bytes' if pairs else 'columns'} of C of it, not 16")
        return ConfigError("epilogue_width", String(t"epilogue width {width}: {made}"), instead="epilogue")
    var bytes = config.c_box()[1] * config.c_element_bytes()
    if bytes > SWIZZLE_ROW_BYTES:
        return ConfigError(
            "epilogue_width",
            String(t"epilogue width {width}: {bytes} bytes of {config.c_dtype_name()}, a swizzled row has at most 128"),
            instead="out_dtype",
        )
    if config.warp_columns() % width != 0:
        return ConfigError(
            "epilogue_width",
            String(t"epilogue width {width} does not divide the {config.warp_columns()} accumulator columns of a warp"),
        )
    return ConfigError()


def split_error(config: GemmConfig) -> ConfigError:
    """Checks split-K."""
    var shown = String(t"split k {config.split_k}")
    if config.split_k < 1 or config.split_k > 16:
        return ConfigError("split_k", String(t"{shown} is not one of 1 to 16"))
    if config.splits_k() and not config.kernel.fuses():
        return ConfigError("split_k", String(t"{shown}: {config.kernel.name} multiplies all of K"), instead="kernel")
    if config.splits_k() and config.promotes():
        return ConfigError("split_k", String(t"{shown}: with scales block a CTA adds up all of K"), instead="scales")
    if config.splits_k() and config.ping_pong:
        return ConfigError(
            "split_k", String(t"{shown}: with ping-pong a warpgroup adds up all of K"), instead="ping_pong"
        )
    return ConfigError()


def swapped_error(config: GemmConfig) -> ConfigError:
    """Checks kernels that compute the transpose of C."""
    if not config.swapped:
        return ConfigError()
    if not config.kernel.fuses():
        return ConfigError("swapped", String(t"swapped: {config.kernel.name} multiplies A . B^T"), instead="kernel")
    if not config.has_tmem() and config.consumer_m() > 64:
        var message = String(t"mma shape {config.mma_m}x{config.mma_n}, swapped: a warpgroup stores 64 columns of C")
        return ConfigError("mma_shape", message, instead="swapped")
    if config.promotes():
        return ConfigError("scales", String("scales block: not with swapped"), instead="swapped")
    return ConfigError()


def grouped_error(config: GemmConfig) -> ConfigError:
    """Checks kernels for groups of rows."""
    if not config.grouped:
        return ConfigError("masked", String("masked: there are no groups")) if config.masked else ConfigError()
    if config.masked and config.quantises():
        return ConfigError("out_dtype", String(t"out dtype {config.c_dtype_name()}: not with masked groups"))
    if not config.kernel.fuses():
        return ConfigError("kernel", String(t"groups: {config.kernel.name} multiplies one A and one B"))
    if not config.is_static():
        var rule: StaticString = "with groups a cluster has a fixed list of tiles"
        return ConfigError("scheduler", String(t"scheduler {config.scheduler}: {rule}"))
    if config.scaling.bits < 16:
        return ConfigError("dtype", String(t"dtype {config.dtype_name()}: with groups A and B have 16 bits"))
    if config.layout != "nt":
        return ConfigError("layout", String(t"layout {config.layout}: with groups A is [M, K] and each B [N, K]"))
    if config.splits_k():
        return ConfigError("split_k", String(t"split k {config.split_k}: with groups a CTA adds up all of K"))
    if config.swapped:
        return ConfigError("swapped", String("swapped: with groups rows of A lie along the MMA's M"))
    return ConfigError()


def quantised_error(config: GemmConfig) -> ConfigError:
    """Checks a C with scale factors: f32 with e4m3 on sm_90a, atoms as kernel9 takes them on sm_100a."""
    var format = config.out_scaling
    if (format.factors > 0) != config.has_tmem() or not config.kernel.is_persistent:
        var message = String(t"out dtype {format.name}: {config.kernel.name} of {config.arch} has no such C")
        return ConfigError("out_dtype", message, instead="arch")
    if config.swapped:
        return ConfigError("out_dtype", String(t"out dtype {format.name}: not with swapped"), instead="swapped")
    var columns = config.mma_n * config.fusion().results // 8
    var together = format.block() * ATOM_BLOCKS if config.has_tmem() else F32_BLOCK
    if columns % together != 0:
        var shown = String(t"mma shape {config.mma_m}x{config.mma_n}: {columns} columns of C, of which {together}")
        var what: StaticString = "have an atom of scale factors" if config.has_tmem() else "share a scale factor"
        return ConfigError("mma_shape", String(t"{shown} {what} of {format.name}"), instead="out_dtype")
    if config.has_tmem() and config.blocks_in_step() == 0:
        var shown = String(t"epilogue width {config.epilogue_width}: less than the {format.block()} columns of C")
        return ConfigError("epilogue_width", String(t"{shown} that share a scale factor of {format.name}"))
    return ConfigError()
