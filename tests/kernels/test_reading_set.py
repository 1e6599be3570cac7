"""What a reader of kernels 5 to 7 opens: all files that a kernel imports, with no word of what only kernels 8, 9 do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import paths

KERNELS = paths.kernels_dir()
IMPORT = re.compile(r"^from (\.+)([\w.]*) import", re.MULTILINE)
LAYERS = re.compile(r"swapped|grouped|masked|groups\.mojo|split.?k\b|splits_k|quantis|promot|fused", re.IGNORECASE)


def imported(path: Path) -> set[Path]:
    """The files of kernels/ that this one imports."""
    found = set()
    for dots, name in IMPORT.findall(path.read_text()):
        file = path.parents[len(dots) - 1].joinpath(*name.split(".")).with_suffix(".mojo")
        assert file.is_file(), (path, dots + name)
        found.add(file)
    return found


def reading_set(path: Path) -> set[Path]:
    found, waiting = set(), {path}
    while waiting:
        found |= waiting
        waiting = set().union(*map(imported, waiting)) - found
    return found


@pytest.mark.parametrize("kernel", ["kernel5", "kernel6", "kernel7"])
@pytest.mark.parametrize("arch", ["sm100", "sm90"])
def test_kernels_5_to_7_know_nothing_of_layers(arch, kernel):
    files = reading_set(KERNELS / arch / f"{kernel}.mojo")
    assert len(files) > 10
    lines = [f"{path.name}:{n}: {line}" for path in sorted(files) for n, line in enumerate(path.open(), 1)]
    assert not [line for line in lines if LAYERS.search(line)]


def test_kernel_8_knows_them():
    files = reading_set(KERNELS / "sm100" / "kernel8.mojo")
    words = {word.lower() for path in files for word in LAYERS.findall(path.read_text())}
    assert {"swapped", "grouped", "masked", "quantis", "split_k", "fused"} <= words


def test_the_page_of_the_series_counts_the_files_and_lines_of_kernel_7():
    files = reading_set(KERNELS / "sm100" / "kernel7.mojo")
    lines = sum(len(path.read_text().splitlines()) for path in files)
    page = (paths.ROOT / "docs" / "series.md").read_text()
    assert f"kernel 7 has {len(files)} files and {lines:,} lines" in page
