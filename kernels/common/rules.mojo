"""Which configurations are legal, and what is said about the others: the value, the rule and the way out, in one line."""
from .config import ELEMENT_BYTES, SHARED_MEMORY_LIMIT, SWIZZLE_ROW_BYTES, GemmConfig


def config_error(config: GemmConfig) -> String:
    """Empty for a legal configuration; otherwise the value, the rule and the way out, in one line."""
    var wrong = shape_error(config)
    if wrong.byte_length() > 0:
        return wrong
    if config.stages < 1 and config.stages_that_fit() < 1:
        return String(
            "shared memory: not even one stage fits beside the C tile of ",
            config.c_bytes(),
            " bytes: use a smaller MMA shape",
        )
    if config.stages < 1:
        return String("stages ", config.stages, " is not at least 1")
    if not config.pipelined() and config.stages != 1:
        return String(config.kernel, " has one stage, not ", config.stages, ": kernel6 has a pipeline")
    if config.shared_memory_bytes() > SHARED_MEMORY_LIMIT:
        return String(
            "shared memory: A ",
            config.stages,
            " x ",
            config.a_bytes(),
            " + B ",
            config.stages,
            " x ",
            config.b_bytes(),
            " + C ",
            config.c_bytes(),
            " + barriers ",
            config.barrier_bytes(),
            " = ",
            config.shared_memory_bytes(),
            " bytes > ",
            SHARED_MEMORY_LIMIT,
            ": at most ",
            config.stages_that_fit(),
            " stages fit",
        )
    return String()


def shape_error(config: GemmConfig) -> String:
    """The rules that do not depend on the number of stages."""
    if config.step_of_series() == 0:
        return String("kernel '", config.kernel, "' is not one of kernel5, kernel6, kernel7, kernel8")
    if config.dtype != DType.bfloat16 and config.dtype != DType.float16:
        return String("dtype ", config.dtype, " is not bfloat16 or float16")
    if config.arch != "sm_100a" and config.arch != "sm_90a":
        return String("arch '", config.arch, "' is not sm_100a or sm_90a")
    var wrong = sm100_shape_error(config) if config.has_tmem() else sm90_shape_error(config)
    if wrong.byte_length() > 0:
        return wrong
    if config.block_k * ELEMENT_BYTES != SWIZZLE_ROW_BYTES:
        return String("block K ", config.block_k, ": a stage is one 128-byte swizzle row deep, which is 64")
    if config.cluster_m < 1 or config.cluster_n < 1 or config.cluster_size() > 16:
        return String(
            "cluster ",
            config.cluster_m,
            "x",
            config.cluster_n,
            " has ",
            config.cluster_size(),
            " CTAs: 1 to 16 are possible",
        )
    if config.cluster_m % config.cta_group != 0:
        return String(
            "cluster ", config.cluster_m, "x", config.cluster_n, ": a CTA pair needs an even number of CTAs along M"
        )
    if config.band_m < 0:
        return String("band of ", config.band_m, " CTAs along M: use at least 1, or 0 for the kernel's own choice")
    wrong = walk_error(config)
    if wrong.byte_length() > 0:
        return wrong
    if config.epilogue_width != 16 and config.epilogue_width != 32 and config.epilogue_width != 64:
        return String("epilogue width ", config.epilogue_width, " is not 16, 32 or 64")
    if config.warp_columns() % config.epilogue_width != 0:
        return String(
            "epilogue width ",
            config.epilogue_width,
            " does not divide the ",
            config.warp_columns(),
            " accumulator columns of a warp: use 16 or 32",
        )
    if config.sharing().a_parts() > config.cta_m() // 8 or config.sharing().b_parts() > config.cta_b_rows() // 8:
        return String(
            "cluster ",
            config.cluster_m,
            "x",
            config.cluster_n,
            " shares ",
            config.cta_m(),
            " rows of A among ",
            config.sharing().a_parts(),
            " CTAs and ",
            config.cta_b_rows(),
            " rows of B among ",
            config.sharing().b_parts(),
            ": each needs at least 8 rows, use a smaller cluster or no multicast",
        )
    return String()


def walk_error(config: GemmConfig) -> String:
    """The rules of the order of tiles."""
    if config.scheduler != "none" and not config.fills_sms() and not config.cancels_clusters():
        return String("scheduler '", config.scheduler, "' is not one of clc, static, dynamic, none")
    if config.counts_tiles() and config.has_tmem():
        return String("scheduler dynamic: ", config.arch, " has cluster launch control, use clc")
    if config.cancels_clusters() and not config.has_tmem():
        return String("scheduler clc: ", config.arch, " has no cluster launch control, use static")
    if not config.walks_tiles() and (
        config.scheduler != "none" or config.raster_group != 1 or config.accumulators != 1
    ):
        return String(
            config.kernel,
            (
                " computes one tile a CTA, in the order of the grid, with one accumulator: kernel8 has --scheduler,"
                " --raster-group and --accumulators"
            ),
        )
    if config.raster_group != 1 and config.raster_group != 4 and config.raster_group != 8 and config.raster_group != 16:
        return String("raster group ", config.raster_group, " is not 1, 4, 8 or 16")
    if config.accumulators != 1 and not (config.accumulators == 2 and config.has_tmem()):
        return String("accumulators ", config.accumulators, ": use 1", ", or 2" if config.has_tmem() else " on sm_90a")
    if config.clc_depth < 0 or config.clc_depth > 3 or (config.clc_depth > 0) != config.cancels_clusters():
        return String("clc depth ", config.clc_depth, ": use 1, 2 or 3 with the scheduler clc, else none")
    if config.fills_sms() and config.sms < config.cluster_size():
        return String("sms ", config.sms, ": a cluster needs ", config.cluster_size())
    if config.ping_pong and (config.has_tmem() or not config.is_static()):
        return String(
            "ping-pong: the warpgroups of sm_90a take turns on a list of tiles, use kernel8 for it with --scheduler"
            " static"
        )
    if config.sms != 0 and not config.fills_sms():
        return String("sms ", config.sms, ": the scheduler ", config.scheduler, " launches all tiles, leave it out")
    return String()


def sm100_shape_error(config: GemmConfig) -> String:
    """Shapes of tcgen05.mma, kind f16 (PTX ISA 9.7.16.2.1)."""
    if config.cta_group != 1 and config.cta_group != 2:
        return String("cta_group ", config.cta_group, " is not 1 or 2")
    if config.mma_m != 64 * config.cta_group and config.mma_m != 128 * config.cta_group:
        return String(
            "MMA M ",
            config.mma_m,
            " with cta_group ",
            config.cta_group,
            ": use ",
            64 * config.cta_group,
            " or ",
            128 * config.cta_group,
        )
    var n_step = 16 * config.cta_group
    if config.mma_n < n_step or config.mma_n > 256 or config.mma_n % n_step != 0:
        return String(
            "MMA N ", config.mma_n, " with cta_group ", config.cta_group, ": use a multiple of ", n_step, " up to 256"
        )
    return String()


def sm90_shape_error(config: GemmConfig) -> String:
    """Tiles that the registers hold as accumulators, in instructions of 64 rows and up to 256 columns (PTX ISA
    9.7.15.2)."""
    if config.cta_group != 1:
        return String(
            "cta_group ",
            config.cta_group,
            ": sm_90a has no CTA pairs, use 1; GPUs of compute capability 10.0 have them",
        )
    if config.mma_m != 64 and config.mma_m != 128 and config.mma_m != 256:
        return String("tile M ", config.mma_m, " on sm_90a: use 64, 128 or 256")
    if config.ping_pong and config.mma_m == 256:
        return String("tile M 256 with ping-pong: a warpgroup has all rows of a tile, use 64 or 128")
    var most = 128 if config.consumer_m() == 128 else 256  # 128 accumulators a thread
    if config.mma_n < 16 or config.mma_n > most or config.mma_n % 16 != 0:
        return String(
            "tile N ", config.mma_n, " with tile M ", config.mma_m, " on sm_90a: use a multiple of 16 up to ", most
        )
    return String()
