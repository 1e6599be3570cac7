"""Kernel 7: kernel 6 with a double-buffered write-out.

The tile of C leaves in steps of `epilogue_width` columns through two small buffers in turn: while TMA stores one, the
warps fill the other. That needs 16 KB of shared memory instead of 64 KB; a sixth stage of the ring fits.
"""
from ..common.config import GemmConfig
from ..common.cta import Cta
from ..common.loader import produce
from ..common.write_out import write_in_turns
from .epilogue import EPILOGUE_WARPS, Epilogue
from .kernel6 import PRODUCER_WARP, consume
from max.gpu.primitives.cluster import elect_one_sync


@inline(.always)
def kernel7[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, c_map: UInt64, k_iterations: UInt32):
    """What the threads of a CTA do between its start and its end."""
    if cta.warp < EPILOGUE_WARPS:
        write_in_turns[config](Epilogue[config](cta), c_map)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, a_map, b_map, k_iterations)
    else:
        consume(cta, k_iterations)
