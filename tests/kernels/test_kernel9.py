"""Kernel 9: block-scaled formats, exact on inputs that tell scale factors apart, and bit for bit the published sums."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from kernel_faults import Alteration, outcome, parameter, substitute
from kernel_runs import check_bits, cluster_tile, run
from published_sums import Sum, published

from emugpu.check import Checker
from emugpu.launch.launching import run as launch
from harness.block_scaling import FORMATS, to_atoms
from harness.compile.artifacts import Artifact, to_launchable
from harness.compile.config import KernelConfig, make_config
from harness.problem import OUT_TYPES, Inputs, Shape, make_inputs

CONFIGS = {
    "nvfp4 2x1": make_config("kernel9", cluster=(2, 1)),
    "nvfp4 2x2 narrow": make_config("kernel9", cluster=(2, 2), mma_shape=(256, 128), stages=3),
    "mxfp8 4x1": make_config("kernel9", dtype="mxfp8", cluster=(4, 1), stages=2),
    "mxfp4 4x4": make_config("kernel9", dtype="mxfp4", cluster=(4, 4), stages=3),
    "mxfp8 one CTA": make_config(
        "kernel9", dtype="mxfp8", cta_group=1, cluster=(1, 2), mma_shape=(128, 256), out_dtype="f32"
    ),
    "mxfp8-e5m2 narrow": make_config(
        "kernel9", dtype="mxfp8-e5m2", cluster=(2, 1), mma_shape=(256, 128), stages=3, out_dtype="f32"
    ),
    "nvfp4 one accumulator": make_config(
        "kernel9",
        cta_group=1,
        cluster=(1, 1),
        mma_shape=(128, 128),
        accumulators=1,
        scheduler="static",
        sms=2,
        out_dtype="f32",
    ),
    "mxfp4 narrow, each for itself": make_config(
        "kernel9", dtype="mxfp4", cluster=(4, 2), mma_shape=(256, 128), multicast=False, out_dtype="fp16"
    ),
}
KIND = {"nvfp4": "mxf4nvf4", "mxfp8": "mxf8f6f4", "mxfp8-e5m2": "mxf8f6f4", "mxfp4": "mxf4"}
SUMS = 24
"""Elements of C that are summed once more by the published rule."""


def block_k(artifact: Artifact) -> int:
    return 1024 // FORMATS[artifact.config.dtype].bits


def sizes(artifact: Artifact) -> dict[str, tuple[int, int, int]]:
    m, n = cluster_tile(artifact.config)
    step = block_k(artifact)
    return {
        "tiles round the ring": (m, 3 * n, step * 3),
        "ragged, K of whole atoms and a half": (m - 37, n - 24, step + step // 2 + 32),
        "one block": (m // 2 + 1, 136, 32),
        "more rows of tiles than a cluster, K less than a stage": (m + 1, n + 8, step - 32),
        "K several times round the ring": (37, 72, step * (2 * artifact.config.stages + 1) + 32),
    }


def check_exact(artifact: Artifact, shapes: int, schedule: str) -> None:
    """Of the first so many shapes, index inputs and, once, whole numbers."""
    kinds = ("index", "integer", "index", "index", "index")
    for kind, size in zip(kinds[:shapes], sizes(artifact).values(), strict=False):
        _, validation = run(artifact, size, kind, schedule=schedule, seed=3, resident_clusters=2)
        assert validation.exact and validation.mismatches == 0, (size, validation)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_exact(built, name, schedule):
    check_exact(built[name], 3, schedule)


EVERYWHERE = [
    make_config("kernel9", dtype=dtype, cluster=cluster, mma_shape=(256, columns), stages=3)
    for (cluster, columns), dtype in zip(
        product(((2, 1), (2, 2), (4, 1), (4, 4)), (256, 128)), (*FORMATS, *reversed(FORMATS)), strict=True
    )
]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("config", EVERYWHERE, ids=lambda c: f"{c.dtype}-{c.cluster}-{c.mma_shape[1]}")
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_exact_in_all_clusters_with_both_widths(builder, config, schedule):
    artifacts = builder("kernel 9 everywhere", EVERYWHERE)
    check_exact(artifacts[EVERYWHERE.index(config)], 5, schedule)


@pytest.mark.parametrize("name", CONFIGS)
def test_sound(built, name):
    m, n = cluster_tile(built[name].config)
    checker = Checker()
    size = (m, 2 * n + 8, block_k(built[name]) * 2 + 32)
    run(built[name], size, "index", schedule="random", seed=1, sinks=(checker,), resident_clusters=1)
    assert checker.report().findings == ()


def as_published(inputs: Inputs, config: KernelConfig, row: int, column: int) -> np.generic:
    """One element of C: the published sum of one MMA after the other, then times alpha and rounded."""
    dtype = config.dtype
    block_format = FORMATS[dtype]
    assert inputs.factors is not None
    depth = 256 // block_format.bits
    a, b = inputs.a.view(np.uint8)[row], inputs.b.view(np.uint8)[column]
    of_a, of_b = inputs.factors[0].view(np.uint8)[row], inputs.factors[1].view(np.uint8)[column]
    # What lies behind K: zeros, and factors of any value.
    fill = -len(a) % depth
    a, b = (np.append(x, np.zeros(fill, np.uint8)).tolist() for x in (a, b))
    of_a, of_b = (np.append(x, np.zeros(fill // block_format.block, np.uint8)).tolist() for x in (of_a, of_b))
    element, scale = block_format.element.name, "ue8m0" if block_format.powers else "ue4m3"
    word = 0
    for first in range(0, len(a), depth):
        part = slice(first, first + depth)
        blocks = slice(first // block_format.block, (first + depth) // block_format.block)
        one = Sum(KIND[dtype], element, element, "f32", a[part], b[part], word, scale, of_a[blocks], of_b[blocks])
        word = published(one)
    value = np.uint32(word).view(np.float32) * np.float32(inputs.alpha)
    return OUT_TYPES[config.out_dtype].numpy.type(value)


@pytest.mark.parametrize("name", CONFIGS)
def test_bits_of_random_codes_are_the_published_ones(built, name):
    artifact = built[name]
    m, n = cluster_tile(artifact.config)
    size = Shape(m - 3, n + 8, block_k(artifact) + 96)
    check_bits(artifact, size, lambda inputs, row, column: as_published(inputs, artifact.config, row, column), SUMS)


@pytest.mark.parametrize("dtype", FORMATS)
def test_quantised_normal_values_are_near(built, dtype):
    name = next(name for name, config in CONFIGS.items() if config.dtype == dtype)
    size = (256, 264, 544)
    _, validation = run(built[name], size, "normal")
    assert validation.passed and not validation.exact
    inputs = make_inputs(Shape(*size), dtype, "normal", seed=sum(size))
    plain = np.random.default_rng(sum(size)).standard_normal((size[0], size[2]))
    assert inputs.factors is not None
    block = FORMATS[dtype].block
    standing_for = inputs.a.astype(np.float64) * np.repeat(inputs.factors[0].astype(np.float64), block, axis=1)
    if dtype == "nvfp4":  # times alpha's part of A
        standing_for *= np.abs(plain).max() / (6 * 448)
    error = np.linalg.norm(standing_for - plain) / np.linalg.norm(plain)
    assert 0.01 < error < 0.16


def test_the_bytes_of_scale_factors_are_counted(built):
    """Of a stage of nvfp4, 2 KB for 128 rows; each CTA of a pair has those of all of B, of which it loads a half."""
    counters, _ = run(built["nvfp4 2x1"], (512, 512, 512), "index")
    read = counters["tma_global_bytes_read_by_tensor"]
    assert read["A scales"] == 2 * 512 * 512 // 16 and read["B scales"] == 2 * 512 * 512 // 16
    tiles, steps = 4, 2
    received = tiles * steps * 2 * (2 * 128 * 128 + 2048 + 2 * 2048)
    assert counters["tma_shared_bytes_written"] == received


# ---- what has gone wrong in public kernels --------------------------------------------------------------------------

SIZE = (512, 512, 1280)  # five stages of nvfp4: the slots of tensor memory are used again
SEEDS = 6


def every_copy(change: str) -> Alteration:
    """Another source (``from``) or destination (``to``) of each tcgen05.cp."""
    return substitute(
        r"(tcgen05\.cp[^\[]*\[)(%r\d+)(\], )(%rd\d+);",
        rf"{{ .reg .b32 to; .reg .b64 from; mov.b32 to, \2; mov.b64 from, \4; {change} \1to\3from; }}",
        count=0,
    )


def scale_ids(ptx: str) -> str:
    """All MMAs of mxfp8 take byte 0 of their words: the ids wrap."""
    wanted = r"(tcgen05\.mma[^;]*?, )(%r\d+)(, \[%r\d+\], \[%r\d+\], %p\d+;)"
    return substitute(wanted, r"{ .reg .b32 d; and.b32 d, \2, 0x9fffffcf; \1d\3 }", count=0)(ptx)


def copies_dropped(ptx: str) -> str:
    """Of each stage only the first atom of A and of B is copied, to the columns of all."""
    [first, *others] = list(re.finditer(r"tcgen05\.cp[^;]*;", ptx))
    for found in others:
        ptx = ptx.replace(
            found.group(), re.sub(r"%rd\d+;", re.findall(r"%rd\d+", first.group())[0] + ";", found.group())
        )
    return ptx


ALPHA = parameter("alpha", "scaled_gemm")

FAILURES = {
    "one slice of scale factors for all blocks of K": ("nvfp4 2x1", copies_dropped),
    "ids of scale factors wrap": ("mxfp8 one CTA", scale_ids),
    "scale factors of the next atom": ("nvfp4 2x1", every_copy("add.u64 from, from, 32;")),
    "scale factors four columns further": ("nvfp4 2x1", every_copy("add.u32 to, to, 4;")),
    "scale factors are not copied": ("nvfp4 2x1", substitute(r"tcgen05\.cp[^;]*;", "", count=0)),
    "C is not multiplied by alpha": (
        "nvfp4 2x1",
        substitute(rf"ld\.param::entry\.b32 *\t*(%r\d+), \[\w*{ALPHA}\];", r"mov.b32 \1, 0f3F800000;"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_public_failures_are_seen(built, name):
    which, alter = FAILURES[name]
    assert outcome(built[which], alter, SIZE, "fifo") != "right"


def test_scale_factors_that_are_overwritten_while_in_use_are_found(built):
    """The MMA thread does not wait for its slot: right in the order of issue, and by luck, as the checker says."""
    artifact = built["nvfp4 2x1"]
    copies = artifact.ptx.index("tcgen05.cp")
    *_, wait = re.finditer(r"mbarrier\.try_wait[^;]*?(%p\d+)[^;]*;", artifact.ptx[:copies])
    ptx = f"{artifact.ptx[: wait.start()]}setp.eq.u32 {wait[1]}, 0, 0;{artifact.ptx[wait.end() :]}"
    checker = Checker()
    _, validation = run(artifact, SIZE, "index", ptx=ptx, sinks=(checker,), resident_clusters=1, strict=False)
    assert validation.passed
    assert "tcgen05.cp overwrites" in " ".join(finding.message for finding in checker.report().findings)


@pytest.mark.parametrize("name", ["nvfp4 2x1", "mxfp8 4x1"])
def test_what_lies_behind_the_factors_is_never_used(built, name):
    """Rows that there are not have NaN factors in all tests here; blocks behind K must be finite, and a NaN there is
    seen, as 0 times NaN is one."""
    artifact = built[name]
    size = Shape(200, 136, 32 * 5)
    inputs = make_inputs(size, artifact.config.dtype, "index", seed=1)
    plan = artifact.plan(size)
    what = to_launchable(artifact, plan, inputs)
    assert inputs.factors is not None
    atoms = to_atoms(inputs.factors[0])
    nan = 0x7F if name.startswith("nvfp4") else 0xFF
    assert (atoms == nan).any(), "some rows are not there"
    assert launch(what).passed
    garbage = np.where(np.arange(512) % 4 == 3, nan, atoms[:, -1:]).astype(np.uint8)
    poisoned = np.concatenate([atoms[:, :-1], garbage], axis=1)
    buffer = what.buffers["A scales"]
    fill = replace(buffer.fill, array=poisoned)
    other = replace(what, buffers={**what.buffers, "A scales": replace(buffer, fill=fill)})
    assert not launch(other).passed
