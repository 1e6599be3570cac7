"""Tiles of A and B and the stages that hold them: rows, slices for multicast, bytes."""

from .block_scaling import ATOM_BYTES, ATOM_ROWS, F32_BLOCK
from .config import MMA_K_BYTES, SWIZZLE_ROW_BYTES, GemmConfig
from .multicast import Multicast, Slices
from std.math import ceildiv


__extension GemmConfig:
    def consumer_m(self) -> Int:
        return self.mma_m // self.consumers_of_tile()

    def cta_m(self) -> Int:
        """Rows of A, and of C, that one CTA holds."""
        return self.mma_m // self.cta_group

    def cta_b_rows(self) -> Int:
        """Rows of B (columns of C) that one CTA loads: the CTAs of a pair share the MMA's N."""
        return self.mma_n // self.cta_group

    def cluster_size(self) -> Int:
        return self.cluster_m * self.cluster_n

    def cluster_rows(self) -> Int:
        """Rows of C that a cluster computes together."""
        return self.cluster_m * self.cta_m()

    def cluster_columns(self) -> Int:
        return self.cluster_n * self.mma_n

    def sharing(self) -> Multicast:
        return Multicast(self.cluster_m, self.cluster_n, self.cta_group, self.multicast)

    def b_scale_sharing(self) -> Multicast:
        """CTAs with equal y need the same scale factors of B, in both CTAs of a pair."""
        return Multicast(self.cluster_m, self.cluster_n, 1, self.multicast)

    def a_is_k_by_m(self) -> Bool:
        """How the tensor A lies in memory; otherwise it is [M, K]."""
        return self.layout == "tn" or self.layout == "tt"

    def b_is_k_by_n(self) -> Bool:
        """Otherwise it is [N, K]."""
        return self.layout == "tn" or self.layout == "nn"

    def a_mn_major(self) -> Bool:
        """M is contiguous in the MMA's A, which swapped is the tensor B."""
        return self.b_is_k_by_n() if self.swapped else self.a_is_k_by_m()

    def b_mn_major(self) -> Bool:
        return self.a_is_k_by_m() if self.swapped else self.b_is_k_by_n()

    def a_slices(self) -> Slices:
        return Slices(self.cta_m(), self.sharing().a_parts(), mn_major=self.a_mn_major())

    def b_slices(self) -> Slices:
        return Slices(self.cta_b_rows(), self.sharing().b_parts(), mn_major=self.b_mn_major())

    def a_scale_slices(self) -> Slices:
        """In rows of atoms."""
        return Slices(max(1, self.cta_m() // ATOM_ROWS), self.sharing().a_parts(), unit=1)

    def b_scale_slices(self) -> Slices:
        return Slices(max(1, self.mma_n // ATOM_ROWS), self.b_scale_sharing().b_parts(), unit=1)

    def a_bytes(self) -> Int:
        return self.cta_m() * SWIZZLE_ROW_BYTES

    def b_bytes(self) -> Int:
        return self.cta_b_rows() * SWIZZLE_ROW_BYTES

    def atom_row_bytes(self) -> Int:
        """Scale factors of 128 rows in a stage; 0 without block scaling."""
        return self.scaling.atoms() * ATOM_BYTES

    def a_scale_bytes(self) -> Int:
        if self.promotes():
            return 4 * self.cta_m()
        return self.cta_m() // ATOM_ROWS * self.atom_row_bytes()

    def b_scale_bytes(self) -> Int:
        """Each CTA of a pair multiplies all columns of B, and needs the factors of all. f32: 128 bytes of a row, which is as
        much as copies are aligned to; one factor of them is used."""
        if self.promotes():
            return 128 * ceildiv(self.mma_n, F32_BLOCK)
        return self.mma_n // ATOM_ROWS * self.atom_row_bytes()

    def stage_bytes(self) -> Int:
        return self.a_bytes() + self.b_bytes() + self.a_scale_bytes() + self.b_scale_bytes()

    def stage_columns(self) -> Int:
        """Of the tensor maps of A and B, which are of bytes where elements have fewer than 16 bits."""
        return self.block_k if self.scaling.bits == 16 else SWIZZLE_ROW_BYTES

    def full_bytes(self) -> Int:
        """Bytes that arrive on one full barrier: the stage of every CTA that shares the MMA."""
        return self.cta_group * self.stage_bytes()

    def l2_promotion(self) -> Int:
        """Bytes that a TMA load makes L2 fetch at once, at least. 128 is one row of a box; 256 brings the next K step's
        row, too. On an H200 that gains 6 to 15 % where nothing else loads ahead, with one stage; with more stages it
        loses up to 6 %, as L2 moves 10 % more bytes."""
        return 256 if self.has_tmem() or self.stages == 1 else 128


def k_advance(step: Int, mn_major: Bool) -> UInt64:
    """From the first MMA of a stage to another, in an operand of 16-bit elements: 32 bytes of each line, or MN-major 16
    lines, in the 16 bytes that a descriptor's address counts."""
    return UInt64(step * (16 * SWIZZLE_ROW_BYTES if mn_major else MMA_K_BYTES) // 16)
