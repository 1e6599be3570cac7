"""Presets: data that makes legal configurations, and gives way to what is asked for."""

from __future__ import annotations

import pytest

from conftest import BF16_KERNELS
from emugpu.errors import UsageProblem
from harness.compile.catalog import KERNELS
from harness.compile.presets import PRESETS, configure
from harness.report.published import published_figures


@pytest.mark.parametrize("kernel", BF16_KERNELS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_fits_every_kernel(preset, kernel):
    config = configure(kernel, preset)
    for name, value in PRESETS[preset].options.items():
        assert getattr(config, name) == value
    if KERNELS[kernel].is_persistent:
        assert all(getattr(config, name) == value for name, value in PRESETS[preset].walk.items())
    assert config.stages == PRESETS[preset].stages.get(kernel, configure(kernel, preset).stages)


def test_the_presets_are_what_their_names_promise():
    assert set(PRESETS) == {
        "cute-03",
        "cute-04",
        "1cta",
        "2cta",
        "2cta-multicast",
        "tilus-tile",
        "tilus-v6",
        "hopper-2x1",
    }
    one, two, three, four = (configure("kernel7", name) for name in ("1cta", "2cta", "cute-03", "cute-04"))
    assert (one.cta_group, one.mma_shape, one.stages, one.cluster) == (1, (128, 256), 4, (1, 1))
    assert (two.cta_group, two.mma_shape, two.stages, two.cluster) == (2, (256, 256), 4, (2, 1))
    assert not two.multicast and configure("kernel7", "2cta-multicast").multicast
    assert (three.cta_group, three.cluster) == (1, (4, 4)) and (four.cta_group, four.cluster) == (2, (4, 4))
    tilus = [configure(kernel, "tilus-tile") for kernel in ("kernel6", "kernel7")]
    assert [config.stages for config in tilus] == [5, 6]
    assert {(config.dtype, config.mma_shape, config.epilogue_width) for config in tilus} == {("fp16", (256, 256), 32)}


def test_what_is_asked_for_overrides_the_preset():
    config = configure("kernel7", "2cta", stages=3, cluster=(4, 1), multicast=True, dtype=None, arch="auto")
    assert (config.stages, config.cluster, config.multicast) == (3, (4, 1), True)
    assert (config.mma_shape, config.dtype) == ((256, 256), "bf16")


def test_unknown_preset():
    with pytest.raises(UsageProblem, match=r"there is no preset 'x'; use one of: cute-03, .*, default$"):
        configure("kernel7", "x")


def test_published_figures_say_whose_they_are():
    figures = published_figures()
    assert {figure.author for figure in figures} == {"Modular", "CuTe DSL write-up", "Tilus"}
    assert all(figure.source and figure.gpu and figure.shape and figure.dtype for figure in figures)
    modular = {figure.name[:8]: figure.tflops for figure in figures if figure.author == "Modular"}
    assert modular == {"kernel 5": 360.2, "kernel 6": 1429, "kernel 7": 1493, "kernel 8": 1772.9}
    assert {figure.vendor_tflops for figure in figures if figure.author == "Modular"} == {1763}
