"""Suite files: what they stand for, and what is wrong with them."""

from __future__ import annotations

import pytest

from emugpu.errors import UsageProblem
from harness.experiments.baseline_build import _suite_of
from harness.experiments.suite import load_suite, suite_names
from harness.toml_files import read_toml

TOP = 'schema = 1\nkernels = "kernel6"\nclusters = "2x1"\nshapes = "256"\ndtypes = "bf16"\ninputs = "index"\n'


@pytest.fixture
def suite(tmp_path):
    def load(text: str):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return load_suite(str(path))

    return load


def test_the_default_suite_covers_the_series():
    cases = load_suite("emulator").cases
    assert {case.kernel for case in cases} == {"kernel5", "kernel6", "kernel7", "kernel8"}
    assert {case.options["dtype"] for case in cases} == {"bf16", "fp16"}
    assert {(2, 1), (2, 2), (4, 4)} <= {case.options.get("cluster") for case in cases}
    assert any(case.options.get("multicast") is False for case in cases)
    assert {case.options.get("arch") for case in cases} == {None, "sm_90a"}
    assert any(case.shape.m % 128 for case in cases)
    checked = {(case.kernel, case.options.get("arch")) for case in cases if case.check}
    assert checked == {(f"kernel{number}", arch) for number in (5, 6, 7, 8) for arch in (None, "sm_90a")}
    # Two minutes on the emulator: about 0.5 s for every 10^9 multiplications and additions.
    assert sum(case.shape.flops for case in cases) < 1e11


def test_the_gpu_suite_fits_every_gpu():
    suite = load_suite("gpu")
    assert suite.device == "gpu"
    for arch in ("sm_90a", "sm_100a"):
        clusters = [case.config(arch).cluster for case in suite.cases if "cluster" in case.options]
        assert max(cm * cn for cm, cn in clusters) <= 8
    assert {case.config(arch).arch for case in suite.cases for arch in ("sm_90a", "sm_100a")} == {"sm_90a", "sm_100a"}
    assert suite_names() == ["emulator", "few-rows", "gpu", "hopper", "models"]
    assert suite.alone and not load_suite("emulator").alone


def test_a_table_stands_for_all_combinations(suite):
    cases = suite(TOP + '[[cases]]\nkernels = ["kernel6", "kernel7"]\nshapes = ["256", "512,256,64"]\n').cases
    assert [case.id for case in cases] == [
        "kernel6 bf16 2x1 256x256x256 index",
        "kernel6 bf16 2x1 512x256x64 index",
        "kernel7 bf16 2x1 256x256x256 index",
        "kernel7 bf16 2x1 512x256x64 index",
    ]


def test_a_name_holds_what_was_asked_for(suite):
    options = 'cta_group = 1\nmma_shape = "128x128"\nstages = 3\nepilogue_width = 32\nmulticast = false\nseed = 5'
    [case] = suite(f"{TOP}[[cases]]\n{options}\n").cases
    words = "cta_group=1 mma=128x128 stages=3 epilogue=32 no-multicast"
    assert case.id == f"kernel6 bf16 2x1 {words} 256x256x256 index seed=5"
    config = case.config("sm_100a")
    assert (config.cta_group, config.mma_shape, config.stages) == (1, (128, 128), 3)
    assert (config.epilogue_width, config.multicast) == (32, False)


def test_a_switch_that_is_off_is_another_case(suite):
    tables = "".join(f"[[cases]]\n{line}\n" for line in ("", "ping_pong = false", "ping_pong = true"))
    text = TOP.replace("kernel6", "kernel8").replace("2x1", "auto")
    cases = suite(f'{text}arch = "sm_90a"\n{tables}').cases
    assert len({case.id for case in cases}) == 3
    free, together, in_turn = (case.config("sm_90a") for case in cases)
    assert (together.ping_pong, in_turn.ping_pong) == (False, True)
    assert free == in_turn, "the kernel's own choice for this problem"


def test_a_case_is_the_same_in_a_suite_of_its_own(suite):
    """As another commit's harness reads it."""
    options = 'cta_group = 1\nmma_shape = "128x128"\nmulticast = false\nseed = 5'
    [case] = suite(f"{TOP}[[cases]]\n{options}\n").cases
    assert suite(_suite_of(case)).cases == (case,)


def test_the_same_case_twice_is_one(suite):
    assert len(suite(TOP + "[[cases]]\n[[cases]]\n").cases) == 1


@pytest.mark.parametrize("tables", ["[[cases]]\ncheck = true\n[[cases]]\n", "[[cases]]\n[[cases]]\ncheck = true\n"])
def test_a_case_is_checked_if_one_of_its_tables_asks_for_it(suite, tables):
    [case], [plain] = suite(TOP + tables).cases, suite(TOP + "[[cases]]\n").cases
    assert (case.check, plain.check) == (True, False)
    assert case.id == plain.id, "the same measurement, with the same history"


WRONG = [
    ("schema = 2\n", "schema is 2; this harness reads 1"),
    ("schema = \n", "Invalid value"),
    (TOP, "there is no [[cases]] table"),
    ('device = "tpu"\n' + TOP + "[[cases]]\n", "device is 'tpu'; use emulator or gpu"),
    (TOP + "[[cases]]\nshape = '8'\n", "[[cases]] number 1: 'shape' is not known; use kernels, clusters"),
    (TOP + "[[cases]]\n[[cases]]\nshapes = '8,8'\n", "[[cases]] number 2: shape '8,8' is not M,N,K"),
    (TOP + "[[cases]]\nstages = '4'\n", "stages is '4'; it must be a whole number"),
    (TOP + "[[cases]]\nstages = 99\n", "stages 99:"),
    (TOP + "[[cases]]\nmulticast = 1\n", "multicast is 1; write true or false"),
    (TOP + "[[cases]]\ncheck = 'yes'\n", "[[cases]] number 1: check is 'yes'; write true or false"),
    (TOP + "[[cases]]\nkernels = 'kernel99'\n", "there is no kernel 'kernel99'"),
    (TOP + "[[cases]]\nclusters = '3x1'\n", "cluster 3x1"),
    (TOP + "[[cases]]\ninputs = []\n", "inputs is []; it must be a text or a list"),
    (TOP + "[[cases]]\ninputs = 'x'\n", "inputs 'x' is not one of"),
    (TOP.replace("shapes", "#") + "[[cases]]\n", "shapes missing"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_mistakes_in_a_suite(suite, text, message):
    with pytest.raises(UsageProblem) as found:
        suite(text)
    assert message in str(found.value)
    assert "mine.toml" in str(found.value)


@pytest.mark.parametrize("name", ["nothing", "nothing.toml"])
def test_a_suite_that_is_not_there(name):
    with pytest.raises(UsageProblem, match="use one of"):
        load_suite(name)


def test_an_error_of_a_reader_is_not_one_of_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('number = "one"')
    with pytest.raises(ValueError, match=r"^invalid literal for int"):
        read_toml(path, "mine.toml", lambda data: int(data["number"]))


@pytest.mark.parametrize("value", ['"yes"', "1", "true"])
def test_alone_is_for_a_gpu(suite, value):
    with pytest.raises(UsageProblem, match=r"alone is .*; use true or false, and true on a gpu only"):
        suite(f'alone = {value}\n{TOP}[[cases]]\nshapes = ["256"]\nkernels = ["kernel6"]\n')
