"""Matmul kernels. As a package of custom ops for MAX, this folder offers `matmul`, `matmul_into`, `matmul_fused_into`,
`matmul_views_into`, of A and B with scale factors `scaled_matmul_into`, of groups `grouped_matmul_into`, and with C of e4m3
`matmul_quantised_into` and `scaled_matmul_quantised_into`."""
from .host.grouped_matmul import GroupedMatmulInto
from .host.matmul import Matmul, MatmulFusedInto, MatmulInto
from .host.matmul_views import MatmulViewsInto
from .host.quantised_matmul import MatmulQuantisedInto, ScaledMatmulQuantisedInto
from .host.scaled_matmul import ScaledMatmulInto
