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
from harness.compile.config import KernelConfig, configure, make_config

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
GOLDEN = list(dict.fromkeys(COMMON))


def made_from() -> dict[str, str | None]:
    return {"mojo": mojo_version(), "sources": digest(*imported_sources(driver_source([])))}


def compile_all() -> dict[KernelConfig, str]:
    """The PTX of `GOLDEN` as it is compiled now, whatever the build cache holds."""
    with compiled(driver_source([config.options() for config in GOLDEN])) as program:
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
