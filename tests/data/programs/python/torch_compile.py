"""Compiles a layer and its gradients by torch.compile, and compares them with those of PyTorch's operators."""

import torch
from torch import nn
from torch.nn import functional


def main():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 40), nn.GELU()).cuda()
    given, wanted = torch.randn(5, 96, device="cuda"), torch.randn(5, 40, device="cuda")

    def loss(x, y):
        return functional.mse_loss(layer(x).softmax(-1), y)

    def gradients(function):
        layer.zero_grad()
        value = function(given, wanted)
        value.backward()
        return [value, *(parameter.grad.clone() for parameter in layer.parameters())]

    for compiled, eager in zip(gradients(torch.compile(loss, fullgraph=True)), gradients(loss), strict=True):
        torch.testing.assert_close(compiled, eager)

    @torch.compile(mode="reduce-overhead")
    def dropped(x):
        return functional.dropout(x, 0.25)

    torch.manual_seed(1)
    first = dropped(given)
    kept = first != 0
    torch.testing.assert_close(first[kept], given[kept] / 0.75)
    assert 0.6 < kept.float().mean() < 0.9, kept

    multiplied = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs", dynamic=False)
    torch.testing.assert_close(multiplied(given, given.t()), given @ given.t(), rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()
