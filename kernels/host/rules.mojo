"""The rules for configurations, and the messages for those that break one. All other programs ask these (plan.mojo)."""
from ..common.block_scaling import ATOM_BLOCKS, E4M3, F32_BLOCK, block_scaled_names
from ..common.config import SWIZZLE_ROW_BYTES
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from ..common.epilogues import UNKNOWN_EPILOGUE, epilogue_names
from ..common.series import find_kernel, kernel_names
from .config_error import ConfigError, check_only
from .declared_rules import check_declared
from .few_rows_rules import check_few_rows
from .tile_rules import check_cluster, check_layout, check_mma, check_sharing, check_stages


def config_error(config: LayerConfig) -> String:
    """Returns the value and the rule that it breaks in one line; empty for a legal configuration."""
    try:
        check(config)
        return ""
    except error:
        return error.message.copy()


def check(config: LayerConfig) raises ConfigError:
    """Raises the first rule that a configuration breaks."""
    var gemm = config.gemm
    if gemm.kernel.name not in kernel_names():
        var names = String(", ").join(kernel_names())
        raise ConfigError("kernel", t"kernel {gemm.kernel.name} is not one of {names}")
    if gemm.kernel.is_block_scaled != (config.scaling.factors > 0):
        var takes = String("bf16 or fp16")
        if gemm.kernel.is_block_scaled:
            takes = String(", ").join(block_scaled_names())
        var message = String(t"dtype {config.dtype_name()}: {gemm.kernel.name} multiplies {takes}")
        raise ConfigError("dtype", message, instead="kernel")
    if gemm.kernel.is_block_scaled and gemm.arch != "sm_100a":
        raise ConfigError("arch", t"arch {gemm.arch}: block-scaled MMAs are those of sm_100a")
    if gemm.arch != "sm_100a" and gemm.arch != "sm_90a":
        raise ConfigError("arch", t"arch {gemm.arch} is not sm_100a or sm_90a")
    check_declared(find_kernel(gemm.kernel.name))
    check_scales(config)
    if gemm.kernel.reads_directly:
        check_one_tile(config)
        return check_few_rows(config)
    check_mma(config)
    check_layout(config)
    check_cluster(config)
    if gemm.kernel.is_persistent:
        check_schedule(config)
    else:
        check_one_tile(config)
    check_split(config)
    check_swapped(config)
    if config.quantises():
        check_quantised(config)
    check_grouped(config)
    check_epilogue(config)
    check_sharing(config)
    check_stages(config)


def check_scales(config: LayerConfig) raises ConfigError:
    """Checks e4m3, which only kernel8 and `rows` of sm_90a multiply, with one factor for C or, kernel8, with scale
    factors of blocks."""
    var gemm = config.gemm
    if config.scaling.name == E4M3.name:
        if not gemm.kernel.fuses:
            var message = String(t"dtype e4m3: {gemm.kernel.name} multiplies bf16 or fp16")
            raise ConfigError("dtype", message, instead="kernel")
        if gemm.arch == "sm_100a":
            raise ConfigError("dtype", t"dtype e4m3: {gemm.kernel.name} multiplies it on sm_90a", instead="arch")
        if config.scales != "tensor" and config.scales != "block":
            raise ConfigError("scales", t"scales {config.scales}: e4m3 has tensor or block")
        return
    var only: StaticString = "block" if gemm.kernel.is_block_scaled else "none"
    if config.scales != only:
        var message = String(t"scales {config.scales}: with dtype {config.dtype_name()} it is {only}")
        raise ConfigError("scales", message, instead="dtype")


def check_one_tile(config: LayerConfig) raises ConfigError:
    """Refuses options about the order of tiles for kernels whose CTAs compute one tile each."""
    var gemm = config.gemm
    var rule = String(t": {gemm.kernel.name} computes one tile a CTA, at its place in the grid")
    check_only(gemm.scheduler == "none", "scheduler", t"scheduler {gemm.scheduler}{rule}")
    check_only(gemm.raster_group == 1, "raster_group", t"raster group {gemm.raster_group}{rule}")
    check_only(config.accumulators == 1, "accumulators", t"accumulators {config.accumulators}{rule}")
    check_only(config.clc_depth == 0, "clc_depth", t"clc depth {config.clc_depth}{rule}")
    check_only(config.sms == 0, "sms", t"sms {config.sms}{rule}")
    check_only(not config.ping_pong, "ping_pong", t"ping-pong{rule}")


def check_schedule(config: LayerConfig) raises ConfigError:
    """Checks the scheduler, the raster and the accumulators of persistent kernels."""
    var gemm = config.gemm
    var known = gemm.scheduler == "none" or gemm.is_static()
    if not known and not (gemm.cancels_clusters() if gemm.has_tmem() else gemm.counts_tiles()):
        raise ConfigError("scheduler", t"scheduler '{gemm.scheduler}' is not one of {gemm.arch}'s")
    if gemm.raster_group != 1 and gemm.raster_group != 4 and gemm.raster_group != 8 and gemm.raster_group != 16:
        raise ConfigError("raster_group", t"raster group {gemm.raster_group} is not one of 1, 4, 8, 16")
    if config.accumulators != 1 and not (config.accumulators == 2 and gemm.has_tmem()):
        var rule: StaticString = "there are 1 or 2, in tensor memory"
        if not gemm.has_tmem():
            rule = "there is 1, in registers, as sm_90a has no tensor memory"
        raise ConfigError("accumulators", t"accumulators {config.accumulators}: {rule}")
    if gemm.cancels_clusters() and (config.clc_depth < 1 or config.clc_depth > 3):
        raise ConfigError("clc_depth", t"clc depth {config.clc_depth} is not one of 1, 2, 3")
    if not gemm.cancels_clusters() and config.clc_depth != 0:
        var rule: StaticString = "has no responses of cluster launch control"
        raise ConfigError("clc_depth", t"clc depth {config.clc_depth}: the scheduler {gemm.scheduler} {rule}")
    if gemm.fills_sms() and config.sms < gemm.cluster_size():
        var cluster = String(t"a cluster of {gemm.cluster_m}x{gemm.cluster_n}")
        raise ConfigError("sms", t"sms {config.sms}: {cluster} needs {gemm.cluster_size()}")
    if not gemm.fills_sms() and config.sms != 0:
        var message = String(t"sms {config.sms}: the scheduler {gemm.scheduler} launches all tiles")
        raise ConfigError("sms", message, instead="scheduler")
    if config.ping_pong and (gemm.has_tmem() or not gemm.is_static()):
        var what = String(t"ping-pong with {gemm.kernel.name} of {gemm.arch} and the scheduler {gemm.scheduler}")
        var message = String(t"{what}: the warpgroups of sm_90a take turns on a fixed list of tiles")
        raise ConfigError("ping_pong", message, instead="scheduler")
    if config.ping_pong and (gemm.mma_m > 128 or gemm.mma_m * gemm.mma_n > 128 * 128):
        var rule: StaticString = "one warpgroup has all rows of a tile and holds 128x128 or 64x256 accumulators"
        var message = String(t"mma shape {gemm.mma_m}x{gemm.mma_n} with ping-pong: {rule}")
        raise ConfigError("mma_shape", message, instead="ping_pong")


def check_epilogue(config: LayerConfig) raises ConfigError:
    """Checks the width of an epilogue step, and the fused epilogue."""
    var gemm = config.gemm
    var width = gemm.epilogue_width
    if width != 16 and width != 32 and width != 64:
        raise ConfigError("epilogue_width", t"epilogue width {width} is not one of 16, 32, 64")
    if config.epilogue == UNKNOWN_EPILOGUE:
        raise ConfigError("epilogue", "epilogue: use one of " + String(", ").join(epilogue_names()))
    if config.is_fused() and config.scaling.name == E4M3.name:
        var message = String(t"epilogue {config.fusion().name}: not behind e4m3, whose epilogue multiplies by alpha")
        raise ConfigError("epilogue", message, instead="dtype")
    if config.is_fused() and not gemm.kernel.fuses:
        var message = String(t"epilogue {config.fusion().name}: {gemm.kernel.name} stores the product as it is")
        raise ConfigError("epilogue", message, instead="kernel")
    if config.step_columns() < 16 and not config.swapped:
        var pairs = config.out_scaling.bits == 4
        var what = config.c_dtype_name() if pairs else config.fusion().name
        var made = String(t"{what} makes {config.step_columns()} {'bytes' if pairs else 'columns'} of C of it, not 16")
        raise ConfigError("epilogue_width", t"epilogue width {width}: {made}", instead="epilogue")
    var bytes = config.c_box()[1] * element_bytes(gemm.out_dtype)
    if bytes > SWIZZLE_ROW_BYTES:
        raise ConfigError(
            "epilogue_width",
            t"epilogue width {width}: {bytes} bytes of {config.c_dtype_name()}, a swizzled row has at most 128",
            instead="out_dtype",
        )
    if gemm.warp_columns() % width != 0:
        raise ConfigError(
            "epilogue_width",
            t"epilogue width {width} does not divide the {gemm.warp_columns()} accumulator columns of a warp",
        )


def check_split(config: LayerConfig) raises ConfigError:
    """Checks split-K."""
    var shown = String(t"split k {config.split_k}")
    if config.split_k < 1 or config.split_k > 16:
        raise ConfigError("split_k", t"{shown} is not one of 1 to 16")
    if config.splits_k() and not config.gemm.kernel.fuses:
        raise ConfigError("split_k", t"{shown}: {config.gemm.kernel.name} multiplies all of K", instead="kernel")
    if config.splits_k() and config.promotes():
        raise ConfigError("split_k", t"{shown}: with scales block a CTA adds up all of K", instead="scales")
    if config.splits_k() and config.ping_pong:
        raise ConfigError("split_k", t"{shown}: with ping-pong a warpgroup adds up all of K", instead="ping_pong")


def check_swapped(config: LayerConfig) raises ConfigError:
    """Checks kernels that compute the transpose of C."""
    var gemm = config.gemm
    if not config.swapped:
        return
    if not gemm.kernel.fuses:
        raise ConfigError("swapped", t"swapped: {gemm.kernel.name} multiplies A . B^T", instead="kernel")
    if not gemm.has_tmem() and gemm.consumer_m() > 64:
        var message = String(t"mma shape {gemm.mma_m}x{gemm.mma_n}, swapped: a warpgroup stores 64 columns of C")
        raise ConfigError("mma_shape", message, instead="swapped")
    if config.promotes():
        raise ConfigError("scales", "scales block: not with swapped", instead="swapped")


def check_grouped(config: LayerConfig) raises ConfigError:
    """Checks kernels for groups of rows."""
    var gemm = config.gemm
    if config.masked and not config.grouped:
        raise ConfigError("masked", "masked: there are no groups")
    if not config.grouped:
        return
    if config.masked and config.quantises():
        raise ConfigError("out_dtype", t"out dtype {config.c_dtype_name()}: not with masked groups")
    if not gemm.kernel.fuses:
        raise ConfigError("kernel", t"groups: {gemm.kernel.name} multiplies one A and one B")
    if not gemm.is_static():
        var rule: StaticString = "with groups a cluster has a fixed list of tiles"
        raise ConfigError("scheduler", t"scheduler {gemm.scheduler}: {rule}")
    if config.scaling.bits < 16:
        raise ConfigError("dtype", t"dtype {config.dtype_name()}: with groups A and B have 16 bits")
    if config.layout != "nt":
        raise ConfigError("layout", t"layout {config.layout}: with groups A is [M, K] and each B [N, K]")
    if config.splits_k():
        raise ConfigError("split_k", t"split k {config.split_k}: with groups a CTA adds up all of K")
    if config.swapped:
        raise ConfigError("swapped", "swapped: with groups rows of A lie along the MMA's M")


def check_quantised(config: LayerConfig) raises ConfigError:
    """Checks a C with scale factors: f32 with e4m3 on sm_90a, atoms as kernel9 takes them on sm_100a."""
    var gemm = config.gemm
    var format = config.out_scaling
    if (format.factors > 0) != gemm.has_tmem() or not (gemm.kernel.fuses or gemm.kernel.is_block_scaled):
        var message = String(t"out dtype {format.name}: {gemm.kernel.name} of {gemm.arch} has no such C")
        raise ConfigError("out_dtype", message, instead="arch")
    if config.swapped:
        raise ConfigError("out_dtype", t"out dtype {format.name}: not with swapped", instead="swapped")
    var columns = gemm.mma_n * config.fusion().results // 8
    var together = format.block() * ATOM_BLOCKS if gemm.has_tmem() else F32_BLOCK
    if columns % together != 0:
        var shown = String(t"mma shape {gemm.mma_m}x{gemm.mma_n}: {columns} columns of C, of which {together}")
        var what: StaticString = "have an atom of scale factors" if gemm.has_tmem() else "share a scale factor"
        raise ConfigError("mma_shape", t"{shown} {what} of {format.name}", instead="out_dtype")
    if gemm.has_tmem() and config.blocks_in_step() == 0:
        var shown = String(t"epilogue width {gemm.epilogue_width}: less than the {format.block()} columns of C")
        raise ConfigError("epilogue_width", t"{shown} that share a scale factor of {format.name}")
