"""Launch files that are wrong: one line that names file, key, value, rule and fix, exit code 2, and nothing is run."""

from __future__ import annotations

import os
import re
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_programs import FOLDER, SGEMM_LAUNCH

from emugpu.cli.main import main
from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions
from emugpu.launch.corpus import look_through
from emugpu.launch.expression import ExpressionError, parse_expression
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.memory import load_file
from emugpu.launch.spec import DATA_TYPES, AddressArgument, Fill, Null, Raw, Scalar, Struct
from emugpu.launch.toml_table import as_toml

MAP = """H = { dtype = "bf16", shape = [64, 64], init = "normal" }
[maps]
m = { buffer = "H", tile = [32, 64], swizzle = "128B" }
"""
GOOD = SGEMM_LAUNCH.replace("[launch]", MAP + "[launch]")

BAD = [
    ("[buffers]", "[buffers", "launch.toml is not TOML: "),
    (f'ptx = "{FOLDER}/sgemm.ptx"', "", "launch.toml: ptx is missing: the PTX file, relative to this file"),
    (f'ptx = "{FOLDER}/sgemm.ptx"', 'ptx = "no.ptx"', "no.ptx: No such file or directory; name a .ptx file"),
    (f'ptx = "{FOLDER}/sgemm.ptx"', "ptx = 3", "ptx = 3: must be text: the PTX file"),
    ("[expect]", "[expects]", "expects = {'C': 'A @ B'}: there is no such key; did you mean expect?"),
    (
        'dtype = "f32", shape = [32, 64]',
        'dtype = "f33", shape = [32, 64]',
        'buffers.A.dtype = "f33": must be one of',
    ),
    ('dtype = "f32", shape = [32, 64]', "shape = [32, 64]", "buffers.A.dtype is missing: the type of the elements"),
    ("shape = [32, 64]", "shap = [32, 64]", "buffers.A.shap = [32, 64]: there is no such key; did you mean shape?"),
    ("shape = [32, 64],", "", "buffers.A.shape is missing: write for example shape = [64, 32]"),
    (
        '64], init = "integer"',
        '64], inlt = "integer"',
        'buffers.A.inlt = "integer": there is no such key; did you mean',
    ),
    ("[launch]", "[lunch]", "there is no such key; did you mean launch?"),
    ("block = [32, 32]", "blocks = [32, 32]", "launch.blocks = [32, 32]: there is no such key; did you mean block?"),
    ("[buffers]", '[symbols]\ns = { dtype = "f32", seed = 3 }\n[buffers]', "symbols.s.init is missing: seed is for"),
    (
        "shape = [32, 64],",
        "shape = [32, 64], color = 1,",
        "buffers.A.color = 1: there is no such key; the keys",
    ),
    ("shape = [32, 64]", "shape = [2000000000, 2000000000, 9]", "is more than the 192 GiB that a buffer may have"),
    (
        "shape = [32, 64]",
        "shape = [32, 0]",
        "buffers.A.shape = [32, 0]: must be 1 to 8 whole numbers, 1 to 2147483647: ",
    ),
    (
        "shape = [32, 64]",
        "shape = 9999999999",
        "= 9999999999: must be 1 to 8 whole numbers, 1 to 2147483647: the shape",
    ),
    ("grid = 1\n", "grid = 9999999999\n", "launch.grid = 9999999999: must be 1 to 3 whole numbers, 1 to 2147483647"),
    ("shape = [32, 64]", "shape = [32, 6.5]", "buffers.A.shape = [32, 6.5]: must be 1 to 8 whole numbers"),
    ("shape = [32, 64]", 'shape = "32x64"', 'buffers.A.shape = "32x64": must be 1 to 8 whole numbers'),
    (
        '"f32", shape = [32, 64]',
        '"e2m1", shape = [32, 63]',
        "buffers.A.shape = [32, 63]: 2 elements of e2m1",
    ),
    ('64], init = "integer"', '64], init = "ones"', 'buffers.A.init = "ones": must be one of integer, index, normal'),
    ('[32, 64], init = "integer"', "[32, 64]", "buffers.A.init is missing: must be one of integer, index"),
    ('64], init = "normal"', '64], init = "a.npy"', "a.npy as a .npy file: No such file or directory"),
    ('64], init = "normal"', '64], init = "bad.npy"', "bad.npy has shape [2, 3], but shape = [64, 64] is given"),
    ('"f32", shape = [32, 64], init = "integer"', '"u8", shape = [4], init = 256', "init = 256: must be a value of u8"),
    ('"f32", shape = [32, 64], init = "integer"', '"s8", shape = [4], init = 0.5', "init = 0.5: must be a value of s8"),
    (
        '"f32", shape = [32, 64], init = "integer"',
        '"f32", shape = 4, init = 1e39',
        "init = 1e+39: must be a value of f32",
    ),
    ('"f32", shape = [32, 64], init = "integer"', '"e4m3", shape = 4, init = -480', "= -480: must be a value of e4m3"),
    ('"f32", shape = [32, 64], init = "integer"', '"e4m3", shape = 4, init = inf', "= inf: must be a value of e4m3"),
    ('"f32", shape = [32, 64], init = "integer"', '"e2m1", shape = 4, init = nan', "= nan: must be a value of e2m1"),
    ('"f32", shape = [32, 64], init = "integer"', '"e2m1", shape = 4, init = 8', "= 8: must be a value of e2m1"),
    ('"f32", shape = [32, 64], init = "integer"', '"ue8m0", shape = 4, init = -1', "= -1: must be a value of ue8m0"),
    ('"f32", shape = [32, 64], init = "integer"', '"ue8m0", shape = 4, init = "zeros"', "ue8m0 has no zero, its least"),
    ('"C", 32, 64]', '"C", 32, { f16 = 65536 }]', "arguments[4] = 65536: must be a value of f16"),
    ('64], init = "normal"', '64], init = "several.npy"', "several.npy holds several arrays (.npz); write one with"),
    ('64], init = "normal"', '64], init = "a\\u0000.npy"', 'init = "a\\u0000.npy": must be one of integer, index'),
    ('sgemm.ptx"', 'sgemm\\u0000.ptx"', '\\u0000.ptx": must be text: the PTX file'),
    ('"f32", shape = [32, 64], init = "integer"', '"u8", shape = [4], init = "nan"', "u8 has no NaN; use"),
    (
        '[32, 64], init = "integer"',
        '[32, 60], init = "index"',
        'buffers.A.init = "index": needs a matrix',
    ),
    ('64], init = "integer"', '64], init = "integer", seed = -1', "seed = -1: must be a whole number from 0"),
    ('buffer = "H"', 'buffer = "Z"', 'maps.m.buffer = "Z": there is no such buffer; the buffers are A, B, C, H'),
    ("tile = [32, 64]", "tile = [32, 64], box = [64, 32]", "maps.m.tile = [32, 64]: both are given; write tile"),
    ("tile = [32, 64],", "", "maps.m.tile = []: neither is given; write tile = [rows, columns]"),
    ("tile = [32, 64]", "tile = [1, 32, 64]", "maps.m: tile = [1, 32, 64] has more entries than the 2 dimensions"),
    (
        "tile = [32, 64]",
        "tile = [32, 128]",
        "maps.m: tensor map: box[0] = 128 x 2 bytes = 256 bytes: must fit",
    ),
    ('"128B"', '"96B"', 'maps.m.swizzle = "96B": must be one of none, 32B, 64B, 128B'),
    ("[maps]\nm =", "[maps]\nA =", "the name A is taken"),
    ("[maps]\nm =", "[maps]\nnull =", "the name null is taken"),
    (
        'kernel = "sgemm"\n',
        "",
        "launch.kernel is missing: sgemm.ptx has sgemm, sgemm_one_barrier, scale",
    ),
    ('kernel = "sgemm"', 'kernel = "dgemm"', "launch.kernel: no kernel 'dgemm' in the module; it has sgemm"),
    ('kernel = "sgemm"', 'kernel = "s"', "launch.kernel: kernel 's' is not clear: it may be sgemm, sgemm_one_barrier"),
    ("grid = 1\n", "", "launch.grid is missing: CTAs along x, y, z"),
    ("grid = 1\n", "grid = [1, 1, 1, 1]\n", "launch.grid = [1, 1, 1, 1]: must be 1 to 3 whole numbers"),
    ("grid = 1\n", "grid = true\n", "launch.grid = True: must be 1 to 3 whole numbers"),
    ("block = [32, 32]\n", "", "launch: block: none is given, and kernel 'sgemm' has no .reqntid; give one"),
    ("block = [32, 32]", "block = [32, 33]", "launch: block (32, 33, 1) has 1056 threads; the limit is 1024"),
    ("grid = 1\n", "grid = 1\ncluster = 2\n", "launch: grid.x = 1 is not a multiple of the cluster's 2"),
    (
        "grid = 1\n",
        "grid = 1\ndynamic_shared = -4\n",
        "launch.dynamic_shared = -4: must be a whole number from 0",
    ),
    (
        '"C", 32, 64]',
        '"C", 32]',
        "launch: kernel 'sgemm' takes 5 arguments (param_0, param_1, param_2, param_3, ",
    ),
    (
        '"C", 32, 64]',
        '"D", 32, 64]',
        'arguments[2] = "D": there is no such buffer, map or symbol; there are A, B',
    ),
    (
        '"C", 32, 64]',
        '"C", 4294967296, 64]',
        "launch: argument 3 = 4294967296 does not fit the 4 bytes of",
    ),
    ('"C", 32, 64]', '"C", { s32 = 2147483648 }, 64]', "arguments[3] = 2147483648: must be a value of s32"),
    ('"C", 32, 64]', '"C", { s64 = 32 }, 64]', "launch: argument 3 has 8 bytes; parameter 'sgemm_param_3' has 4"),
    ('"C", 32, 64]', '"C", { q32 = 32 }, 64]', "arguments[3] = {'q32': 32}: must be { TYPE = number }"),
    ('"C", 32, 64]', '"C", { hex = "0g" }, 64]', "must be pairs of hexadecimal digits"),
    ('"C", 32, 64]', '{ pointer = "C", offset = -1 }, 32, 64]', "must be { pointer = a buffer or map, offset = bytes"),
    ('"C", 32, 64]', "{ fields = 3 }, 32, 64]", "arguments[2].fields = 3: must be an array of fields"),
    ('"C", 32, 64]', '{ fields = ["C", [1]] }, 32, 64]', "arguments[2].fields[1] = [1]: must be a number, a name"),
    (
        '"C", 32, 64]',
        '{ fields = ["C", 4] }, 32, 64]',
        "argument 2: the fields take 16 bytes, parameter",
    ),
    (
        '["A", "B", "C", 32, 64]',
        '{ param_0 = "A" }',
        "launch: kernel 'sgemm': no argument for sgemm_param_1, ",
    ),
    ('["A", "B", "C", 32, 64]', '{ alpha = "A" }', "launch: no parameter 'alpha' in the module; it has sgemm_param_0"),
    ('["A", "B", "C", 32, 64]', "3", "launch.arguments = 3: must be an array in the kernel's order, or a table"),
    ('C = "A @ B"', 'D = "A @ B"', 'expect.D = "A @ B": there is no buffer D; the buffers are A, B, C, H'),
    ('C = "A @ B"', 'C = "A @ Z"', 'expect.C.value = "A @ Z": there is no buffer Z; the buffers are A, B, C, H'),
    ('C = "A @ B"', 'C = "A @"', "cannot be read; write an expression over buffers"),
    ('C = "A @ B"', "C = \"open('x')\"", "'open('x')' is not allowed; there are + - *"),
    ('C = "A @ B"', 'C = "A.tofile"', "'A.tofile' is not allowed"),
    ('C = "A @ B"', 'C = "A @ A"', "expect.C: A @ A: matmul: Input operand 1 has a mismatch"),
    ('C = "A @ B"', 'C = "A"', "expect.C = A: its shape is [32, 64], that of the buffer [32, 32]; they must agree"),
    (
        'C = "A @ B"',
        'C = "H @ B"',
        "H may hold more than small whole numbers, so results are rounded; write",
    ),
    ('64], init = "integer"', "64], init = 0.1", "A may hold more than small whole numbers, so results are rounded"),
    ('C = "A @ B"', 'C = { value = "A @ B", exact = true, tolerance = 1 }', "cannot be combined with a tolerance"),
    (
        'C = "A @ B"',
        'C = { value = "A @ B", tolerance = -1 }',
        "expect.C.tolerance = -1: must be a number",
    ),
    ('C = "A @ B"', "C = { tolerance = 1 }", "expect.C.value is missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new.replace("\n", " ")[:50] for _, new, _ in BAD])
def test_a_wrong_launch_file_gets_one_line(tmp_path, old, new, message):
    np.save(tmp_path / "bad.npy", np.zeros((2, 3), np.float32))
    np.savez(tmp_path / "several.npz", a=np.zeros(2), b=np.zeros(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    assert old in GOOD
    path = tmp_path / "launch.toml"
    path.write_text(GOOD.replace(old, new, 1))
    result = CliRunner().invoke(main, ["run", str(path)])
    assert result.exit_code == 2, (result.stderr, result.exception)
    assert result.stdout == "" and result.stderr.startswith("emugpu: error: ")
    assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f32", "3.4028235e38"),
        ("f32", "-3.4028235e+38"),
        ("f64", "1.7976931348623157e308"),
        ("f16", "65519"),
        ("e4m3", "-448"),
        ("e4m3", "nan"),
        ("e5m2", "inf"),
        ("bf16", "-inf"),
        ("e2m1", "6.0"),
        ("e2m1", "0.1"),
        ("ue8m0", "3"),
    ],
)
def test_a_number_that_a_type_rounds_is_a_value_of_it(tmp_path, dtype, value):
    """NumPy and C print the largest f32 as 3.4028235e38, which is a little above it."""
    path = tmp_path / "launch.toml"
    text = GOOD.replace('C = "A @ B"', 'C = { value = "A @ B", tolerance = 0.1 }')
    path.write_text(text.replace('"f32", shape = [32, 64], init = "integer"', f'"{dtype}", shape = 4, init = {value}'))
    fill = read_launch_file(path).buffers["A"].fill
    assert fill is not None and fill.kind == "number" and str(float(fill.number)) == str(float(value))


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("f16", 65519, True),
        ("f16", 65520, False),
        ("f16", -1e6, False),
        ("bf16", np.inf, True),
        ("e4m3", np.nan, True),
        ("e4m3", np.inf, False),
        ("e5m2", 1e5, False),
        ("e2m1", 8, False),
        ("e2m1", np.nan, False),
        ("ue8m0", 0, False),
        ("ue8m0", 1e-300, False),
        ("ue8m0", 3, True),
        ("f32", 1e39, False),
    ],
)
def test_values_of_a_file_that_a_type_of_floats_cannot_hold_are_refused(tmp_path, dtype, value, fits):
    """They were infinite, NaN or the largest value instead."""
    values = np.array([[1, 2], [value, 1], [np.nan if dtype == "e4m3" else 1, 1]], np.float64)
    np.save(tmp_path / "a.npy", np.asfortranarray(values))
    where = "launch.toml: buffers.a.init"
    if fits:
        made = load_file(tmp_path / "a.npy", DATA_TYPES[dtype], None, where).astype(np.float64)
        assert np.isnan(made[1, 0]) == np.isnan(value) and np.isinf(made[1, 0]) == np.isinf(value)
        return
    with pytest.raises(UsageProblem) as error:
        load_file(tmp_path / "a.npy", DATA_TYPES[dtype], None, where)
    assert str(error.value) == (
        f"{where}: {tmp_path / 'a.npy'} holds {value:g} at [1, 0], which is no value of {dtype}; save others"
    )


@pytest.mark.parametrize("dtype", ["bf16", "ue8m0", "f64"])
def test_whole_numbers_of_64_bits_in_a_file_are_values_of_a_type_of_floats(tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.array([1 << 63], np.uint64))
    assert load_file(tmp_path / "a.npy", DATA_TYPES[dtype], None, "a").astype(np.float64).tolist() == [2.0**63]


@pytest.mark.parametrize(
    ("dtype", "saved", "value", "shown"),
    [
        ("s32", "f8", np.nan, "nan"),
        ("u8", "f8", np.inf, "inf"),
        ("s64", "f8", 1e300, "1e+300"),
        ("s32", "f8", 0.5, "0.5"),
        ("u16", "f8", -1, "-1"),
        ("s8", "f8", 128, "128"),
        ("s8", "f8", -128, None),
        ("s64", "f8", 2.0**63, "9.22337e+18"),
        ("u64", "f8", 2.0**64, "1.84467e+19"),
        ("u64", "f8", 3 * 2.0**62, None),
        ("u8", "i8", 300, "300"),
        ("u8", "i8", 255, None),
        ("u8", "i1", -1, "-1"),
        ("s64", "u8", 1 << 63, str(1 << 63)),
        ("u64", "u8", 1 << 63, None),
        ("u8", "?", True, None),
        ("e4m3", "i8", 1000, "1000"),
    ],
)
def test_numbers_in_a_file_are_values_of_the_type(tmp_path, dtype, saved, value, shown):
    """NaN, infinity and 1e300 became 0 or the least number, and 0.5 became 0; whole numbers wrapped around."""
    np.save(tmp_path / "a.npy", np.array([[1, value]], saved))
    if shown is None:
        assert load_file(tmp_path / "a.npy", DATA_TYPES[dtype], None, "a").tolist() == [[1, int(value)]]
        return
    with pytest.raises(UsageProblem) as error:
        load_file(tmp_path / "a.npy", DATA_TYPES[dtype], None, "a")
    assert str(error.value) == (
        f"a: {tmp_path / 'a.npy'} holds {shown} at [0, 1], which is no value of {dtype}; save others"
    )


@pytest.mark.parametrize("key", ["tolerance", "absolute", "relative"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e+308", "1.01", "-0.1", "2"])
def test_a_tolerance_that_allows_everything_is_refused(tmp_path, key, value):
    path = tmp_path / "launch.toml"
    path.write_text(GOOD.replace('C = "A @ B"', f'C = {{ value = "A @ B", {key} = {value} }}'))
    with pytest.raises(UsageProblem) as error:
        read_launch_file(path)
    assert f"expect.C.{key} = {value}" in str(error.value) and "must be a number from 0 to 1: " in str(error.value)
    assert "\n" not in str(error.value)
    path.write_text(path.read_text().replace(f"{key} = {value}", f"{key} = 1"))
    assert read_launch_file(path).expectations[0].compared.startswith("C within ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9**9**9**9", "bits of a whole number are more than"),
        ("x**9**9**9", "bits of a whole number are more than"),
        ("'A'*10**10", "is not allowed"),
        ("[0] * 10**10 + x", None),
        ("zeros((10**5, 10**5))", "1e+10 elements are more than"),
        ("arange(0, 1, 1e-10)", "1e+10 elements are more than"),
        ("tile(x, 10**9)", "elements are more than"),
        ("repeat(x, 10**9)", "elements are more than"),
        ("einsum('i,j,k->ijk', x, x, x)", "1e+09 elements are more than"),
        ("reshape(x, (1000, 1)) @ reshape(zeros(10**6), (1, 10**6))", "1e+09 elements are more than"),
        ("reshape(x, (1000, 1)) * zeros(10**6)", "1e+09 elements are more than"),
        ("1+" * 4000 + "1", "cannot be read"),
        ("1+" * 40_000 + "1", "characters, at most 10000 are read"),
        ("0*(1/0)", "division by zero"),
        ("x * (1 // 0)", "zero"),
        ("x + 5 % 0", "zero"),
        ("0.0 ** -1 * x", "negative power"),
        ("(1).T * x", "no attribute 'T'"),
        ("(0 - 1) ** 0.5", "its value is of type complex128, and a buffer holds real numbers"),
        ("[zeros(2), zeros(3)]", "inhomogeneous"),
    ],
)
def test_an_expression_has_limits(text, why):
    values = {"x": np.zeros(1000)}
    if why is None:
        assert parse_expression(text, ("x",)).evaluate(values).tolist() == [0.0] * 1000
        return
    with pytest.raises(ExpressionError, match=re.escape(why)):
        parse_expression(text, ("x",)).evaluate(values)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 5000 + "]" * 5000,
        "x = " + "{a=" * 5000 + "1" + "}" * 5000,
        "a." * 5000 + "x = 1",
        "buffers." + "a." * 5000 + "x = 1",
        GOOD.replace('"C", 32', "{ fields.fields" + ".fields" * 5000 + " = 1 }, 32"),
        GOOD.replace('"C", 32', "{ fields = [" * 200 + '"C"' + "] }" * 200 + ", 32"),
    ],
    ids=["arrays", "tables", "a dotted key", "a buffer", "an argument", "structs"],
)
def test_deep_nesting_gets_one_line(tmp_path, text):
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(UsageProblem) as error:
        read_launch_file(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
    (tmp_path / "a.ptx").write_text("")
    assert look_through(tmp_path, CheckOptions())[0].file == "a.ptx"


def test_parts_of_several_sizes_are_joined():
    found = parse_expression("concatenate((zeros(1), x[:2], [7]))", ("x",)).evaluate({"x": np.array([3.0, 4.0, 5.0])})
    assert found.tolist() == [0, 3, 4, 7]


def test_what_has_no_end_is_not_read(tmp_path):
    pipe = tmp_path / "pipe.ptx"
    os.mkfifo(pipe)
    for words in (["ptx", "list", str(pipe)], ["ptx", "list", "/dev/zero"], ["run", str(pipe)]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2 and "it is a device or a pipe, and no file; name a ." in result.stderr
    large = tmp_path / "large.ptx"
    with large.open("wb") as file:
        file.truncate((256 << 20) + 1)
    result = CliRunner().invoke(main, ["ptx", "list", str(large)])
    assert result.exit_code == 2 and "it is larger than 256 MiB; name a .ptx file" in result.stderr


def test_a_missing_launch_file_says_how_to_make_one(tmp_path):
    result = CliRunner().invoke(main, ["run", str(tmp_path / "no.toml")])
    assert result.exit_code == 2 and "make one with: emugpu ptx init FILE.ptx -o" in result.stderr
    result = CliRunner().invoke(main, ["run", "true"])
    assert result.stderr == "emugpu: error: cannot read true: No such file or directory; name a .toml file\n"
    result = CliRunner().invoke(main, ["run", str(tmp_path)])
    assert result.exit_code == 2 and "Is a directory; name a .toml file" in result.stderr


def test_arguments_of_every_kind(tmp_path):
    path = tmp_path / "launch.toml"
    arguments = (
        '["A", "m", "null", 3, 2.5, true, { f16 = 1 }, { hex = "00 ff" }, { pointer = "m" }, '
        '{ fields = { at = "A", inner = { fields = ["m", "null"] } } }]'
    )
    path.write_text(GOOD.replace('["A", "B", "C", 32, 64]', arguments))
    file = read_launch_file(path)
    values = [argument for _, argument in file.launches[0].arguments]
    assert values[:6] == [AddressArgument("A"), AddressArgument("m"), Null(), Scalar(3), Scalar(2.5), Scalar(True)]
    assert values[6].dtype.name == "f16" and values[7:9] == [Raw(b"\0\xff"), AddressArgument("m", pointer=True)]
    assert values[9] == Struct(
        (("at", AddressArgument("A")), ("inner", Struct((("0", AddressArgument("m")), ("1", Null())))))
    )
    assert file.buffers["A"].fill == Fill("integer") and file.expectations[0].exact


def test_plain_data_is_written_as_toml():
    data = {
        "plain_key-1": [1, -2, True],
        "a key": {"é": 'a "word"\n\\'},
        "": [1e22, 1.5e-9, float("inf"), np.float64(2)],
    }
    assert tomllib.loads(f"data = {as_toml(data)}") == {"data": data}
    assert as_toml((1, "x")) == '[1, "x"]'
