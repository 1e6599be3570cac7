"""Linear layers of models, with tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
on_cpu = pytest.importorskip("pytorch_on_cpu")
from torch import nn  # noqa: E402


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    return on_cpu.FakeGpu(monkeypatch)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16, bias=False)).bfloat16()


@pytest.mark.parametrize("size", [(6, 32), (2, 3, 32), (32,)])
def test_a_model_gives_and_learns_the_same(gpu, size):
    ours, theirs = functions.swap(model()), model()
    x = torch.randn(size, generator=torch.Generator().manual_seed(2)).bfloat16()
    found, expected = ours(x), theirs(x)
    assert found.shape == expected.shape and len(gpu.launched) == 2
    assert (found - expected).abs().max() <= 2.0**-6 * expected.abs().max()
    for each in (found, expected):
        each.float().square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (one.grad - other.grad).abs().max() <= 2.0**-5 * other.grad.abs().max()


def test_no_rows_give_no_rows(gpu):
    layer = functions.Linear(32, 64, dtype=torch.bfloat16)
    assert layer(torch.zeros(0, 32).bfloat16()).shape == (0, 64)
    assert layer(torch.zeros(2, 0, 32).bfloat16()).shape == (2, 0, 64) and not gpu.launched


def test_parameters_stay_the_same_objects_and_models_can_be_copied():
    layers = model()
    before = list(layers.parameters())
    assert functions.swap(layers) is layers
    assert all(one is other for one, other in zip(before, layers.parameters(), strict=True))
    assert type(copy.deepcopy(layers)[0]) is functions.Linear and isinstance(layers[0], nn.Linear)
    assert list(layers.state_dict()) == ["0.weight", "0.bias", "2.weight"]


def test_a_layer_that_the_kernels_cannot_compute_stays_and_is_named():
    layers = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 10))
    with pytest.warns(UserWarning, match=r"1 \(64 to 10 columns\) stays PyTorch's: .* multiples of 8"):
        functions.swap(layers)
    assert [type(layer) for layer in layers] == [functions.Linear, nn.Linear]


def test_a_layer_of_another_type_is_refused_not_computed_otherwise():
    with pytest.raises(ValueError, match=r"a is torch.float32; it must be bfloat16 or float16"):
        functions.Linear(32, 64)(torch.zeros(1, 32))
