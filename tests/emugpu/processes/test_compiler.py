"""The compiler of libraries that are made once."""

import pytest

from emugpu.errors import CannotRun
from emugpu.processes import compiler


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Returns a function that puts a shell script of a name on an otherwise empty search path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)

    def put(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    return put


@pytest.mark.parametrize("find, names", [(compiler.of_c, ["clang", "cc"]), (compiler.of_cpp, ["clang++", "c++"])])
def test_the_variable_comes_before_the_usual_names(only, monkeypatch, find, names):
    for name in names:  # the later one is preferred
        path = only(name, "exit 0")
        assert find("it", 9).path == path
    mine = only("mine", "exit 0")
    monkeypatch.setenv("CXX" if "++" in names[0] else "CC", "mine")
    assert find("it", 9).path == mine


def test_without_one_the_message_says_what_to_install(only):
    with pytest.raises(CannotRun, match=r"^the shim is compiled once, .* no C\+\+ compiler: install .*, or set CXX$"):
        compiler.of_cpp("the shim", 9)
    with pytest.raises(CannotRun, match=r"no C compiler: install .*, or set CC$"):
        compiler.of_c("the shim", 9)


def test_what_a_failing_compiler_says_is_in_the_error(only):
    path = only("cc", 'echo "no $2" >&2; exit 1')
    with pytest.raises(CannotRun, match=f"^{path} cannot compile the shim:\nno b$"):
        compiler.of_c("the shim", 9).call("a", "b")


def test_a_compiler_that_cannot_be_started_is_named(only, tmp_path):
    path = only("cc", "")
    found = compiler.of_c("the shim", 9)
    (tmp_path / "cc").unlink()
    with pytest.raises(CannotRun, match=f"the compiler {path} could not be run"):
        found.call()
