"""The pages: what can be known of them without building them, which needs MkDocs (`make docs`)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from emugpu.cli.main import main as emugpu
from harness.cli.main import main as harness
from harness.cli.old_spellings import respell

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
RUN = re.compile(r"^```bash exec.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:harness|emugpu) .*$", re.MULTILINE)
COMMANDS = sorted({line for page in PAGES for run in RUN.findall(page.read_text()) for line in COMMAND.findall(run)})

SHOWN = re.compile(r"^(?: {4})?(harness .*)$|`(harness [^`]+)`", re.MULTILINE)
BEHIND_COMMAND = re.compile(r"\s(?:#|2?>|\||&&).*")
EXAMPLES = [path for path in sorted((ROOT / "docs" / "examples").iterdir()) if path.suffix in (".mojo", ".py", ".toml")]
HARNESS_COMMANDS = sorted(
    {
        BEHIND_COMMAND.sub("", " ".join((line or inline).split()))
        for path in (*PAGES, *EXAMPLES, ROOT / "README.md", ROOT / "CONTRIBUTING.md")
        for line, inline in SHOWN.findall(path.read_text())
    }
)


def test_every_page_is_in_the_navigation_and_the_other_way_round():
    named = re.findall(r"(\w[\w/-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


TEXTS = [*PAGES, *ROOT.glob("*.md"), ROOT / "emugpu/README.md", *(ROOT / "results").glob("*.md")]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_the_pages_name_exist(page):
    for path in re.findall(r"(?:`|python )((?:emugpu|harness|conformance|kernels|tests)/[\w./*-]+)", page.read_text()):
        exists = any(ROOT.glob(path.rstrip("/.")))
        assert exists or "kernel10" in path, f"{page.name} names {path}"  # kernel10 is the reader's own


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_the_pages_run_are_understood(command):
    """With --help at the end they do nothing, but what stands before it has to be known."""
    program, *words = command.split()
    done = CliRunner().invoke({"harness": harness, "emugpu": emugpu}[program], [*words, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("command", HARNESS_COMMANDS)
def test_commands_of_the_pages_have_no_old_spelling(command):
    program, *words = shlex.split(command)
    assert respell(words) == (program, words)


def test_pages_that_run_a_kernel_leave_no_record():
    for command in COMMANDS:
        program, name = command.split()[:2]
        if program == "harness" and name in ("run", "compare", "bench"):
            assert "--no-save" in command, command


def test_every_environment_variable_is_documented():
    used = {
        name
        for package, prefix in (("harness", "HARNESS"), ("emugpu", "EMUGPU"))
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(rf"{prefix}_[A-Z_]+", path.read_text())
    }
    named = set(re.findall(r"`((?:HARNESS|EMUGPU)_[A-Z_]+)`", (ROOT / "docs" / "command-line.md").read_text()))
    assert used == named
