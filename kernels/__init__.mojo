"""Matmul kernels. MAX loads this folder as a package of custom ops, those of host/ops.mojo."""
from .host.ops import (
    GroupedMatmulInto,
    Matmul,
    MatmulFusedInto,
    MatmulInto,
    MatmulQuantisedInto,
    MatmulViewsInto,
    ScaledMatmulInto,
    ScaledMatmulQuantisedInto,
)
