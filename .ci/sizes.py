"""Prints the lines of each part of the repository, and the words of its docs: python .ci/sizes.py"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "emugpu": ("emugpu/*.py",),
    "emugpu, Mojo": ("emugpu/*.mojo",),
    "emugpu, C and C++": ("emugpu/*.c", "emugpu/*.cpp", "emugpu/*.h"),
    "harness": ("harness/*.py",),
    "kernels": ("kernels/*.mojo",),
    "conformance and nightly": ("conformance/*.py", "tests/nightly/*.py", "tests/mutation/*.py"),
    "tests": ("tests/*.py", "conftest.py", ":!tests/nightly", ":!tests/mutation"),
}
DOCS = ("docs/*.md", "README.md")


def texts(patterns: tuple[str, ...]) -> list[str]:
    """The contents of the tracked files that match."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [file.read_text(encoding="utf-8") for file in files if file.is_file()]


def main() -> None:
    """One line for each part."""
    for part, patterns in PARTS.items():
        found = texts(patterns)
        print(f"{part:<24} {sum(text.count(chr(10)) for text in found):>7,} lines in {len(found)} files")
    print(f"{'docs':<24} {sum(len(text.split()) for text in texts(DOCS)):>7,} words")


if __name__ == "__main__":
    main()
