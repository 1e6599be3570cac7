"""The files that decide whether a test of ``nightly_unless_changed`` runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import conftest
import emugpu.paths


def test_changed_and_new_files_count_and_ignored_ones_do_not(tmp_path: Path, monkeypatch):
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(f"{name}\n")

    monkeypatch.setattr(emugpu.paths, "ROOT", tmp_path)
    git("init", "--quiet", "--initial-branch", "main")
    (tmp_path / ".gitignore").write_text("ignored\n")
    write("changed", "same")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    git("switch", "--quiet", "--create", "branch")
    write("committed")
    git("add", ".")
    git("commit", "--quiet", "--message", "second")
    (tmp_path / "changed").write_text("other\n")
    write("new", "ignored")
    assert set(conftest.changed_files.__wrapped__()) == {"changed", "committed", "new"}
