"""Matmul kernels. As a package of custom ops for MAX, this folder offers `matmul`, `matmul_into`, `matmul_fused_into`,
`matmul_views_into`, of block-scaled A and B `scaled_matmul_into`, and of groups `grouped_matmul_into`."""
from .host.grouped_matmul import GroupedMatmulInto
from .host.matmul import Matmul, MatmulFusedInto, MatmulInto
from .host.matmul_views import MatmulViewsInto
from .host.scaled_matmul import ScaledMatmulInto
