"""Matmul kernels. As a package of custom ops for MAX, this folder offers those of host/ops.mojo."""
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
