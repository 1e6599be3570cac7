"""A kernel of one's own is added in the places that docs/own-kernel.md names, and in no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import paths


def insert(path: Path, before: str, text: str) -> None:
    content = path.read_text()
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before))


@pytest.mark.slow
def test_a_kernel_that_is_added_as_the_page_says_runs(tmp_path):
    for folder in ("harness", "kernels"):
        shutil.copytree(paths.ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    kernels = tmp_path / "kernels"
    body = (kernels / "sm100" / "kernel8.mojo").read_text()
    (kernels / "sm100" / "kernel10.mojo").write_text(body.replace("def kernel8", "def kernel10"))
    run = kernels / "sm100" / "run.mojo"
    insert(run, "from .tcgen05 import", "from .kernel10 import kernel10\n")
    insert(
        run,
        "    else:\n        comptime assert",
        '    elif config.kernel.name == "kernel10":\n        kernel10(cta, problem, tiles)\n',
    )
    config = kernels / "common" / "config.mojo"
    described = config.read_text().splitlines()
    line = next(line for line in described if line.strip().startswith('Kernel("kernel8"'))
    insert(config, line, line.replace("kernel8", "kernel10") + "\n")
    entry = '        Kernel(name="kernel10", summary="+ what is mine", archs=("sm_100a",), is_persistent=True),\n'
    insert(tmp_path / "harness" / "build" / "catalog.py", '        Kernel(\n            name="kernel5"', entry)

    def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": str(tmp_path),
            "HARNESS_CACHE_DIR": str(tmp_path / "cache"),
            "HARNESS_RESULTS_DIR": str(tmp_path / "results"),
        }
        command = [sys.executable, "-m", "harness", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)

    done = harness("run", "kernel10", "--shape", "300,520,136", "--cluster", "2x2", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kernel"] == "kernel10" and found["validation"]["exact"]
    explained = harness("explain", "kernel10", "--shape", "4096")
    assert explained.returncode == 0 and "asks for those of clusters that have not started" in explained.stdout
    refused = harness("run", "kernel10", "--arch", "sm_90a")
    assert refused.returncode == 2 and "kernel10 is written for sm_100a, not for 'sm_90a'" in refused.stderr
