"""Which kernels there are, and which configurations of a kernel can be asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from harness.dtypes import element_type
from harness.errors import UsageProblem

# Shared memory one CTA may use on sm_100: 227 KB (CUDA C++ Programming Guide, compute capabilities).
SHARED_MEMORY_LIMIT = 227 * 1024
# The hardware's limit; more than 8 need the non-portable attribute (CUDA C++ Programming Guide, clusters).
LARGEST_CLUSTER = 16


@dataclass(frozen=True)
class Kernel:
    """What is fixed about a kernel, and the defaults of what is not.

    stage_bytes: shared memory of one pipeline stage in one CTA (its slices of A and B).
    output_bytes: shared memory of the tile of C in one CTA.
    """

    name: str
    summary: str
    arch: str
    cta_group: int
    stage_bytes: int
    output_bytes: int
    default_cluster: tuple[int, int]
    default_stages: int


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            name="kernel6",
            summary="warp-specialised ring of TMA stages, CTA-pair MMA 256x256x16, multicast in any cluster",
            arch="sm_100a",
            cta_group=2,
            stage_bytes=(128 * 64 + 128 * 64) * 2,
            output_bytes=128 * 256 * 2,
            default_cluster=(4, 4),
            default_stages=5,
        ),
    )
}


def find_kernel(name: str) -> Kernel:
    """Looks up a kernel by name."""
    if name not in KERNELS:
        raise UsageProblem(f"there is no kernel {name!r}; use one of: {', '.join(KERNELS)}")
    return KERNELS[name]


@dataclass(frozen=True)
class KernelConfig:
    """One configuration of a kernel: everything the compiler needs to know. Checked when it is made.

    cluster: (CTAs along M, CTAs along N). stages: depth of the ring in shared memory.
    """

    kernel: str
    arch: str
    dtype: str
    cluster: tuple[int, int]
    stages: int

    def __post_init__(self) -> None:
        kernel = find_kernel(self.kernel)
        if self.arch != kernel.arch:
            raise UsageProblem(
                f"{self.kernel} is written for {kernel.arch}, not for {self.arch!r}; use --arch {kernel.arch}"
            )
        element_type(self.dtype)
        _check_cluster(self.cluster, kernel)
        _check_stages(self.stages, kernel)

    @property
    def label(self) -> str:
        """Short name for tables."""
        return f"{self.kernel} {self.dtype} cluster {self.cluster[0]}x{self.cluster[1]} stages {self.stages}"

    def as_dict(self) -> dict:
        return {**asdict(self), "cluster": list(self.cluster)}


def make_config(
    kernel: str,
    *,
    arch: str = "auto",
    dtype: str = "bf16",
    cluster: tuple[int, int] | None = None,
    stages: int | None = None,
) -> KernelConfig:
    """A configuration of the named kernel, with the kernel's defaults where nothing is asked for."""
    found = find_kernel(kernel)
    return KernelConfig(
        kernel=kernel,
        arch=found.arch if arch == "auto" else arch,
        dtype=dtype,
        cluster=found.default_cluster if cluster is None else cluster,
        stages=found.default_stages if stages is None else stages,
    )


def parse_cluster(text: str) -> tuple[int, int]:
    """Reads ``CMxCN``: CTAs along M, CTAs along N."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise UsageProblem(
            f"cluster {text!r} is not CMxCN; write for example 4x4 (4 CTAs along M, 4 along N)"
        )
    return int(parts[0]), int(parts[1])


def _check_cluster(cluster: tuple[int, int], kernel: Kernel) -> None:
    cm, cn = cluster
    shown = f"cluster {cm}x{cn}"
    if cm < 1 or cn < 1:
        raise UsageProblem(
            f"{shown}: both sizes must be at least 1; the smallest for {kernel.name} is {kernel.cta_group}x1"
        )
    if cm % kernel.cta_group:
        raise UsageProblem(
            f"{shown}: {cm} CTAs along M cannot be split into pairs, which {kernel.name} multiplies with; "
            f"use an even number, for example {cm + 1}x{cn}"
        )
    if cm * cn > LARGEST_CLUSTER:
        raise UsageProblem(
            f"{shown} has {cm * cn} CTAs; a cluster has at most {LARGEST_CLUSTER}, for example 4x4"
        )


def _check_stages(stages: int, kernel: Kernel) -> None:
    room = SHARED_MEMORY_LIMIT - kernel.output_bytes - _barrier_bytes(0)
    most = room // (kernel.stage_bytes + _barrier_bytes(1) - _barrier_bytes(0))
    if stages < 1:
        raise UsageProblem(f"stages {stages}: the ring needs at least 1; {kernel.name} takes 1 to {most}")
    if stages > most:
        ring, barriers = stages * kernel.stage_bytes, _barrier_bytes(stages)
        total = ring + kernel.output_bytes + barriers
        raise UsageProblem(
            f"stages {stages}: A and B {ring} + C {kernel.output_bytes} + barriers {barriers} = {total}, "
            f"more than the {SHARED_MEMORY_LIMIT} bytes of shared memory; use at most {most}"
        )


def _barrier_bytes(stages: int) -> int:
    """A full and an empty barrier per stage, the accumulator's barrier, and the address of tensor memory."""
    return 8 * (2 * stages + 2)
