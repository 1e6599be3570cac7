"""The tiles of A and B and the stages that hold them: rows, bytes, and slices for multicast."""

from .block_scaling import ATOM_BYTES, ATOM_ROWS, F32_BLOCK
from .config import MMA_K_BYTES, SWIZZLE_ROW_BYTES, GemmConfig
from .multicast import Multicast, Slices
from std.math import ceildiv


__extension GemmConfig:
    def consumer_m(self) -> Int:
        """Returns the rows of a tile that one consumer warpgroup multiplies (sm_90a)."""
        return self.mma_m // self.consumers_of_tile()

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
        """Returns how the CTAs of a cluster share A, B and the scale factors of A."""
        return Multicast(self.cluster_m, self.cluster_n, self.cta_group, self.multicast)

    def b_scale_sharing(self) -> Multicast:
        """Returns how the CTAs of a cluster share the scale factors of B: all CTAs with equal y need the same."""
        return Multicast(self.cluster_m, self.cluster_n, 1, self.multicast)

    def a_is_k_by_m(self) -> Bool:
        """The tensor A is [K, M] in memory, not [M, K]."""
        return self.layout == "tn" or self.layout == "tt"

    def b_is_k_by_n(self) -> Bool:
        """The tensor B is [K, N] in memory, not [N, K]."""
        return self.layout == "tn" or self.layout == "nn"

    def a_mn_major(self) -> Bool:
        """M is contiguous in the MMA's A, which is the tensor B if swapped."""
        return self.b_is_k_by_n() if self.swapped else self.a_is_k_by_m()

    def b_mn_major(self) -> Bool:
        """N is contiguous in the MMA's B, which is the tensor A if swapped."""
        return self.a_is_k_by_m() if self.swapped else self.b_is_k_by_n()

    def a_slices(self) -> Slices:
        return Slices(self.cta_m(), self.sharing().a_parts(), mn_major=self.a_mn_major())

    def b_slices(self) -> Slices:
        return Slices(self.cta_b_rows(), self.sharing().b_parts(), mn_major=self.b_mn_major())

    def a_scale_slices(self) -> Slices:
        """Returns how the CTAs divide the scale factors of A, in rows of atoms."""
        return Slices(max(1, self.cta_m() // ATOM_ROWS), self.sharing().a_parts(), unit=1)

    def b_scale_slices(self) -> Slices:
        """Returns how the CTAs divide the scale factors of B, in rows of atoms."""
        return Slices(max(1, self.mma_n // ATOM_ROWS), self.b_scale_sharing().b_parts(), unit=1)

    def a_bytes(self) -> Int:
        return self.cta_m() * SWIZZLE_ROW_BYTES

    def b_bytes(self) -> Int:
        return self.cta_b_rows() * SWIZZLE_ROW_BYTES

    def atom_row_bytes(self) -> Int:
        """Returns the bytes of the scale factors of 128 rows in a stage; 0 without block scaling."""
        return self.scaling.atoms_per_stage() * ATOM_BYTES

    def a_scale_bytes(self) -> Int:
        if self.promotes():
            return 4 * self.cta_m()
        return self.cta_m() // ATOM_ROWS * self.atom_row_bytes()

    def b_scale_bytes(self) -> Int:
        """Returns the bytes of the scale factors of B in a stage. Each CTA of a pair needs those of all columns. A row
        of f32 factors takes 128 bytes, the alignment of a copy; the CTA uses one of them."""
        if self.promotes():
            return 128 * ceildiv(self.mma_n, F32_BLOCK)
        return self.mma_n // ATOM_ROWS * self.atom_row_bytes()

    def stage_bytes(self) -> Int:
        """Returns the bytes of one stage: A, B and their scale factors."""
        return self.a_bytes() + self.b_bytes() + self.a_scale_bytes() + self.b_scale_bytes()

    def stage_columns(self) -> Int:
        """Returns the columns of a stage in tensor maps, which count bytes if elements have less than 16 bits."""
        return self.block_k if self.scaling.bits == 16 else SWIZZLE_ROW_BYTES

    def full_bytes(self) -> Int:
        """Returns the bytes that one full barrier counts: a stage of every CTA that shares the MMA."""
        return self.cta_group * self.stage_bytes()

    def l2_promotion(self) -> Int:
        """Returns the bytes that L2 fetches at once, at least, for a TMA load: 128 for one row of a box, 256 for the
        row of the next K step too. On an H200, 256 is 6 to 15 % faster with one stage, when nothing else loads ahead,
        and up to 6 % slower with more stages, because L2 moves 10 % more bytes."""
        return 256 if self.has_tmem() or self.stages == 1 else 128


def k_advance(step: Int, mn_major: Bool) -> UInt64:
    """Returns how far, in the 16-byte units of a descriptor, MMA `step` of a stage reads after the first MMA, in an
    operand of 16-bit elements: 32 bytes of each line for each step, or 16 lines if MN-major."""
    return UInt64(step * (16 * SWIZZLE_ROW_BYTES if mn_major else MMA_K_BYTES) // 16)
