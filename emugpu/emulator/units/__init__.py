"""Passive units: TMA, the tensor core as tcgen05 and wgmma use it, and their arithmetic. They know no threads."""
