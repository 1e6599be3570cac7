"""Split-K: several CTAs each compute a tile over a part of K, and the CTA that finishes last adds the parts.

    part 0   multiply its K steps -> partial sums to the workspace -> arrive
    part 1   multiply its K steps -> partial sums to the workspace -> arrive: the last, so add all parts, write C

The scheduler treats each part of a tile as a tile. A team stores its accumulators in the order of its registers, so
that a thread reads what the same thread of other CTAs has stored. Then one thread arrives at the counter of the team's
part of C. No CTA waits for another: those that are not last go on with their next tile, so it does not matter which
CTAs run at the same time. The last one adds the parts in the order of K and reads its own from memory too, so C has the
same bits whichever CTA is last. Its arrival wraps the counter to 0 for the next launch.

The order of accesses (PTX ISA 8, memory consistency model): a team's stores come before its barrier, after which one
thread arrives with release. The last arrival acquires what all others released, and a second barrier extends this to
its team. All loads and stores are generic, so no proxy fence is needed."""
from .cta import Cta, Problem
from .global_memory import increment_counter_acq_rel, load_global, store_global
from .layer_config import TEAM_THREADS, LayerConfig, partials_offset
from .layer_order import LayerTiles
from .ptx import load_shared, store_shared
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp


struct Partial[config: LayerConfig](TrivialRegisterPassable):
    """The partial sums of a tile that a team computes. All threads of the team use it."""

    comptime bytes = 4 * TEAM_THREADS * Self.config.partial_words()

    var counter: UInt64
    var first: UInt64  # address of this thread's sums of the first part
    var part: UInt32
    var arrived: UInt32  # address of the team's word in shared memory

    @inline(.always)
    def __init__(
        out self,
        cta: Cta[Self.config.gemm],
        problem: Problem,
        tiles: LayerTiles[Self.config],
        team: UInt32,
        thread: UInt32,
    ):
        comptime teams = UInt32(Self.config.gemm.cluster_size() * Self.config.teams())
        var number = tiles.number // UInt32(Self.config.split_k) * teams
        number += cta.rank * UInt32(Self.config.teams()) + team
        var all = problem.clusters_m * problem.clusters_n * teams
        var behind = problem.workspace + UInt64(partials_offset(Int(all)))
        self.counter = problem.workspace + 4 * UInt64(1 + number)
        self.first = behind + UInt64(number) * UInt64(Self.config.split_k * Self.bytes) + UInt64(16 * thread)
        self.part = tiles.order.k_part(tiles.number)
        self.arrived = cta.shared + UInt32(cta.layout.end) + 4 * team

    @inline(.always)
    def store[first: Int](self, sums: SIMD[DType.float32, 4]):
        """Stores four sums of this part, from the thread's accumulator register `first` on."""
        store_global[4 * TEAM_THREADS * first](self.first + UInt64(self.part) * UInt64(Self.bytes), sums)

    @inline(.always)
    def load[first: Int, count: SIMDLength](self, part: UInt32) -> SIMD[DType.float32, count]:
        """Loads `count` sums of any part, from register `first` on. Many loads overlap to hide latency."""
        var sums = SIMD[DType.float32, count]()
        comptime for i in range(0, Int(count), 4):
            var four = load_global[4 * TEAM_THREADS * (first + i)](self.first + UInt64(part) * UInt64(Self.bytes))
            sums = sums.insert[offset=i](four)
        return sums

    @inline(.always)
    def arrive(self, leads: Bool):
        """Arrives for the team if this warp `leads`. A barrier of the team must come before and after."""
        if leads:
            if elect_one_sync():
                store_shared(self.arrived, increment_counter_acq_rel(self.counter, UInt32(Self.config.split_k - 1)))
            syncwarp()

    @inline(.always)
    def is_last(self) -> Bool:
        """All parts have arrived. The team calls this after the barrier that follows `arrive`, before the next."""
        return load_shared(self.arrived) == UInt32(Self.config.split_k - 1)
