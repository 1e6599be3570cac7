"""Checked-in PTX of the kernels that many tests run, so that those tests compile nothing.

`tests/data/kernels.json.xz` holds the PTX of each of `GOLDEN`, and what it was made from: the version of Mojo and a
hash of the Mojo sources. `fill_cache` puts the PTX into the build cache, but only if it was made from what is here now.
After an edit of kernels/ the tests compile as they would without this file, and `tests/kernels/test_golden.py` fails
until somebody renews it:

    python tests/support/golden.py
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from harness.compile.artifacts import is_built, keep
from harness.compile.catalog import kernels_of
from harness.compile.compiler import ask, compiled, digest, driver_source, imported_sources, mojo_version
from harness.compile.config import KernelConfig, make_config
from harness.compile.presets import configure

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "kernels.json.xz"
CLUSTERS = ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
BF16_KERNELS = kernels_of("bf16")
SERIES = {kernel: make_config(kernel, cluster=(2, 1)) for kernel in BF16_KERNELS}
COMMON = [
    *(make_config("kernel6", cluster=cluster) for cluster in CLUSTERS),
    *SERIES.values(),
    *(configure(kernel, "2cta", stages=1) for kernel in BF16_KERNELS),
    *(make_config(kernel, arch="sm_90a") for kernel in BF16_KERNELS),
]
"""What several files use."""
OTHERS = [
    make_config("kernel5"),
    make_config("kernel5", arch="sm_90a", mma_shape=(128, 192), cluster=(2, 2)),
    make_config("kernel5", arch="sm_90a", cluster=(1, 1)),
    make_config("kernel5", arch="sm_90a", multicast=False),
    make_config("kernel5", arch="sm_90a", mma_shape=(256, 128), cluster=(1, 1)),
    make_config("kernel5", arch="sm_90a", mma_shape=(64, 128)),
    make_config("kernel5", arch="sm_90a", mma_shape=(64, 128), multicast=False),
    make_config("kernel5", arch="sm_90a", mma_shape=(64, 256)),
    make_config("kernel6", arch="sm_90a", mma_shape=(64, 256), cluster=(1, 2)),
    make_config("kernel7"),
    make_config("kernel7", arch="sm_90a", mma_shape=(128, 128), stages=2, cluster=(1, 1)),
    make_config("kernel7", arch="sm_90a", mma_shape=(128, 128), cluster=(1, 1)),
    make_config("kernel7", arch="sm_90a", mma_shape=(128, 128), stages=2),
    make_config("kernel7", arch="sm_90a", stages=2, cluster=(1, 1)),
    make_config("kernel7", arch="sm_90a", stages=2, cluster=(1, 1), multicast=False),
    make_config("kernel7", arch="sm_90a", stages=3, cluster=(1, 1), epilogue_width=64),
    make_config("kernel7", arch="sm_90a", cluster=(1, 1)),
    make_config("kernel7", arch="sm_90a", cluster=(1, 2), multicast=False),
    make_config("kernel7", arch="sm_90a", stages=2),
    make_config("kernel7", arch="sm_90a", stages=2, multicast=False),
    make_config("kernel7", arch="sm_90a", stages=3),
    make_config("kernel7", arch="sm_90a", multicast=False),
    make_config("kernel7", arch="sm_90a", mma_shape=(256, 128), stages=2, cluster=(1, 1)),
    make_config("kernel8", cluster=(2, 1), scheduler="static", sms=4),
    make_config("kernel8"),
    make_config("kernel8", arch="sm_90a", stages=3, ping_pong=True),
    make_config("kernel8", arch="sm_90a", cluster=(2, 1), scheduler="dynamic"),
    make_config("kernel8", arch="sm_90a", cluster=(2, 1)),
    make_config("kernel8", arch="sm_90a", scheduler="dynamic"),
    make_config("kernel8", arch="sm_90a", stages=6, scheduler="dynamic"),
    make_config("kernel8", arch="sm_90a", mma_shape=(64, 256), cluster=(1, 2), raster_group=1),
    make_config("kernel8", cta_group=1, cluster=(1, 1), mma_shape=(64, 32), stages=2, epilogue="residual"),
    make_config("kernel8", cta_group=1, cluster=(1, 1), mma_shape=(64, 32), stages=2, epilogue="swiglu"),
    make_config("kernel9", cluster=(2, 1)),
    make_config("kernel9", dtype="mxfp8", cta_group=1, cluster=(1, 2), mma_shape=(128, 256), out_dtype="f32"),
]
"""What single tests of the command line, the model and the debugger use. Another kernel is compiled when it is used; it
belongs here if the test is quick."""
GOLDEN = list(dict.fromkeys([*COMMON, *OTHERS]))


def made_from() -> dict[str, str | None]:
    return {"mojo": mojo_version(), "sources": digest(*imported_sources(driver_source([]), ROOT))}


def compile_all() -> dict[KernelConfig, str]:
    """The PTX of `GOLDEN` as it is compiled now, whatever the build cache holds."""
    with compiled(driver_source([config.options() for config in GOLDEN]), ROOT) as program:
        return {config: ask(program, "ptx", number) for number, config in enumerate(GOLDEN)}


def read() -> tuple[dict[str, str | None], dict[KernelConfig, str]]:
    """What the checked-in PTX was made from, and the PTX."""
    data = json.loads(lzma.decompress(FILE.read_bytes()))
    return data["made_from"], {KernelConfig.from_json(json.dumps(one["config"])): one["ptx"] for one in data["kernels"]}


def write() -> None:
    kernels = [{"config": config.as_dict(), "ptx": ptx} for config, ptx in compile_all().items()]
    text = json.dumps({"made_from": made_from(), "kernels": kernels})
    FILE.write_bytes(lzma.compress(text.encode(), preset=9))


def fill_cache() -> None:
    if not FILE.exists():
        return
    source, kernels = read()
    if source == made_from():
        keep({config: ptx for config, ptx in kernels.items() if not is_built(config)})


if __name__ == "__main__":
    write()
    print(f"{FILE.relative_to(ROOT)}: {len(GOLDEN)} kernels, {FILE.stat().st_size:,} bytes")
