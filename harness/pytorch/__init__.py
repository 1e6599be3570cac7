"""The kernels as PyTorch functions, on CUDA tensors, without copies.

    from harness.pytorch import grouped_matmul, matmul, scaled_matmul
    c = matmul(a, b)                                # a [M, K], b [N, K] -> a @ b.T, both bfloat16 or float16
    c = matmul(a, b, kernel="kernel6", cluster=(2, 1), out=c)
    c = matmul(a, b, bias=bias, activation="gelu", out_dtype=torch.float32)
    c = matmul(x[:, :K], w.t())                     # views: x [M, more than K], w [K, N]
    c = scaled_matmul(a, b, a_scales, b_scales)     # both float8_e4m3fn, float32 scale factors of blocks
    h, of_h = scaled_matmul(a, b, a_scales, b_scales, out_dtype=torch.float8_e4m3fn)  # on sm_100a "nvfp4"
    c = scaled_matmul(h, w, of_h, w_scales)         # C with its scale factors is A of the next product
    c = grouped_matmul(a, b, group_sizes)           # b [groups, N, K], one for each group of rows of a
    swap(model)                                     # all Linear layers of a model
    warm([(1, 4096, 4096), (512, 4096, 4096)])      # compiles and loads before the first call

A call is asynchronous like any other: it is queued on PyTorch's current stream. Mojo compiles a kernel at its first
use; the CUDA driver loads and launches it.

`functions` says what is asked for; `differentiable` adds gradients; `calls` keeps what a call found, and launches;
`checks` finds the problem in the tensors. `operator` is what torch.compile sees. Configurations and launches are of
`harness.launch` (`configure`, `launcher`).
"""

from harness.pytorch.functions import grouped_matmul, matmul, scaled_matmul, warm
from harness.pytorch.layers import Linear, swap

__all__ = ["Linear", "grouped_matmul", "matmul", "scaled_matmul", "swap", "warm"]
