"""What a result was made by: the text of the kernels and of the harness."""

from __future__ import annotations

import hashlib
from functools import cache

from harness import paths


@cache
def sources() -> str:
    """A hash of it, of this process as it started."""
    digest = hashlib.sha256()
    for folder, kind in ((paths.kernels_dir(), "*.mojo"), (paths.PACKAGE, "*.py")):
        for path in sorted(folder.rglob(kind)):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]
