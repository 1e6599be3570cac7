"""Uses PyTorch's device of the emulated GPU, and prints as JSON which of its properties hold."""

import copy
import ctypes
import gc
import io
import json
import pickle
import threading

import torch
from torch import nn
from torch.nn import functional

CHECKS = []
CPU = torch.device("cpu")


def check(function):
    CHECKS.append(function)
    return function


def error_of(function, kind=RuntimeError):
    try:
        function()
    except kind as error:
        return str(error)
    return ""


def on(*shape):
    return torch.randn(*shape, device="cuda")


@check
def torch_cuda_answers():
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (9, 0) and "H100" in torch.cuda.get_device_name(0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert torch.version.cuda and len(torch.cuda.get_device_properties(0).uuid.bytes) == 16
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()) as stream:
        assert torch.cuda.current_stream() != torch.cuda.default_stream(), stream
    assert torch.accelerator.current_accelerator().type == "cuda"


@check
def a_tensor_knows_its_device():
    x, y = on(4), torch.randn(4)
    assert x.is_cuda and x.device == torch.device("cuda", 0) and not x.is_cpu
    assert y.device == CPU and not y.is_cuda and x.cpu().device == CPU and y.cuda().is_cuda
    assert torch.equal(y.cuda().cpu(), y) and y.to("cuda").data_ptr() != y.data_ptr()
    assert torch.nn.Linear(2, 3).cuda().weight.is_cuda and torch.tensor([1], device="cuda").is_cuda


@check
def devices_do_not_mix():
    assert "two devices, cuda:0 and cpu" in error_of(lambda: on(4) + torch.ones(4))
    assert "same device" in error_of(lambda: torch.mm(on(4, 4), torch.ones(4, 4)))
    assert torch.equal(torch.ones(2, device="cuda") * torch.tensor(3.0), torch.full((2,), 3.0, device="cuda"))


@check
def a_store_to_the_cpu_takes_indices_of_the_device():
    host, there = torch.zeros(3), torch.tensor([1], device="cuda")
    host[there] = 2
    host[torch.tensor([True, False, False], device="cuda")] = torch.tensor(4.0, device="cuda")
    made = host.index_put((there,), torch.ones(1))
    assert made.device == CPU and made.tolist() == [4, 1, 0] and host.tolist() == [4, 2, 0]
    assert host.index_put_((there,), torch.ones(1), accumulate=True) is host and host.tolist() == [4, 3, 0]


@check
def what_a_gpu_refuses_is_refused():
    host, there = torch.zeros(3), torch.tensor([1], device="cuda")
    assert "two devices" in error_of(lambda: host[there])
    assert "two devices" in error_of(lambda: host.index_put_((there,), torch.ones(1, device="cuda")))
    assert "invalid device ordinal: cuda:1" in error_of(lambda: torch.empty(2, device="cuda:1"))
    assert "invalid device ordinal: cuda:1" in error_of(lambda: host.to("cuda:1"))
    assert "out of memory" in error_of(lambda: torch.empty(1 << 45, device="cuda"), torch.OutOfMemoryError)


@check
def an_operator_may_keep_its_argument():
    kept = []

    @torch.library.custom_op("emulated_test::keep", mutates_args=(), device_types="cpu")
    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.clone()

    x = torch.ones(1000, device="cuda")
    address = x.data_ptr()
    keep(x)
    del x
    gc.collect()
    assert not freed(address) and kept[0].sum() == 1000
    kept.clear()
    assert freed(address)


@check
def views_share_memory():
    x = torch.zeros(4, 6, device="cuda")
    for view in (x.view(24), x.t(), x[1:3], x.view(2, 2, 6), x.as_strided((2,), (7,)), x.unfold(1, 2, 2), x.diagonal()):
        x.zero_()
        view.fill_(2)
        assert x.sum() == 2 * view.numel() and view.untyped_storage().data_ptr() == x.data_ptr()
    assert torch.equal(x.chunk(2)[1].transpose(0, 1).contiguous().cpu(), x.cpu()[2:].t())


@check
def in_place_and_out_keep_the_tensor():
    x, out, empty = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda"), torch.empty(0, device="cuda")
    address = x.data_ptr()
    assert x.add_(1) is x and x.data_ptr() == address and x.tolist() == [1, 1, 1]
    assert torch.add(x, x, out=out) is out and out.tolist() == [2, 2, 2]
    assert torch.add(x, x, out=empty) is empty and empty.tolist() == [2, 2, 2] and empty.is_cuda
    assert x.resize_(5).shape == (5,) and x[:3].tolist() == [1, 1, 1]


@check
def backward_runs_in_another_thread_on_the_same_device():
    threads = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            threads.append(threading.get_ident())
            return torch.full_like(gradient, 2) * torch.ones(gradient.shape, device=gradient.device)

    x = on(8).requires_grad_()
    Double.apply(x).sum().backward()
    assert threads != [threading.get_ident()] and x.grad.is_cuda and x.grad.tolist() == [2] * 8


@check
def results_are_those_of_the_cpu():
    torch.manual_seed(3)
    q, w, b = torch.randn(2, 4, 16, 8), torch.randn(8), torch.randn(8)
    images, kernels = torch.randn(1, 3, 9, 9), torch.randn(2, 3, 3, 3)
    cases = [
        (lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True), (q,)),
        (lambda q, w, b: functional.layer_norm(q, (8,), w, b), (q, w, b)),
        (functional.conv2d, (images, kernels)),
        (lambda q: q.softmax(-1).topk(3).values, (q,)),
        (lambda q: torch.einsum("bhid,bhjd->bhij", q, q), (q,)),
        (lambda q: q[torch.tensor([1, 0])], (q,)),
        (lambda q: torch.cat([q, q]).sort().values, (q,)),
    ]
    for function, given in cases:
        torch.testing.assert_close(function(*(each.cuda() for each in given)).cpu(), function(*given))
    a, b = q[0, 0].bfloat16(), q[0, 0].t().bfloat16()
    assert torch.equal(torch.mm(a.cuda(), b.cuda(), out_dtype=torch.float).cpu(), a.float() @ b.float())
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool):
        assert torch.equal(q.cuda().to(dtype).float().cpu(), q.to(dtype).float()), dtype


@check
def gradients_of_a_layer_norm_are_summed_in_float():
    torch.manual_seed(0)
    x, gradient = torch.randn(64, 32), torch.randn(64, 32).bfloat16()
    weight, exact = (torch.ones(32, dtype=t, requires_grad=True) for t in (torch.bfloat16, torch.float64))
    given = x.bfloat16()
    moved = weight.detach().cuda().requires_grad_()
    functional.layer_norm(given.cuda(), (32,), moved).backward(gradient.cuda())
    functional.layer_norm(given.double(), (32,), exact).backward(gradient.double())
    torch.testing.assert_close(moved.grad.cpu(), exact.grad.bfloat16(), rtol=2**-7, atol=0.004)


@check
def random_numbers_can_be_drawn_again():
    def drawn(seed):
        return torch.randn(5, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).tolist()

    assert drawn(1) == drawn(1) != drawn(2)
    torch.cuda.manual_seed_all(7)
    first = on(3)
    torch.cuda.manual_seed_all(7)
    assert torch.equal(first, on(3))


@check
def nothing_is_measured_and_no_graph_captured():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    assert start.elapsed_time(end) == float("inf")
    graph = torch.cuda.CUDAGraph
    derived = type("Derived", (graph,), {})
    for refused in (graph, derived, torch.cuda.graph, torch.cuda.make_graphed_callables, torch.cuda.graph_pool_handle):
        assert "graphs are not supported" in error_of(refused)


@check
def storages_are_copied_kept_and_resized():
    x = torch.arange(6.0, device="cuda")
    copied, unpickled = copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    file = io.BytesIO()
    torch.save({"whole": x, "part": x[2:4]}, file)
    read, on_cpu = (torch.load(io.BytesIO(file.getvalue()), map_location=to) for to in (None, "cpu"))
    for each in (copied, unpickled, read["whole"]):
        assert each.device == x.device and torch.equal(each, x) and each.data_ptr() != x.data_ptr()
    assert read["part"].data_ptr() == read["whole"].data_ptr() + 8 and on_cpu["part"].tolist() == [2, 3]
    assert "invalid device ordinal" in error_of(lambda: torch.UntypedStorage(4, device="cuda:1"))
    storage = copied.untyped_storage()
    assert storage.resize_(8).nbytes() == 8 and torch.equal(torch.empty(0, device="cuda").set_(storage), x[:2])
    storage.resize_(0)
    assert storage.resize_(24).device == x.device and torch.equal(copied.copy_(x), x)


@check
def memory_is_counted():
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    large = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    small = torch.empty(1, device="cuda")
    assert torch.cuda.memory_allocated() == before + (1 << 20) + 512 == torch.cuda.memory_reserved()
    assert torch.cuda.mem_get_info()[0] == free - (1 << 20) - 4
    torch.cuda.reset_peak_memory_stats()
    del large
    gc.collect()
    assert torch.cuda.memory_allocated() == before + 512 and small.is_cuda
    assert torch.cuda.max_memory_allocated() == before + (1 << 20) + 512
    assert torch.cuda.mem_get_info()[0] == free - 4
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] == 0 < stats["allocation.all.current"]
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert "out of memory" in error_of(lambda: torch.empty(81 << 30, device="cuda"), torch.OutOfMemoryError)


@check
def memory_of_the_cpu_can_be_pinned():
    x, y = torch.arange(4.0).pin_memory(), torch.empty(4, pin_memory=True)
    assert x.is_pinned() and y.is_pinned() and x[3:].is_pinned() and x.is_cpu
    assert not torch.ones(4).is_pinned() and not x.cuda().is_pinned()
    assert torch.equal(y.copy_(x.cuda(non_blocking=True), non_blocking=True), x)
    address = x.data_ptr()
    del x
    gc.collect()
    assert freed(address) and not freed(y.data_ptr())


@check
def streams_are_those_of_torch():
    x, stream = torch.ones(4, device="cuda"), torch.cuda.Stream()
    for each in (stream, torch.cuda.current_stream(), torch.cuda.ExternalStream(stream.cuda_stream)):
        x.record_stream(each)
        assert isinstance(each, torch.Stream) and each.device == x.device and each.query()
    with torch.cuda.nvtx.range("ignored"):
        assert stream == torch.cuda.ExternalStream(stream.cuda_stream) != torch.cuda.current_stream()


@check
def recurrent_layers_have_the_results_and_gradients_of_the_cpu():
    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(1)
        layer, given = kind(3, 5, num_layers=2, batch_first=True), torch.randn(2, 4, 3)
        there = copy.deepcopy(layer).cuda()
        for each, x in ((layer, given), (there, given.cuda())):
            each(x)[0].square().sum().backward()
        torch.testing.assert_close(there(given.cuda())[0].cpu(), layer(given)[0])
        for ours, theirs in zip(there.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@check
def an_operator_of_cuda_alone_is_named():
    q = on(1, 16, 4, 8).half()
    arguments = (q, q, q, None, None, 16, 16, 0.0, False, False)
    text = error_of(lambda: torch.ops.aten._flash_attention_forward(*arguments), NotImplementedError)
    assert "aten::_flash_attention_forward is an operator that PyTorch has for CUDA alone" in text, text


@check
def memory_is_freed_when_a_tensor_dies():
    address = on(1000).data_ptr()
    gc.collect()
    kept = on(1000)
    assert freed(address) and not freed(kept.data_ptr())


def freed(address):
    value = ctypes.c_uint64()
    return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(ctypes.byref(value), 3, ctypes.c_uint64(address)) != 0


def main():
    found = {}
    for function in CHECKS:
        try:
            function()
            found[function.__name__] = ""
        except Exception as error:
            found[function.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
