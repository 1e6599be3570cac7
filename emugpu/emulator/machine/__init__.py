"""The emulated machine: warps and their fragments, barriers, CTAs and clusters, asynchronous copies, the scheduler."""
