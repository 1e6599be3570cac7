"""Split-K: a tile is added up in parts of K by several CTAs, and whoever finishes last adds the parts.

    part 0   multiply its K steps -> partial sums to the workspace -> arrive
    part 1   multiply its K steps -> partial sums to the workspace -> arrive: the last, so add all parts, write C

To the scheduler each part of a tile is a tile. The warps that write out together, a team, store their accumulators as
registers hold them, so that a thread reads what the same thread of other CTAs has stored. Then one thread arrives at the
counter of the team's part of C. Nobody waits: all parts but the last go on with their next tile, and it does not matter
which CTAs run at the same time. The last adds the parts in the order of K, its own from memory like the others, so C is the
same bit for bit whoever that is. Its arrival wraps the counter to 0, for the next launch.

What orders the accesses (PTX ISA, memory consistency model): the stores of a team come before its barrier, behind which one
thread arrives with release; the last arrival acquires what all of them released, and a second barrier passes it on to its
team. Generic loads and stores only: no fence of the async proxy is needed.
"""
from .config import TEAM, GemmConfig, partials_offset
from .cta import Cta, Problem
from .ptx import arrive_at_counter, load_global, load_shared, store_global, store_shared
from .scheduler import TileScheduler
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


struct Partial[config: GemmConfig](TrivialRegisterPassable):
    """A team's partial sums of a tile. All threads of the team."""

    comptime bytes = 4 * TEAM * Self.config.partial_words()

    var counter: UInt64
    var first: UInt64  # where this thread's sums of the first part lie
    var part: UInt32
    var arrived: UInt32  # a word of the team's in shared memory

    @inline(.always)
    def __init__(
        out self,
        cta: Cta[Self.config],
        problem: Problem,
        tiles: TileScheduler[Self.config],
        team: UInt32,
        thread: UInt32,
    ):
        comptime teams = UInt32(Self.config.cluster_size() * Self.config.teams())
        var number = tiles.number // UInt32(Self.config.split_k) * teams
        number += cta.rank * UInt32(Self.config.teams()) + team
        var all = problem.clusters_m * problem.clusters_n * teams
        var behind = problem.workspace + UInt64(partials_offset(Int(all)))
        self.counter = problem.workspace + 4 * UInt64(1 + number)
        self.first = behind + UInt64(number) * UInt64(Self.config.split_k * Self.bytes) + UInt64(16 * thread)
        self.part = tiles.part()
        self.arrived = cta.shared + UInt32(cta.layout.arrived) + 4 * team

    @inline(.always)
    def store[first: Int](self, sums: SIMD[DType.float32, 4]):
        """Of this part, from the thread's accumulator number `first` on."""
        store_global[4 * TEAM * first](self.first + UInt64(self.part) * UInt64(Self.bytes), sums)

    @inline(.always)
    def load[first: Int, count: SIMDLength](self, part: UInt32) -> SIMD[DType.float32, count]:
        """Of any part, so many. Many loads are under way together: their latency counts, not their bytes."""
        var sums = SIMD[DType.float32, count]()
        comptime for i in range(0, Int(count), 4):
            var four = load_global[4 * TEAM * (first + i)](self.first + UInt64(part) * UInt64(Self.bytes))
            sums = sums.insert[offset=i](four)
        return sums

    @inline(.always)
    def arrive(self, leads: Bool):
        """After a barrier of the team, before another. leads: whether this is the warp that arrives for it."""
        if leads:
            if elect_one_sync():
                store_shared(self.arrived, arrive_at_counter(self.counter, UInt32(Self.config.split_k - 1)))
            syncwarp()

    @inline(.always)
    def is_last(self) -> Bool:
        """After both barriers: whether all parts have arrived. Before the next barrier of the team."""
        return load_shared(self.arrived) == UInt32(Self.config.split_k - 1)
