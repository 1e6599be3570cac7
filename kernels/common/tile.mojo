"""The tiles of A and B and the stages that hold them: rows, bytes, and slices for multicast."""

from .config import MMA_K_BYTES, SWIZZLE_ROW_BYTES, GemmConfig
from .multicast import Multicast, Slices


__extension GemmConfig:
    def consumer_m(self) -> Int:
        """Returns the rows of a tile that one consumer warpgroup multiplies (sm_90a)."""
        return self.mma_m // self.consumers_of_tile

    def cta_m(self) -> Int:
        """Returns the rows of A, and of C, that one CTA holds."""
        return self.mma_m // self.cta_group

    def cta_b_rows(self) -> Int:
        """Returns the rows of B (columns of C) that one CTA loads. The CTAs of a pair share the N of their MMA."""
        return self.mma_n // self.cta_group

    def cluster_size(self) -> Int:
        return self.cluster_m * self.cluster_n

    def cluster_rows(self) -> Int:
        """Returns the rows of C that a cluster computes."""
        return self.cluster_m * self.cta_m()

    def cluster_columns(self) -> Int:
        """Returns the columns of C that a cluster computes."""
        return self.cluster_n * self.mma_n

    def sharing(self) -> Multicast:
        """Returns how the CTAs of a cluster share A and B."""
        return Multicast(self.cluster_m, self.cluster_n, self.cta_group, self.multicast)

    def a_mn_major(self) -> Bool:
        """M is contiguous in the MMA's A, not K."""
        return self.layout == "tn" or self.layout == "tt"

    def b_mn_major(self) -> Bool:
        """N is contiguous in the MMA's B, not K."""
        return self.layout == "tn" or self.layout == "nn"

    def a_slices(self) -> Slices:
        return Slices(self.cta_m(), self.sharing().a_parts(), mn_major=self.a_mn_major())

    def b_slices(self) -> Slices:
        return Slices(self.cta_b_rows(), self.sharing().b_parts(), mn_major=self.b_mn_major())

    def a_bytes(self) -> Int:
        return self.cta_m() * SWIZZLE_ROW_BYTES

    def b_bytes(self) -> Int:
        return self.cta_b_rows() * SWIZZLE_ROW_BYTES

    def stage_bytes(self) -> Int:
        return self.a_bytes() + self.b_bytes() + self.more_stage_bytes

    def stage_columns(self) -> Int:
        """Returns the columns of a stage in the tensor maps of A and B: one swizzle row of K."""
        return SWIZZLE_ROW_BYTES // element_bytes(self.dtype)

    def full_bytes(self) -> Int:
        """Returns the bytes that one full barrier counts: a stage of every CTA that shares the MMA."""
        return self.cta_group * self.stage_bytes()


def element_bytes(dtype: DType) -> Int:
    """Returns the bytes of an element: 4 (f32), 2, or 1 (e4m3, or a byte of two e2m1)."""
    if dtype == DType.float32:
        return 4
    return 1 if dtype == DType.float8_e4m3fn or dtype == DType.uint8 else 2


def k_advance(step: Int, mn_major: Bool) -> UInt64:
    """Returns how far, in the 16-byte units of a descriptor, MMA `step` of a stage reads after the first MMA, in an
    operand of 16-bit elements: 32 bytes of each line for each step, or 16 lines if MN-major."""
    return UInt64(step * (16 * SWIZZLE_ROW_BYTES if mn_major else MMA_K_BYTES) // 16)
