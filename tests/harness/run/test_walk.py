"""How many files a request goes through."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from harness.paths import ROOT

TRACED = """
import sys
from pathlib import Path
from harness.__main__ import entry
from harness.cli import run
folder, entered = Path(sys.argv.pop(1), "harness"), set()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(f"{folder}/"):
        entered.add(Path(code.co_filename).relative_to(folder).as_posix())

sys.setprofile(note)
try:
    entry()
finally:
    sys.setprofile(None)
    print(*sorted(entered))
"""


@pytest.mark.slow
def test_a_run_goes_through_few_files_and_the_page_names_them():
    words = ("run", "kernel7", "--device", "emulator", "--shape", "64", "--no-save")
    subprocess.run([sys.executable, "-m", "harness", *words], check=True, capture_output=True)  # it is compiled then
    done = subprocess.run([sys.executable, "-c", TRACED, str(ROOT), *words], capture_output=True, text=True, check=True)
    entered = done.stdout.splitlines()[-1].split()
    assert len(entered) <= 21, entered
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk = page.partition("**`harness run kernel7`**")[2].partition("**`harness verify kernel7`**")[0]
    named = set(re.findall(r"`harness/([\w/]+\.py)`", walk))
    assert named == {*entered, "run/records.py"}  # --no-save keeps no record
    assert f"({len(named)} files of `harness/`)" in walk
