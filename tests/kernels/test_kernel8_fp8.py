"""Kernel 8 on Hopper with e4m3: exact where scale factors differ, bit for bit an H200's recorded sums."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from exact_floats import rounded, value
from kernel_faults import Alteration, outcome, parameter, substitute
from kernel_runs import check_bits, cluster_tile, run
from published_sums import cut, number, to_f32

from emugpu.check import Checker
from emugpu.errors import UsageProblem
from harness.compile.artifacts import Artifact
from harness.compile.config import make_config
from harness.model.constants import find_gpu
from harness.model.predict import predict
from harness.problem import Inputs, Shape


def config(scales: str, cluster: tuple[int, int], shape: tuple[int, int], sms: int | None = None, **options):
    sms = sms or 2 * cluster[0] * cluster[1]
    return make_config(
        "kernel8", arch="sm_90a", dtype="e4m3", scales=scales, cluster=cluster, mma_shape=shape, sms=sms, **options
    )


CONFIGS = {
    "tensor 2x1": config("tensor", (2, 1), (128, 256)),
    "tensor 1x2 dynamic": config("tensor", (1, 2), (256, 96), scheduler="dynamic", stages=3),
    "tensor 4x4": config("tensor", (4, 4), (64, 64), stages=2),
    "tensor 1x1 ping-pong": config("tensor", (1, 1), (128, 128), ping_pong=True),
    "block 2x1": config("block", (2, 1), (128, 128)),
    "block 1x2 dynamic, written at once": config("block", (1, 2), (256, 128), scheduler="dynamic"),
    "block 4x1, written at once": config("block", (4, 1), (128, 256), stages=2, out_dtype="f32"),
    "block 2x2, one warpgroup": config("block", (2, 2), (64, 64), stages=3),
    "block 4x4": config("block", (4, 4), (128, 64), stages=2),
    "block 1x1 ping-pong": config("block", (1, 1), (128, 128), ping_pong=True),
    "block 4x2, each for itself": config("block", (4, 2), (64, 32), multicast=False, stages=1),
}
SUMS = 16
"""Elements of C that are summed once more by the recorded rule."""
CLUSTERS = {"2x1", "1x2", "4x4", "1x1", "4x1", "2x2", "4x2"}


def sizes(artifact: Artifact) -> list[tuple[int, int, int]]:
    """Five blocks of K, more than fit 16 bytes; ragged everywhere; less than a block."""
    m, n = cluster_tile(artifact.config)
    return [(m + 5, 2 * n + 8, 5 * 128), (m - 37, n - 8, 128 * artifact.config.stages + 144), (m // 2 + 1, 136, 48)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_exact(built, name, schedule):
    deep, ragged, shallow = sizes(built[name])
    for kind, size in {"fifo": [("index", ragged)], "random": [("index", deep), ("integer", shallow)]}[schedule]:
        _, validation = run(built[name], size, kind, schedule=schedule, seed=3)
        assert validation.exact and validation.mismatches == 0, (size, validation)


def test_every_cluster_is_there():
    assert {"x".join(map(str, one.cluster)) for one in CONFIGS.values()} == CLUSTERS


@pytest.mark.parametrize("name", CONFIGS)
def test_sound(built, name):
    checker = Checker()
    m, n = cluster_tile(built[name].config)
    run(built[name], (m, 3 * n, 128 * 4 + 16), "index", schedule="random", seed=1, sinks=(checker,))
    assert checker.report().findings == ()


# ---- the bits ----


def recorded(word: int, a: np.ndarray, b: np.ndarray) -> int:
    """One wgmma of e4m3, as an H200 was seen to add: 32 products and the sum are cut 13 bits below the largest, and so
    is the result."""
    products = [(x[0] * y[0], x[1] + y[1], x[2] + y[2]) for x, y in zip(map(e4m3, a), map(e4m3, b), strict=True)]
    terms = [term for term in [*products, number(word, "f32")] if term[0]]
    quantum = max([raw for _, _, raw in terms] + [-133]) - 13
    bits = to_f32(sum(cut(mantissa, exponent, quantum) for mantissa, exponent, _ in terms), quantum)
    return bits >> 10 << 10


def e4m3(code: np.uint8) -> tuple[int, int, int]:
    found = number(int(code), "e4m3")
    assert isinstance(found, tuple)
    return found


def f32(exact: Fraction) -> Fraction:
    found = value(rounded(exact, "f32"), "f32")
    return Fraction(0) if found == "-0" else found


def wanted(inputs: Inputs, row: int, column: int, dtype: np.dtype) -> np.generic:
    """One element of C: the recorded sums, of each block promoted to f32, then times alpha and rounded."""
    a, b = inputs.a.view(np.uint8)[row], inputs.b.view(np.uint8)[column]
    fill = np.zeros(-len(a) % 128, np.uint8)
    a, b = np.append(a, fill), np.append(b, fill)
    total, word = Fraction(0), 0
    for first in range(0, len(a), 32):
        word = recorded(word, a[first : first + 32], b[first : first + 32])
        if inputs.factors and first % 128 == 96:
            of_a, of_b = inputs.factors[0][row, first // 128], inputs.factors[1][column // 128, first // 128]
            scale = f32(Fraction(float(of_a)) * Fraction(float(of_b)))
            total, word = f32(Fraction(float(np.uint32(word).view(np.float32))) * scale + total), 0
    if not inputs.factors:
        total = Fraction(float(np.uint32(word).view(np.float32)))
    return dtype.type(np.float32(float(f32(total * Fraction(inputs.alpha)))))


@pytest.mark.parametrize("name", CONFIGS)
def test_bits_of_random_codes_are_the_recorded_ones(built, name):
    artifact = built[name]
    m, n = cluster_tile(artifact.config)
    size = Shape(m - 3, n + 8, 2 * 128 + 80)
    kind = artifact.plan(size).out_type.numpy
    check_bits(artifact, size, lambda inputs, row, column: wanted(inputs, row, column, kind), SUMS)


@pytest.mark.parametrize("name", ["tensor 2x1", "block 2x1"])
def test_quantised_normal_values_pass_with_the_sums_of_the_hardware(built, name):
    _, validation = run(built[name], (256, 264, 1024), "normal", accumulation="tensor_core")
    assert validation.passed and not validation.exact
    # Promotion is what it is for: 4 times fewer products are added with 13 bits one after the other.
    low, high = (0.0009, 0.004) if name.startswith("tensor") else (0.0001, 0.0009)
    assert low < validation.relative_frobenius_error < high


# ---- faults ----

SIZE = (256, 136, 128 * 7)  # once round the ring and on
READ = r"(ld\.shared\.f32 *\t*%r\d+, \[%r\d+\+)(\d+)\]"


def without_promotion(ptx: str) -> str:
    """The tensor core adds on: the first multiplication of a stage does not begin anew."""
    wgmma = re.compile(r"\bp, 0, p;|setp\.ne\.b32 p, ([^,]*), 0;")
    altered, done = wgmma.subn("setp.ne.b32 p, 1, 0;", ptx)
    assert done, "nothing to alter"
    return altered


FAILURES: dict[str, Alteration] = {
    "the factor of A of another row": substitute(READ.replace(r"(\d+)", "32"), r"\g<1>0]", count=0),
    "the factor of B of another block of K": substitute(
        r"shl\.b32 *\t*(%r\d+), (%r\d+), 2;(\s+and\.b32 .*12;)", r"mov.b32 \1, 0;\3", count=0
    ),
    "the tensor core adds on from stage to stage": without_promotion,
    "C is not multiplied by alpha": substitute(
        rf"ld\.param::entry\.b32 *\t*(%r\d+), \[\w*{parameter('alpha', 'scaled_gemm')}\];", r"mov.b32 \1, 0f3F800000;"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_fault_is_seen(built, name):
    assert outcome(built["block 2x1"], FAILURES[name], SIZE, "fifo") == "wrong"


def test_factors_that_are_read_after_their_stage_is_given_back_are_found(built):
    """One warp gives the stage back for all four: right by luck, as the checker says."""
    artifact = built["block 2x1"]
    count = artifact.plan(Shape(*SIZE)).barriers[1].arrivals
    assert count == 2 * 2 * 4
    ptx = substitute(rf"(mov\.b32 *\t*%r\d+, ){count};", rf"\g<1>{count // 4};")(artifact.ptx)
    checker = Checker()
    run(artifact, SIZE, "index", ptx=ptx, sinks=(checker,), strict=False)
    assert checker.report().findings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "sm_100a"}, "dtype e4m3: kernel8 multiplies it on sm_90a"),
        ({"scales": "none"}, "e4m3 has tensor or block; use tensor or block"),
        ({"scales": "block", "mma_shape": (128, 192)}, "divide the 128 rows of B that share a factor"),
        ({"dtype": "bf16", "scales": "block"}, "with dtype bf16 it is none"),
        ({"epilogue": "relu"}, "epilogue relu: not behind e4m3, whose epilogue multiplies by alpha"),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config("kernel8", **{"arch": "sm_90a", "dtype": "e4m3", **options})


def test_k_is_of_whole_16_bytes(built):
    with pytest.raises(Exception, match="K 40 is not a multiple of 16"):
        built["block 2x1"].plan(Shape(64, 64, 40))


def test_a_prediction_needs_no_data(built):
    """Consumers read factors that no copy has brought, as no data is moved. Each of four SMs multiplies four tiles of 8
    stages, in four MMAs of 64 cycles for each of two warpgroups."""
    found = predict(built["block 2x1"], Shape(256, 1024, 1024), find_gpu("h200"))
    assert 1 < found.cycles / (4 * 8 * 4 * 64 * 2) < 2
