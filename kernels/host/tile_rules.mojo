"""Rules about tiles: MMA shape, layout, cluster, multicast and stages must be possible on the hardware."""
from ..common.block_scaling import ATOM_ROWS, F32_BLOCK
from ..common.config import SHARED_MEMORY_LIMIT, SharedMemory
from ..common.layer_config import LayerConfig
from .config_error import ConfigError


def check_mma(config: LayerConfig) raises ConfigError:
    """Checks the MMA shape: that of tcgen05.mma on sm_100a (PTX ISA 9.7.16.2.1). On sm_90a, it is a tile whose
    accumulators fit into registers, in instructions of 64 rows and up to 256 columns (PTX ISA 9.7.15.2)."""
    var gemm = config.gemm
    if gemm.cta_group != 1 and not (gemm.cta_group == 2 and gemm.has_tmem()):
        raise ConfigError("cta_group", t"cta group {gemm.cta_group} is not possible on {gemm.arch}", instead="arch")
    var shown = String(t"mma shape {gemm.mma_m}x{gemm.mma_n} with cta group {gemm.cta_group}")
    if gemm.kernel.is_block_scaled:
        var rows = ATOM_ROWS * gemm.cta_group
        if gemm.mma_m != rows or (gemm.mma_n != ATOM_ROWS and gemm.mma_n != 2 * ATOM_ROWS):
            raise ConfigError(
                "mma_shape",
                t"{shown}: block-scaled, it must be {rows}x256 or {rows}x128, whole atoms of scale factors",
                instead="cta_group",
            )
    var smallest = 64 * gemm.cta_group
    var largest = 128 * gemm.cta_group if gemm.has_tmem() else 256
    if gemm.mma_m != smallest and gemm.mma_m != 2 * smallest and gemm.mma_m != largest:
        var rows = String(t"{smallest} or {2 * smallest}") if gemm.has_tmem() else String("64 or 128 or 256")
        raise ConfigError("mma_shape", t"{shown}: M must be {rows}", instead="cta_group")
    # On sm_90a, a thread holds at most 128 accumulators.
    var most = 128 if not gemm.has_tmem() and gemm.mma_m == 256 else 256
    var step = 16 * gemm.cta_group
    if gemm.mma_n < step or gemm.mma_n > most or gemm.mma_n % step != 0:
        raise ConfigError("mma_shape", t"{shown}: N must be a multiple of {step} up to {most}")
    if config.promotes() and gemm.mma_n % F32_BLOCK != 0 and F32_BLOCK % gemm.mma_n != 0:
        raise ConfigError(
            "mma_shape",
            t"{shown}: with scales block N must be 256, or divide the 128 rows of B that share a factor",
            instead="scales",
        )


def check_layout(config: LayerConfig) raises ConfigError:
    """Checks MN-major operands: boxes have 64 rows (PTX ISA 5.5.7), elements have 16 bits (PTX ISA 9.7.15.5)."""
    var gemm = config.gemm
    if config.layout != "nt" and config.scaling.bits < 16:
        var message = String(t"layout {config.layout}: {config.scaling.name} is multiplied as nt only")
        raise ConfigError("layout", message, instead="dtype")
    if (gemm.a_mn_major() and gemm.cta_m() % 64 != 0) or (gemm.b_mn_major() and gemm.cta_b_rows() % 64 != 0):
        var shown = String(t"mma shape {gemm.mma_m}x{gemm.mma_n} with layout {config.layout}")
        var rows = gemm.cta_b_rows()
        var message = String(t"{shown}: the {rows} columns of a CTA must be a multiple of 64")
        raise ConfigError("mma_shape", message, instead="layout")


def check_cluster(config: LayerConfig) raises ConfigError:
    """Checks the shape of a cluster and of a band."""
    var gemm = config.gemm
    var shown = String(t"cluster {gemm.cluster_m}x{gemm.cluster_n}")
    if gemm.cluster_m < 1 or gemm.cluster_n < 1:
        raise ConfigError("cluster", t"{shown}: both sizes must be at least 1")
    if gemm.cluster_size() > 16:
        raise ConfigError("cluster", t"{shown} has {gemm.cluster_size()} CTAs; a cluster has at most 16")
    if gemm.cluster_m % gemm.cta_group != 0:
        raise ConfigError(
            "cluster",
            t"{shown}: {gemm.cluster_m} CTAs along M cannot be split into pairs, which cta group 2 multiplies with",
            instead="cta_group",
        )
    if gemm.band_m < 0:
        raise ConfigError("band_m", t"band of {gemm.band_m} CTAs along M: it must be at least 1")


def check_sharing(config: LayerConfig) raises ConfigError:
    """Checks multicast slices: a TMA box has at least the 8 lines of a swizzle pattern."""
    var gemm = config.gemm
    var a_is_wrong = gemm.cta_m() < 8 * gemm.sharing().a_parts()
    if not a_is_wrong and gemm.cta_b_rows() >= 8 * gemm.sharing().b_parts():
        return
    var parts = gemm.sharing().a_parts() if a_is_wrong else gemm.sharing().b_parts()
    var rows = String(t"{gemm.cta_m()} rows of A") if a_is_wrong else String(t"{gemm.cta_b_rows()} rows of B")
    raise ConfigError(
        "cluster",
        t"cluster {gemm.cluster_m}x{gemm.cluster_n}: {parts} CTAs share {rows} and each needs at least 8",
        instead="multicast",
    )


def check_stages(config: LayerConfig) raises ConfigError:
    """Checks that the stages fit into shared memory."""
    var gemm = config.gemm
    var most = config.stages_that_fit()
    if not gemm.kernel.pipelined and gemm.stages != 1:
        var message = String(t"stages {gemm.stages}: {gemm.kernel.name} has no pipeline, its only depth is 1")
        raise ConfigError("stages", message, instead="kernel")
    if gemm.stages < 1 and most >= 1:
        raise ConfigError(
            "stages",
            t"stages {gemm.stages}: the ring needs at least 1; {gemm.kernel.name} takes 1 to {most} here",
        )
    if gemm.stages > most or most < 1:
        var stages = max(gemm.stages, 1)
        var operands = stages * gemm.stage_bytes()
        var layout = SharedMemory(gemm)
        var barriers = config.shared_memory_bytes() - layout.responses + 16 * (stages - gemm.stages)
        var declared = gemm.kernel.buffer_bytes
        var buffers = String(t" + declared buffers {declared}") if declared > 0 else String()
        var total = operands + gemm.c_bytes() + declared + barriers
        raise ConfigError(
            "stages",
            String(
                t"stages {stages}: A and B {operands} + C {gemm.c_bytes()}{buffers} + barriers {barriers} ="
                t" {total}, more than the {SHARED_MEMORY_LIMIT} bytes of shared memory"
            ),
            instead=StaticString("") if most >= 1 else StaticString("mma_shape"),
        )
