"""The place of a fused epilogue of your own: `-c epilogue=FILE.mojo` compiles that file in place of this one, which has none.
"""
from .common.fragment import Fragment, FusedEpilogue, Values


struct OwnEpilogue(FusedEpilogue):
    comptime name = ""

    @staticmethod
    def apply(fragment: Fragment) -> Values:
        return fragment.values
