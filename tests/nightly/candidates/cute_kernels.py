"""The CuTe DSL GEMMs of the test data with other tiles: ``python cute_kernels.py FOLDER``, without a GPU."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

DATA = Path(__file__).parents[3] / "tests" / "data" / "cute"
sys.path.insert(0, str(DATA))

from cutlass import BFloat16, Float8E4M3FN, Float16, Float32  # noqa: E402

kernels = import_module("kernels")  # of DATA

NAMES = {BFloat16: "bf16", Float16: "f16", Float8E4M3FN: "e4m3", Float32: "f32"}
GEMMS = {
    "gemm_128x128": (BFloat16, Float32, (128, 128, 64), (1, 1), 1),
    "gemm_f16_128x32": (Float16, Float16, (128, 32, 64), (1, 1), 1),
    "gemm_multicast": (BFloat16, BFloat16, (128, 64, 64), (2, 2), 1),
    "gemm_fp8_128x128": (Float8E4M3FN, Float32, (128, 128, 128), (1, 1), 1),
    "gemm_pair": (BFloat16, Float32, (256, 64, 64), (2, 1), 2),
    "gemm_pair_128": (Float16, Float32, (256, 128, 64), (2, 1), 2),
}
PERSISTENT = {
    "persistent_64x128": (BFloat16, BFloat16, (64, 128, 64)),
    "persistent_64x32": (Float16, Float32, (64, 32, 64)),
    "persistent_fp8_64x32": (Float8E4M3FN, Float32, (64, 32, 128)),
}


def launch(element: type, of_c: type, tile: tuple[int, int, int], cluster: tuple[int, int], group: int) -> str:
    """A launch of one cluster, over three tiles along N."""
    (m, n, k), (across, down) = tile, cluster
    rows, columns, depth = m // group * across, 3 * n * down, 8 * k
    grid = f"[{across}, {down}, 1]\nlaunch.cluster = [{across}, {down}]"
    boxes = {"a": m // group // down, "b": n // group // (across // group)}
    buffers = {"a": (element, rows, depth), "b": (element, columns, depth), "c": (of_c, rows, columns)}
    lines = [f"launch.grid = {grid}", 'expect.c = "a @ b.T"']
    lines.append(
        f'launch.arguments = ["null", "ma", {{ fields = [{rows}, {depth}] }}, "mb", '
        f'{{ fields = [{columns}, {depth}] }}, {{ fields = ["c", {rows}, {columns}, {{ u64 = {columns} }}] }}]'
    )
    for name, (dtype, high, wide) in buffers.items():
        init = "nan" if name == "c" else "integer"
        lines.append(f'buffers.{name} = {{ dtype = "{NAMES[dtype]}", shape = [{high}, {wide}], init = "{init}" }}')
    lines += [
        f'maps.m{name} = {{ buffer = "{name}", tile = [{box}, {k}], swizzle = "128B" }}' for name, box in boxes.items()
    ]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    """Writes PTX and a launch file for each kernel."""
    kernels.GEMMS.update(GEMMS)
    kernels.PERSISTENT.update(PERSISTENT)
    whole = {name: (*what, "100a") for name, what in GEMMS.items()}
    whole |= {name: (*what, (1, 1), 1, "90a") for name, what in PERSISTENT.items()}
    for name, (element, of_c, tile, cluster, group, arch) in whole.items():
        ptx, shared = kernels.compiled(name, arch)
        path = folder / f"cute-{name}-sm_{arch}"
        path.with_suffix(".ptx").write_text(ptx.rstrip("\0\n") + "\n", encoding="utf-8")
        text = f'ptx = "{path.name}.ptx"\nlaunch.dynamic_shared = {shared}\n'
        path.with_suffix(".toml").write_text(text + launch(element, of_c, tile, cluster, group), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
