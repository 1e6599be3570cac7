"""Reads a configuration from options. The kernel chooses the options that are left out."""
from .block_scaling import E4M3, find_scaling
from .config import SWIZZLE_ROW_BYTES, GemmConfig, resident_ctas
from .epilogues import Fusion, epilogue_names, epilogue_number
from .options import Options
from .series import find_kernel, kernel_names
from .types import OUT_DTYPES, dtype_names, element_type, float_name
from .word import Word, matching_string


__extension GemmConfig:
    def __init__(out self, var options: Options) raises:
        """Takes the given options. The kernel chooses the others."""
        var arch = options.word[["sm_100a", "sm_90a"]]("arch", "sm_100a")
        var blackwell = arch == "sm_100a"
        var kernel = find_kernel(options.word[kernel_names()]("kernel", "kernel6")).capabilities
        self.kernel = kernel
        self.arch = matching_string["sm_100a", "sm_90a"](arch)
        var dtype = options.word[dtype_names()]("dtype", "bf16")
        self.scaling = find_scaling(dtype)
        self.dtype = element_type(dtype) if self.scaling.bits == 16 else DType.bfloat16
        var scales: Word = "none"
        if kernel.is_block_scaled:
            scales = "block"
        elif dtype == E4M3.name:
            scales = "tensor"
        self.scales = options.word[["none", "tensor", "block"]]("scales", scales)
        var out_dtype = options.word[OUT_DTYPES]("out_dtype", float_name(self.dtype))
        self.out_dtype = element_type(out_dtype)
        self.out_scaling = find_scaling(out_dtype)
        self.cta_group = options.number("cta_group", 2 if blackwell else 1)
        self.mma_m = options.number("mma_m", 128 * self.cta_group)
        self.mma_n = options.number("mma_n", 256)
        self.block_k = options.number("block_k", 8 * SWIZZLE_ROW_BYTES // self.scaling.bits)
        self.grouped = options.switch("grouped")
        self.masked = options.switch("masked")
        self.cluster_m = options.number("cluster_m", 4 if blackwell and not self.grouped else 2)
        self.cluster_n = options.number("cluster_n", 4 if blackwell and not self.grouped else 1)
        self.multicast = options.switch("multicast", True)
        var bands = kernel.double_buffers_epilogue and not kernel.is_persistent and not blackwell
        self.band_m = options.number("band_m", 2048 // max(1, self.mma_m) if bands else 0)
        self.ping_pong = options.switch("ping_pong")
        var scheduler: Word = "none"
        if kernel.is_persistent:
            scheduler = "clc" if blackwell and not self.grouped else "static"
        self.scheduler = options.word[["clc", "static", "dynamic", "none"]]("scheduler", scheduler)
        var raster_group = 16 if self.ping_pong else 8
        self.raster_group = options.number("raster_group", raster_group if kernel.is_persistent else 1)
        self.accumulators = options.number("accumulators", 2 if blackwell and kernel.is_persistent else 1)
        self.epilogue = epilogue_number(options.word[epilogue_names()]("epilogue", "none"))
        self.results = Fusion(self.epilogue).results * min(8, self.out_scaling.bits) // 8
        self.split_k = options.number("split_k", 1)
        self.layout = matching_string["nt", "nn", "tn", "tt"](options.word[["nt", "nn", "tn", "tt"]]("layout", "nt"))
        self.swapped = options.switch("swapped")
        # A step is half as wide if C is f32, or if it has two buffers and no scale factors.
        var halves = self.out_dtype == DType.float32
        halves = halves or (kernel.double_buffers_epilogue and self.out_scaling.bits == 16)
        self.epilogue_width = 32 if halves else 64
        self.clc_depth, self.sms, self.stages = 0, 0, 1
        # All fields have a value from here on, so methods may be called.
        while self.epilogue_width > 16 and self.warp_columns() % self.epilogue_width != 0:
            self.epilogue_width //= 2
        self.epilogue_width = options.number("epilogue_width", self.epilogue_width)
        self.clc_depth = options.number("clc_depth", 2 if self.cancels_clusters() else 0)
        self.sms = options.number("sms", resident_ctas(self.cluster_size(), blackwell) if self.fills_sms() else 0)
        self.stages = options.number("stages", self.stages_that_fit() if kernel.pipelined else 1)
        options.finish()
