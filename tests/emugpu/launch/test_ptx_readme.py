"""The example of the README works when it is pasted, and the page's Python example says what the API takes."""

from __future__ import annotations

import inspect
import re

from click.testing import CliRunner
from cuda_programs import cuda

from emugpu.cli.main import main
from emugpu.emulator import Device, LaunchResult, TensorMap
from emugpu.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "own-ptx.md").read_text(encoding="utf-8")


EXAMPLES = ROOT / "docs" / "examples"


def test_the_example_of_the_readme_is_the_file_and_has_the_verdict_that_is_shown(tmp_path):
    [kernel] = re.findall(r"```cuda\n(.*?)```", README, re.S)
    [text] = re.findall(r"```toml\n(.*?)```", README, re.S)
    assert (EXAMPLES / "block_sum.cu").read_text().endswith(kernel) and kernel.count("\n") == 10
    (tmp_path / "block_sum.ptx").symlink_to(EXAMPLES / "block_sum.ptx")
    (tmp_path / "block_sum.toml").write_text(text)
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "block_sum.toml")])
    said = re.search(r"^    emugpu verify block_sum.toml\n\n((?:    .*\n)+)", README, re.M)
    assert result.exit_code == 1 and said
    for line in said[1].splitlines():
        assert line.strip() == "..." or line.strip() in result.stdout, line


def test_the_launch_file_beside_the_example_is_that_of_the_readme():
    assert (EXAMPLES / "block_sum.toml").read_text() in README


def test_commands_of_the_readme_are_understood():
    commands = set(re.findall(r"(?:^    |`)emugpu ((?:ptx )?\w+)", README, re.M))
    assert commands == {"verify", "debug", "exec", "ptx init"}
    for command in commands:
        assert CliRunner().invoke(main, [*command.split(), "--help"]).exit_code == 0


def test_the_python_example_uses_what_there_is():
    example = next(text for text in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "device.symbol" in text)
    for name in re.findall(r"device\.(\w+)\(", example):
        assert hasattr(Device, name), name
    for name in re.findall(r"run\.(\w+)", example):
        assert name in dir(LaunchResult) or name in LaunchResult.__dataclass_fields__, name
    taken = inspect.signature(Device.launch).parameters
    assert set(re.findall(r"(\w+)=", example.partition("device.launch(")[2])) <= set(taken)
    assert set(re.findall(r"(\w+)=", re.search(r"tiled\((.*)\)", example)[1])) <= set(
        inspect.signature(TensorMap.tiled).parameters
    )
    device = Device()
    assert device.symbol("scale", cuda("calls"))
