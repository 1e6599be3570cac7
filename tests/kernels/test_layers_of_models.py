"""Kernel 8 with what it chooses for layers of real models and few to many tokens: bit-exact."""

from __future__ import annotations

import pytest
from kernel_runs import run

from harness.compile.catalog import ARCHITECTURES
from harness.compile.config import make_config
from harness.problem import Shape

# N x K as the configurations of the models have them: Llama 3 8B (QKV, output, gate and up, down), 70B likewise,
# Llama 2 13B (output), DeepSeek-V3 (output, queries, an expert's gate and up).
LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    *((5120, 5120), (7168, 16384), (24576, 1536), (4096, 7168)),
)
TOKENS = (1, 2, 8, 17, 32, 48, 64, 128, 777)
MOST = 1 << 33
"""Multiplications of a run, some ten seconds: of larger problems K is halved, for what was chosen for all of it."""


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer[0]}x{layer[1]}")
def test_every_element_is_exact(builder, layer, arch):
    problems = [Shape(tokens, *layer) for tokens in TOKENS]
    configs = [make_config("kernel8", arch=arch, shape=shape) for shape in problems]
    artifacts = builder(f"layers {arch} {layer}", list(dict.fromkeys(configs)))
    built = {artifact.config: artifact for artifact in artifacts}
    for number, (config, shape) in enumerate(zip(configs, problems, strict=True)):
        k = shape.k
        while shape.m * shape.n * k > MOST:
            k //= 2
        kind, schedule = (("index", "random"), ("integer", "fifo"))[number % 2]
        _, validation = run(built[config], (shape.m, shape.n, k), kind, schedule=schedule, seed=number)
        assert validation.exact and validation.mismatches == 0, (
            shape,
            k,
            config.label,
            validation.first_mismatches[:2],
        )


def test_few_tokens_get_tiles_of_their_own():
    """So the runs above are of swapped operands, of splits of K and of whole tiles, on both architectures."""
    for arch in ARCHITECTURES:
        chosen = {
            make_config("kernel8", arch=arch, shape=Shape(tokens, *layer)) for tokens in TOKENS for layer in LAYERS
        }
        assert len(chosen) > 10 and {config.swapped for config in chosen} == {True, False}
        assert len({config.split_k for config in chosen}) > 2
