"""Reads a configuration from options. The kernel chooses the options that are left out."""
from .block_scaling import E4M3, find_scaling
from .epilogues import Fusion, epilogue_names, epilogue_number
from .layer_config import LayerConfig
from .options import Options
from .schedule import *
from .series import find_kernel, kernel_names
from .tile import element_bytes
from .types import OUT_DTYPES, dtype_names, element_type, float_name
from .word import Word


__extension LayerConfig:
    def __init__(out self, var options: Options) raises:
        """Takes the given options. The kernel chooses the others."""
        var arch = options.word[["sm_100a", "sm_90a"]]("arch", "sm_100a")
        var kernel = find_kernel(options.word[kernel_names()]("kernel", "kernel6")).capabilities
        var direct = kernel.reads_directly
        var blackwell = arch == "sm_100a" and not direct
        var dtype = options.word[dtype_names()]("dtype", "bf16")
        self.scaling = find_scaling(dtype)
        var scales: Word = "none"
        if kernel.is_block_scaled:
            scales = "block"
        elif dtype == E4M3.name:
            scales = "tensor"
        self.scales = options.word[["none", "tensor", "block"]]("scales", scales)
        var out_dtype = options.word[OUT_DTYPES]("out_dtype", float_name(element_type(dtype)))
        self.out_scaling = find_scaling(out_dtype)
        self.grouped = options.switch("grouped")
        self.masked = options.switch("masked")
        self.swapped = options.switch("swapped")
        self.ping_pong = options.switch("ping_pong")
        self.split_k = options.number("split_k", 8 if direct else 1)
        self.layout = matching_string["nt", "nn", "tn", "tt"](options.word[["nt", "nn", "tn", "tt"]]("layout", "nt"))
        self.epilogue = epilogue_number(options.word[epilogue_names()]("epilogue", "none"))
        self.results = Fusion(self.epilogue).results * min(8, self.out_scaling.bits) // 8
        var cta_group = options.number("cta_group", 2 if blackwell else 1)
        var mma_m = options.number("mma_m", 16 if direct else 128 * cta_group)
        var consumers = 1 if mma_m == 64 and not self.ping_pong else 2
        var bands = kernel.double_buffers_epilogue and not kernel.is_persistent and not blackwell
        var scheduler: Word = "none"
        if kernel.is_persistent:
            scheduler = "clc" if blackwell and not self.grouped else "static"
        var raster_group = 1
        if kernel.is_persistent:
            raster_group = 16 if self.ping_pong else 8
        self.accumulators = options.number("accumulators", 2 if blackwell and kernel.is_persistent else 1)
        # A step is half as wide if C is f32, or if it has two buffers and no scale factors.
        var halves = out_dtype == "f32" or (kernel.double_buffers_epilogue and self.out_scaling.bits == 16)
        self.gemm = {
            kernel = kernel,
            arch = matching_string["sm_100a", "sm_90a"](arch),
            dtype = element_type(dtype),
            out_dtype = element_type(out_dtype),
            layout = self.layout,
            cta_group = cta_group,
            mma_m = mma_m,
            mma_n = options.number("mma_n", 32 if direct else 256),
            consumers = consumers,
            consumers_of_tile = 1 if self.ping_pong else consumers,
            consumer_arrivals = 1,
            stages = 0,
            more_stage_bytes = 0,
            cluster_m = options.number("cluster_m", 1 if direct else 4 if blackwell and not self.grouped else 2),
            cluster_n = options.number("cluster_n", 4 if blackwell and not self.grouped else 1),
            multicast = options.switch("multicast", True),
            epilogue_width = 32 if halves else 64,
            step_row_bytes = 0,
            accumulator_barriers = 1 if kernel.is_block_scaled else self.accumulators,
            shared_columns = 0,
            tmem_columns = 0,
            band_m = options.number("band_m", 2048 // max(1, mma_m) if bands else 0),
            scheduler = options.word[["clc", "static", "dynamic", "none"]]("scheduler", scheduler),
            raster_group = options.number("raster_group", raster_group),
            response_slots = 0,
        }
        self.clc_depth, self.sms = 0, 0
        # All fields have a value from here on, so methods may be called.
        if self.swapped and self.a_is_k_by_m() != self.b_is_k_by_n():  # the MMA's A is the tensor B
            self.gemm.layout = "tt" if self.b_is_k_by_n() else "nn"
        while self.gemm.epilogue_width > 16 and (direct or self.gemm.warp_columns() % self.gemm.epilogue_width != 0):
            self.gemm.epilogue_width //= 2
        self.gemm.epilogue_width = options.number("epilogue_width", self.gemm.epilogue_width)
        self.gemm.step_row_bytes = self.step_columns() * element_bytes(self.gemm.out_dtype)
        self.gemm.shared_columns = self.shared_columns()
        self.gemm.tmem_columns = self.tmem_columns()
        if self.has_scale_factors():
            self.gemm.more_stage_bytes = self.a_scale_bytes() + self.b_scale_bytes()
        if self.promotes():
            self.gemm.consumer_arrivals = 4  # each warp reads its scale factors itself
        self.clc_depth = options.number("clc_depth", 2 if self.gemm.cancels_clusters() else 0)
        # One slot is best with a counter, because other clusters can take any tile that this one has not fetched.
        self.gemm.response_slots = 1 if self.gemm.counts_tiles() else self.clc_depth
        var resident = resident_ctas(self.gemm.cluster_size(), blackwell) if self.gemm.fills_sms() else 0
        self.sms = options.number("sms", resident)
        var depth = max(1, 64 // max(1, self.gemm.mma_n)) if direct else 1
        self.gemm.stages = options.number("stages", self.stages_that_fit() if kernel.pipelined else depth)
        options.finish()


def matching_string[*choices: StaticString](word: Word) -> StaticString:
    """Returns the choice that equals the word, as a string, for comparisons in the code of a kernel. LLVM evaluates
    comparisons of strings later than of numbers, which changes the order of instructions."""
    comptime for i in range(choices.size):
        if word == choices[i]:
            return choices[i]
    return ""
