"""Multicast in a cluster: which CTA sends which slice to which CTAs, who must be told that a stage has been read, and
how many read it.

A cluster has `cluster_m x cluster_n` CTAs, rank = x + y * cluster_m. Bit r of a mask stands for the CTA of rank r.
 - CTAs with equal x need the same rows of A: each loads one slice and multicasts it to all of them.
 - CTAs with equal y need the same rows of B. The two CTAs of a pair (`cta_group` 2) hold different halves of these, so
   only CTAs of equal parity share them."""
from std.math import ceildiv, gcd


@inline(.always)
def evenly_spaced_bits(step: Int, count: Int) -> UInt32:
    """Returns a mask of `count` bits, `step` apart, from bit 0 on: a geometric series in closed form."""
    return UInt32(((1 << (step * count)) - 1) // ((1 << step) - 1))


@fieldwise_init
struct Multicast(TrivialRegisterPassable):
    """How the CTAs of a cluster share operands. If not `enabled`, every CTA loads all of its rows itself."""

    var cluster_m: Int
    var cluster_n: Int
    var cta_group: Int
    var enabled: Bool

    @inline(.always)
    def a_parts(self) -> Int:
        """Returns how many CTAs share a tile of A: each loads one slice and sends it to all of them."""
        return self.cluster_n if self.enabled else 1

    @inline(.always)
    def b_parts(self) -> Int:
        """Returns how many CTAs share a tile of B."""
        return self.cluster_m // self.cta_group if self.enabled else 1

    @inline(.always)
    def a_part(self, rank: UInt32) -> UInt32:
        """Returns which slice of A this CTA loads."""
        return rank // UInt32(self.cluster_m) if self.enabled else 0

    @inline(.always)
    def b_part(self, rank: UInt32) -> UInt32:
        """Returns which slice of B this CTA loads."""
        return rank % UInt32(self.cluster_m) // UInt32(self.cta_group) if self.enabled else 0

    @inline(.always)
    def a_mask(self, rank: UInt32) -> UInt32:
        """Returns the mask of the CTAs that receive the slices of A that this CTA loads, itself included."""
        if not self.enabled:
            return UInt32(1) << rank
        return evenly_spaced_bits(self.cluster_m, self.cluster_n) << (rank % UInt32(self.cluster_m))

    @inline(.always)
    def b_mask(self, rank: UInt32) -> UInt32:
        """Returns the mask of the CTAs that receive the slices of B that this CTA loads, itself included."""
        if not self.enabled:
            return UInt32(1) << rank
        var x = rank % UInt32(self.cluster_m)
        return evenly_spaced_bits(self.cta_group, self.cluster_m // self.cta_group) << (
            rank - x + x % UInt32(self.cta_group)
        )

    @inline(.always)
    def pair_mask(self, rank: UInt32) -> UInt32:
        """Returns the mask of the CTAs that share an MMA with this one, itself included."""
        return evenly_spaced_bits(1, self.cta_group) << (rank - rank % UInt32(self.cta_group))

    @inline(.always)
    def writer_mask(self, rank: UInt32) -> UInt32:
        """Returns the mask of the CTAs that write into the stages of this CTA's MMA. When a stage has been read, a
        commit (sm_100a) or arrivals of the consumers (sm_90a) tell all of them.

        Sharing is symmetric: a CTA receives from the CTAs that receive its own slices. For a pair this is the whole
        cluster row (both parities of B) and one or two adjacent columns (A)."""
        if not self.enabled:
            return self.pair_mask(rank)
        var x = rank % UInt32(self.cluster_m)
        var columns = evenly_spaced_bits(self.cluster_m, self.cluster_n) * evenly_spaced_bits(1, self.cta_group)
        return columns << (x - x % UInt32(self.cta_group)) | evenly_spaced_bits(1, self.cluster_m) << (rank - x)

    @inline(.always)
    def readers(self) -> Int:
        """Returns how many MMAs (of CTA pairs, or of single CTAs) read what this CTA loads into a stage."""
        return self.a_parts() + self.b_parts() - 1


struct Slices(TrivialRegisterPassable):
    """How `parts` CTAs divide the `rows` rows of an operand tile among them.

    A tile in shared memory has `rows` lines of 128 bytes, and the CTAs divide these lines. K-major, a line is one row.
    MN-major, a line is 64 rows at one k: first those of all 64 k of a stage, then those of the next 64 rows.

    Each box is one TMA copy. If the lines divide evenly, each CTA loads one box, or several of 64 lines, so that it
    loads few rows where a tile lies partly outside of the tensor. Otherwise the CTAs take boxes of one unit in turn,
    and some load one box fewer. The default unit is 8 lines, one swizzle pattern."""

    comptime most_rows = 64

    var rows: Int
    var parts: Int
    var unit: Int
    var mn_major: Bool

    def __init__(out self, rows: Int, parts: Int, *, unit: Int = 8, mn_major: Bool = False):
        self.rows = rows
        self.parts = parts
        self.unit = unit
        self.mn_major = mn_major

    @inline(.always)
    def box_lines(self) -> Int:
        """Returns the lines of a box. MN-major, they divide 64, so that a box does not reach into the next 64 rows."""
        if self.rows % (self.unit * self.parts) != 0:
            return self.unit
        var lines = self.rows // self.parts
        return gcd(lines, Self.most_rows) if self.mn_major or lines % Self.most_rows == 0 else lines

    @inline(.always)
    def box_rows(self) -> Int:
        """Returns the rows of the tensor, along M or N, that a box covers."""
        return Self.most_rows if self.mn_major else self.box_lines()

    @inline(.always)
    def boxes(self) -> Int:
        """Returns the boxes of the whole tile. CTA number `part` loads boxes part, part + parts, ..."""
        return self.rows // self.box_lines()

    @inline(.always)
    def boxes_per_part(self) -> Int:
        """Returns the most boxes that one CTA loads."""
        return ceildiv(self.boxes(), self.parts)
