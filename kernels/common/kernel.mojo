"""The capabilities of a kernel."""

from .word import Word


@fieldwise_init
struct Kernel(TrivialRegisterPassable):
    """A kernel of the series and its capabilities. Shared code tests the capabilities, never the name."""

    var name: Word
    var pipelined: Bool  # a ring of stages between warps of different roles; otherwise one stage
    var double_buffers_epilogue: Bool  # the epilogue writes C through two buffers: TMA stores one, warps fill the other
    var is_persistent: Bool  # a CTA computes tile after tile; otherwise one, at its place in the grid
    var is_block_scaled: Bool  # A and B have scale factors

    def fuses(self) -> Bool:
        """The kernel can apply a fused epilogue."""
        return self.is_persistent and not self.is_block_scaled
