"""The launch file in the README works when it is pasted, and the page's Python example says what the API takes."""

from __future__ import annotations

import inspect
import re

from click.testing import CliRunner
from cuda_programs import cuda

from emugpu.emulator import Device, LaunchResult, TensorMap
from harness.cli.main import main
from harness.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "own-ptx.md").read_text(encoding="utf-8")


def test_the_launch_file_of_the_readme_runs(tmp_path):
    [text] = re.findall(r"```toml\n(.*?)```", README, re.S)
    assert text.count("\n") == 10
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "sgemm.toml").write_text(text)
    result = CliRunner().invoke(main, ["ptx", "run", str(tmp_path / "sgemm.toml")])
    assert result.exit_code == 0 and "C = A @ B: as expected (equal)" in result.stdout, result.stderr


def test_commands_of_the_readme_are_understood():
    commands = re.findall(r"^    harness (ptx \w+|run sgemm.toml|check sgemm.toml)", README, re.M)
    assert {"ptx list", "ptx init", "ptx corpus", "ptx coverage", "run sgemm.toml", "check sgemm.toml"} == set(commands)
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
