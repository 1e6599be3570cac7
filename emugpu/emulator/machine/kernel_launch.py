"""What the host says of a launch, and the text that it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from emugpu.emulator.memory.tensor_map import TensorMap

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Region:
    """A named range of dynamic shared memory, for messages, e.g. "A stage 2" or "full[0]"."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class KernelLaunch:
    """Shape and arguments of one launch.

    ``parameters``: the kernel's parameter block. ``workspace``: the global address of a cooperative grid's barrier, or
    0 if the launch is not cooperative.
    """

    grid: Dim3
    cluster: Dim3
    block: Dim3
    dynamic_shared: int
    parameters: bytes
    tensor_maps: dict[int, tuple[str, TensorMap]] = field(default_factory=dict)
    """For each generic address of a tensor map: a name for the counters, and the map."""
    regions: tuple[Region, ...] = ()
    workspace: int = 0

    @property
    def clusters(self) -> Dim3:
        """The number of clusters along each axis."""
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    @property
    def cluster_size(self) -> int:
        """The number of CTAs in a cluster."""
        x, y, z = self.cluster
        return x * y * z

    @property
    def cluster_count(self) -> int:
        x, y, z = self.clusters
        return x * y * z

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Printed:
    """The text that one printf of one thread printed. ``cta``: %ctaid; ``thread``: %tid."""

    cta: Dim3
    thread: Dim3
    text: str
