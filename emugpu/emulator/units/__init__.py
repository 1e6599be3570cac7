"""Passive units: TMA, the tensor core of tcgen05 and wgmma, and their arithmetic. They know nothing of threads."""
