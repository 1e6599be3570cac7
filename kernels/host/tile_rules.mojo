"""Rules about tiles: MMA shape, layout, cluster, multicast and stages must be possible on the hardware."""
from ..common.block_scaling import ATOM_ROWS, F32_BLOCK
from ..common.config import SHARED_MEMORY_LIMIT, SWIZZLE_ROW_BYTES, GemmConfig
from .config_error import ConfigError


def mma_error(config: GemmConfig) -> ConfigError:
    """Checks the MMA shape: that of tcgen05.mma on sm_100a (PTX ISA 9.7.16.2.1). On sm_90a, it is a tile whose
    accumulators fit into registers, in instructions of 64 rows and up to 256 columns (PTX ISA 9.7.15.2)."""
    if config.cta_group != 1 and not (config.cta_group == 2 and config.has_tmem()):
        return ConfigError(
            "cta_group",
            String(t"cta group {config.cta_group} is not possible on {config.arch}"),
            instead="arch",
        )
    var shown = String(t"mma shape {config.mma_m}x{config.mma_n} with cta group {config.cta_group}")
    if config.kernel.is_block_scaled:
        var rows = ATOM_ROWS * config.cta_group
        if config.mma_m != rows or (config.mma_n != ATOM_ROWS and config.mma_n != 2 * ATOM_ROWS):
            return ConfigError(
                "mma_shape",
                String(t"{shown}: block-scaled, it must be {rows}x256 or {rows}x128, whole atoms of scale factors"),
                instead="cta_group",
            )
    var smallest = 64 * config.cta_group
    var largest = 128 * config.cta_group if config.has_tmem() else 256
    if config.mma_m != smallest and config.mma_m != 2 * smallest and config.mma_m != largest:
        var rows = String(t"{smallest} or {2 * smallest}") if config.has_tmem() else String("64 or 128 or 256")
        return ConfigError("mma_shape", String(t"{shown}: M must be {rows}"), instead="cta_group")
    # On sm_90a, a thread holds at most 128 accumulators.
    var most = 128 if not config.has_tmem() and config.mma_m == 256 else 256
    var step = 16 * config.cta_group
    if config.mma_n < step or config.mma_n > most or config.mma_n % step != 0:
        return ConfigError("mma_shape", String(t"{shown}: N must be a multiple of {step} up to {most}"))
    if config.promotes() and config.mma_n % F32_BLOCK != 0 and F32_BLOCK % config.mma_n != 0:
        return ConfigError(
            "mma_shape",
            String(t"{shown}: with scales block N must be 256, or divide the 128 rows of B that share a factor"),
            instead="scales",
        )
    if config.block_k * config.scaling.bits != 8 * SWIZZLE_ROW_BYTES:
        return ConfigError("block_k", String(t"block K {config.block_k}: a stage is one 128-byte swizzle row deep"))
    return ConfigError()


def layout_error(config: GemmConfig) -> ConfigError:
    """Checks MN-major operands: boxes have 64 rows (PTX ISA 5.5.7), elements have 16 bits (PTX ISA 9.7.15.5)."""
    if config.layout != "nt" and config.scaling.bits < 16:
        return ConfigError(
            "layout", String(t"layout {config.layout}: {config.scaling.name} is multiplied as nt only"), instead="dtype"
        )
    if (config.a_mn_major() and config.cta_m() % 64 != 0) or (config.b_mn_major() and config.cta_b_rows() % 64 != 0):
        var shown = String(t"mma shape {config.mma_m}x{config.mma_n} with layout {config.layout}")
        var rows = config.cta_b_rows()
        return ConfigError(
            "mma_shape", String(t"{shown}: the {rows} columns of a CTA must be a multiple of 64"), instead="layout"
        )
    return ConfigError()


def cluster_error(config: GemmConfig) -> ConfigError:
    """Checks the shape of a cluster and of a band."""
    var shown = String(t"cluster {config.cluster_m}x{config.cluster_n}")
    if config.cluster_m < 1 or config.cluster_n < 1:
        return ConfigError("cluster", String(t"{shown}: both sizes must be at least 1"))
    if config.cluster_size() > 16:
        return ConfigError("cluster", String(t"{shown} has {config.cluster_size()} CTAs; a cluster has at most 16"))
    if config.cluster_m % config.cta_group != 0:
        return ConfigError(
            "cluster",
            String(
                t"{shown}: {config.cluster_m} CTAs along M cannot be split into pairs, which cta group 2 multiplies"
                t" with"
            ),
            instead="cta_group",
        )
    if config.band_m < 0:
        return ConfigError("band_m", String(t"band of {config.band_m} CTAs along M: it must be at least 1"))
    return ConfigError()


def sharing_error(config: GemmConfig) -> ConfigError:
    """Checks multicast slices: a TMA box has at least the 8 lines of a swizzle pattern."""
    var a_is_wrong = config.cta_m() < 8 * config.sharing().a_parts()
    if not a_is_wrong and config.cta_b_rows() >= 8 * config.sharing().b_parts():
        return ConfigError()
    var parts = config.sharing().a_parts() if a_is_wrong else config.sharing().b_parts()
    var rows = String(t"{config.cta_m()} rows of A") if a_is_wrong else String(t"{config.cta_b_rows()} rows of B")
    return ConfigError(
        "cluster",
        String(t"cluster {config.cluster_m}x{config.cluster_n}: {parts} CTAs share {rows} and each needs at least 8"),
        instead="multicast",
    )


def stages_error(config: GemmConfig) -> ConfigError:
    """Checks that the stages fit into shared memory."""
    var most = config.stages_that_fit()
    if not config.kernel.pipelined and config.stages != 1:
        return ConfigError(
            "stages",
            String(t"stages {config.stages}: {config.kernel.name} has no pipeline, its only depth is 1"),
            instead="kernel",
        )
    if config.stages < 1 and most >= 1:
        return ConfigError(
            "stages",
            String(t"stages {config.stages}: the ring needs at least 1; {config.kernel.name} takes 1 to {most} here"),
        )
    if config.stages > most or most < 1:
        var stages = max(config.stages, 1)
        var operands = stages * config.stage_bytes()
        var barriers = 16 * stages + config.fixed_barrier_bytes()
        var declared = config.kernel.buffer_bytes
        var buffers = String(t" + declared buffers {declared}") if declared > 0 else String()
        var total = operands + config.c_bytes() + declared + barriers
        return ConfigError(
            "stages",
            String(
                t"stages {stages}: A and B {operands} + C {config.c_bytes()}{buffers} + barriers {barriers} ="
                t" {total}, more than the {SHARED_MEMORY_LIMIT} bytes of shared memory"
            ),
            instead=StaticString("") if most >= 1 else StaticString("mma_shape"),
        )
    return ConfigError()
