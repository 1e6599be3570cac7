"""Who sends which slice to whom in a cluster: TMA masks, masks of who must hear, reader counts. All of it is derived here.

A cluster is `cluster_m x cluster_n` CTAs, rank = x + y * cluster_m; bit r of a mask means the CTA of rank r.
 - CTAs with equal x need the same rows of A: each loads one slice and multicasts it to all of them.
 - CTAs with equal y need the same columns of C. With one CTA per MMA (`cta_group` 1) they need the same rows of B; in
   pairs, the two CTAs of a pair hold different halves of B, so only CTAs of equal parity share.
"""
from std.math import ceildiv, gcd


@inline(.always)
def _every(step: Int, count: Int) -> UInt32:
    """`count` bits, `step` apart, from bit 0: the geometric series in closed form."""
    return UInt32(((1 << (step * count)) - 1) // ((1 << step) - 1))


@fieldwise_init
struct Multicast(TrivialRegisterPassable):
    """The sharing of operands in a cluster. With `enabled` False every CTA loads all of its own rows."""

    var cluster_m: Int
    var cluster_n: Int
    var cta_group: Int
    var enabled: Bool

    @inline(.always)
    def a_parts(self) -> Int:
        """CTAs among which a tile of A is split, and to which each slice is sent."""
        return self.cluster_n if self.enabled else 1

    @inline(.always)
    def b_parts(self) -> Int:
        return self.cluster_m // self.cta_group if self.enabled else 1

    @inline(.always)
    def a_part(self, rank: UInt32) -> UInt32:
        """Which slice of A this CTA loads."""
        return rank // UInt32(self.cluster_m) if self.enabled else 0

    @inline(.always)
    def b_part(self, rank: UInt32) -> UInt32:
        return rank % UInt32(self.cluster_m) // UInt32(self.cta_group) if self.enabled else 0

    @inline(.always)
    def a_mask(self, rank: UInt32) -> UInt32:
        """Receivers of the slices of A that this CTA loads, itself included."""
        if not self.enabled:
            return UInt32(1) << rank
        return _every(self.cluster_m, self.cluster_n) << (rank % UInt32(self.cluster_m))

    @inline(.always)
    def b_mask(self, rank: UInt32) -> UInt32:
        if not self.enabled:
            return UInt32(1) << rank
        var x = rank % UInt32(self.cluster_m)
        return _every(self.cta_group, self.cluster_m // self.cta_group) << (rank - x + x % UInt32(self.cta_group))

    @inline(.always)
    def pair_mask(self, rank: UInt32) -> UInt32:
        """The CTAs that share an MMA with this one, itself included."""
        return _every(1, self.cta_group) << (rank - rank % UInt32(self.cta_group))

    @inline(.always)
    def commit_mask(self, rank: UInt32) -> UInt32:
        """CTAs that write into the shared memory of this CTA's MMA: all must hear when a stage has been read, by a
        commit on sm_100a, by arrivals of the consumers on sm_90a.

        Sharing is symmetric, so the senders of a CTA are the receivers of its own slices. The union over a pair is
        the whole cluster row (both parities of B) and one or two adjacent columns (A).
        """
        if not self.enabled:
            return self.pair_mask(rank)
        var x = rank % UInt32(self.cluster_m)
        var columns = _every(self.cluster_m, self.cluster_n) * _every(1, self.cta_group)
        return columns << (x - x % UInt32(self.cta_group)) | _every(1, self.cluster_m) << (rank - x)

    @inline(.always)
    def readers(self) -> Int:
        """MMAs, of CTA pairs or of single CTAs, that read what this CTA loads into a stage."""
        return self.a_parts() + self.b_parts() - 1


struct Slices(TrivialRegisterPassable):
    """How `rows` rows of an operand tile are dealt out to `parts` CTAs.

    In shared memory a tile is as many lines of 128 bytes, and lines are what is dealt out. K-major, a line is a row. MN-major,
    a line is 64 rows at one k: those of all 64 k of a stage, then those of the next 64 rows.

    Each box is one TMA copy. Lines that divide evenly make one box a CTA, or several of 64 lines, so that few rows are loaded
    where a tile lies partly outside of the tensor; otherwise boxes of one unit, by default the 8 lines that keep the
    128-byte swizzle pattern, go to the CTAs in turn and some CTAs load one box fewer.
    """

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
        """MN-major they divide 64: a box does not go on to the next 64 rows."""
        if self.rows % (self.unit * self.parts) != 0:
            return self.unit
        var lines = self.rows // self.parts
        return gcd(lines, Self.most_rows) if self.mn_major or lines % Self.most_rows == 0 else lines

    @inline(.always)
    def box_rows(self) -> Int:
        """Of the tensor, along M or N."""
        return Self.most_rows if self.mn_major else self.box_lines()

    @inline(.always)
    def boxes(self) -> Int:
        """Boxes of the whole tile; CTA number `part` loads boxes part, part + parts, ..."""
        return self.rows // self.box_lines()

    @inline(.always)
    def boxes_per_part(self) -> Int:
        """The most boxes that one CTA loads."""
        return ceildiv(self.boxes(), self.parts)
