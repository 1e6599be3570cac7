"""The data that Python and the interpreter share: tables of 8-byte fields, and the numbers of states and results.

The interpreter has them as constants, named after the table and the field.
"""

from __future__ import annotations

from enum import IntEnum, auto

from emugpu.emulator.machine.schedule import CANDIDATES
from emugpu.emulator.memory.address_space import RESERVED_SHARED, WINDOW_SHIFT, WINDOWS


class Counted(IntEnum):
    """Fields that are numbered from 0."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class Context(Counted):
    """The data of a launch, and of the CTA whose memory is current, for the interpreter: addresses and numbers."""

    SHARED = auto()
    SHARED_SHADOW = auto()
    SHARED_SIZE = auto()
    WINDOW = auto()
    BARRIERS_FIRST = auto()
    BARRIERS_END = auto()
    TMEM = auto()
    TMEM_SHADOW = auto()
    TMEM_UNITS = auto()
    PARAMETERS = auto()
    PARAMETER_BYTES = auto()
    ALLOCATIONS = auto()
    ALLOCATION_COUNT = auto()
    LAST_ALLOCATION = auto()
    CONSTANTS = auto()
    CONSTANT_COUNT = auto()
    """The allocations of constant memory."""
    OPERATIONS = auto()
    ENTRIES = auto()
    """The first operation of each block, or -1."""
    LOCATIONS = auto()
    LOCATION_SLOTS = auto()
    SAVED_SLOTS = auto()
    COUNTS = auto()
    OUT = auto()
    SAVED_ROWS = auto()
    LOG = auto()
    LOG_ROOM = auto()
    PLACES = auto()
    SCRATCH = auto()
    STAMP = auto()
    """The last stamp given."""
    LOGGED = auto()
    WATCHES = auto()
    WATCHED_ROWS = auto()
    WATCHED_BLOCKS = auto()
    KEPT_ROWS = auto()
    ROWS = auto()
    JOINS_OF_BLOCKS = auto()
    FIXED_ROWS = auto()
    """Rows of special registers, which new fragments of a warp copy from their parents."""
    FIXED_COUNT = auto()
    FRAGMENTS = auto()
    FREE = auto()
    """Numbers of fragments that are not in use."""
    FREE_COUNT = auto()
    QUEUE = auto()
    QUEUE_ROOM = auto()
    HEAD = auto()
    TAIL = auto()
    FIRST_TURN = auto()
    """The fragment that has its turn before those of the queue, or -1."""
    CLOSED_AT = auto()
    """The present end of the queue: fragments that only Python knows come before the ones that are appended."""
    TOUCHED = auto()
    TOUCHED_COUNT = auto()
    JOINS = auto()
    JOIN_COUNT = auto()
    JOIN_ROOM = auto()
    FREE_JOIN = auto()
    """The last completed join, or -1. The previous one is its parent."""
    BORN = auto()
    """The number of fragments made."""
    CHANGES = auto()
    CTAS = auto()
    TURN_BLOCKS = auto()
    FIRST_LOOK = auto()
    WINDOW_BLOCKS = auto()
    TRACE = auto()
    """The address of the trace, or 0 if no sink is attached."""
    TRACES_LOCAL = auto()
    """Whether the sink takes accesses to local memory."""
    TRACED = auto()
    TRACE_ROOM = auto()
    TRACE_WORDS = auto()
    TRACE_WORDS_USED = auto()
    TRACE_WORDS_ROOM = auto()
    TRACE_CHUNKS = auto()
    TRACE_CHUNKS_USED = auto()
    TRACE_CHUNKS_ROOM = auto()
    EARLY_READS = auto()
    """How often registers of a load from tensor memory were read before its wait, plus one, at each place."""
    UNSETTLED = auto()
    """A mask of the units of tensor memory that have a deferred write, or are not allocated, and that an access needs.
    """
    CALL = auto()
    """The function that executes an instruction in Python, on rows."""
    SLICE = auto()
    """Blocks of a turn; blocks without a wait after which a loop may be one that only polls; blocks of the window that
    detects it (0: no window); and blocks without a wait after which a fragment is deferred behind all others.
    """
    IS_RANDOM = auto()
    """Whether fragments run at random. If so, the fields that follow are those of `RandomSchedule`."""
    SEED = auto()
    DRAWN = auto()
    STEPS_TO_CHANGE = auto()
    EPOCH = auto()
    OPERATIONS_SHARE = auto()
    SURPRISE = auto()
    START_SHARE = auto()
    HAS_OPERATIONS = auto()
    CAN_START = auto()
    BUDGETS = auto()
    """This table and the next two have their length, followed by values of which one is drawn."""
    CHANGES_AFTER = auto()
    OPERATIONS_SHARES = auto()
    STRANGERS = auto()
    """The roots of the priorities of fragments that only Python knows. The first of them is -1 in the queue, and so on.
    """
    STARTS = auto()
    """How many CTAs may start natively, each when the one before it has ended and nothing else runs."""
    STARTED = auto()
    """How many have started so far."""
    LAST_START = auto()
    """The turns before the last of these starts, those of earlier calls among them."""
    TURNS_BEFORE = auto()
    """The turns of earlier calls."""
    FIRST_COUNT = auto()
    """The warps of a CTA. Their fragments come first in the queue, and the CTA at its start is the second in `CTAS`."""
    CTA_X = auto()
    """%ctaid of the running CTA, then the sizes of the grid along x and y, then the rows of %ctaid, each with its kind,
    or -1.
    """
    CTA_Y = auto()
    CTA_Z = auto()
    GRID_X = auto()
    GRID_Y = auto()
    ROW_X = auto()
    ROW_Y = auto()
    ROW_Z = auto()


class Mark(IntEnum):
    """What is known of the lanes of a row. The marks of a result are the `and` of the marks of its sources."""

    POISON = 0
    """Some lanes are undefined, with all their bits."""
    VARIED = 2
    UNIFORM = 3
    """All lanes are equal."""


class FragmentField(Counted):
    """A fragment of a warp. Its number is also the number of its rows."""

    FILE = auto()
    STAMP = auto()
    MASK = auto()
    ALIVE = auto()
    """Lanes of the warp that have not exited."""
    CTA = auto()
    BLOCK = auto()
    START = auto()
    """The operation at which to continue in the middle of a turn, or -1."""
    RAN = auto()
    """The blocks that this turn has run already."""
    LOCATION = auto()
    """The location where the live rows are known."""
    JOIN = auto()
    """The number of the join at which its siblings wait, -1 for none, or less for one that only Python knows."""
    JOIN_BLOCK = auto()
    STREAK = auto()
    STATE = auto()
    BARRIER = auto()
    """The barrier at which it has arrived, or -1."""
    GENERATION = auto()
    NEXT = auto()
    """The fragment that waits behind it."""
    IS_COMPLETE = auto()
    """Whether all its live rows have their values, not only those that native code may read."""
    HAS_OBJECT = auto()
    """Whether Python has an object for it."""
    ORIGIN = auto()
    """The fragment known to Python from which it was split."""
    BORN = auto()
    IS_TOUCHED = auto()
    """Whether it is in the list of fragments that Python must update."""
    WARP = auto()
    """The number of its warp among the traced warps."""
    PENDING = auto()
    """How many stores to tensor memory no wait has covered, or `IN_PYTHON` if only Python knows what is pending."""
    STORED_COLUMNS = auto()
    """A mask of the groups of 8 columns that these stores write."""
    LOCAL = auto()
    """Where the local memory of its warp is described (`LocalMemory.address`)."""
    ROOT = auto()
    """The root of its warp's priorities under a random schedule."""
    STORES = auto()
    """`MOST_STORES` fields, one for each of them: its instruction, and its address in the lower 32 bits."""


class TraceEvent(IntEnum):
    """The kinds of entries of the trace; `emugpu.emulator.machine.events` describes each."""

    ACCESS = 0
    RESUMED = 1
    SUSPENDED = 2
    ARRIVED = 3
    COMPLETED = 4
    LEFT = 5
    DIVERGED = 6
    REJOINED = 7
    SYNCED = 8
    EXITED = 9
    OTHER = 10
    """An event that Python made and keeps."""
    STRONG = 11
    """A strong access or an atomic, with the flags of an access. An atomic stores a value for each lane."""
    FENCED = 12


class Traced(IntEnum):
    """Flags of an access in the trace, in the low byte. The high byte says for each item whether all lanes store one
    value.
    """

    SAME = 1
    """All lanes have one address."""
    VALUES = 2
    """The values have 64 bits."""
    WIDE = 4
    """The addresses have 64 bits."""
    SHARED = 8
    STORE = 16
    ROW = 32
    """The lanes access consecutive items, and the address is that of the first lane."""
    GLOBAL = 64
    LOCAL = 128


class FilterCall(Counted):
    """The arguments of the access filter: a part of the trace, tables of warps and CTAs, and consecutive lists of
    entries, each with room for all.

    The first fields are the lengths of the lists: entries of CTAs that are not filtered; and of filtered CTAs accesses
    to global memory, exits of warps, ends of generations of the barrier, and arrivals there, each with the time and the
    number of the warp.
    """

    OTHERS = auto()
    ACCESSES = auto()
    EXITS = auto()
    COMPLETED = auto()
    ARRIVALS = auto()
    LISTS = auto()
    ENTRIES = auto()
    COUNT = auto()
    CHUNKS = auto()
    CHUNK_COUNT = auto()
    WORDS = auto()
    SIZES = auto()
    """The bytes that a lane accesses, for each instruction."""
    WARPS = auto()
    CTAS = auto()
    PASSES_STRONG = auto()
    """Whether strong accesses can pass the filter, because none of them orders others."""


class FilteredWarp(Counted):
    """A traced warp, by its number.

    TIME: how often it has arrived, diverged or executed a fence, plus 1; if it is diverged, this is the time of the
    lanes HOLDER. INTERVAL: its number until its lanes meet again. APART: the number of its fragments minus one, since
    the entry SPLIT_AT, or -1 for an earlier part of the trace. Since then, LANES: the first lanes that accessed global
    memory; ALSO: whether others did; STORED: whether any of them stored there.
    """

    CTA = auto()
    INDEX = auto()
    ARRIVED = auto()
    LEFT = auto()
    TIME = auto()
    HOLDER = auto()
    INTERVAL = auto()
    APART = auto()
    SPLIT_AT = auto()
    LANES = auto()
    ALSO = auto()
    STORED = auto()


class FilteredCta(Counted):
    """A filtered CTA.

    STOPPED_AT: the entry since which it is no single-barrier CTA, or its accesses are not certainly in order, or
    NOT_YET. SHADOW: the table of its chunks, and their number. MARKS: for the 4-byte words in them, the last reader of
    each, followed by the last writer of each, as an interval and a lane. INTERVALS: how many numbers of intervals were
    given. RESUMED: strong accesses and fences end it.
    """

    STOPPED_AT = auto()
    SHADOW = auto()
    CHUNKS = auto()
    MARKS = auto()
    INTERVALS = auto()
    WARPS = auto()
    ARRIVED = auto()
    EXITED = auto()
    RESUMED = auto()


class FilteredChunk(Counted):
    """A chunk of a CTA's shared memory, in fields of 4 bytes. They hold the epoch, plus 1, and the warp of the last
    write, of the last reads since, and of the last strong accesses; then the epochs, plus 1, of the last write of the
    whole chunk and of the one before.
    """

    WRITE = auto()
    READ = auto()
    STRONG = auto()
    WHOLE = auto()
    WHOLE_BEFORE = auto()


class FragmentState(IntEnum):
    """The state of a fragment."""

    READY = 0
    WAITS = 1
    ARRIVED = 2
    GONE = 3
    """It has split, or merged with others."""
    LEFT = 4
    """Its lanes have exited."""


class JoinField(Counted):
    """A join, where lanes reconverge."""

    BLOCK = auto()
    MASK = auto()
    ARRIVED = auto()
    """The mask of the lanes that have arrived."""
    FIRST = auto()
    LAST = auto()
    COUNT = auto()
    PARENT = auto()
    PARENT_BLOCK = auto()
    IS_GIVEN = auto()
    """Whether Python passed it."""


class CtaState(Counted):
    """A CTA. The first nine fields are those at the start of the context. Its barriers follow."""

    SHARED = auto()
    SHARED_SHADOW = auto()
    SHARED_SIZE = auto()
    WINDOW = auto()
    BARRIERS_FIRST = auto()
    BARRIERS_END = auto()
    TMEM = auto()
    TMEM_SHADOW = auto()
    TMEM_UNITS = auto()
    ALIVE = auto()
    THREADS = auto()
    IS_QUIET = auto()
    """Whether no thread has arrived at a barrier that only Python knows, including the cluster's."""
    BARRIERS = auto()


class NamedBarrier(Counted):
    """A named barrier of a CTA."""

    ARRIVED = auto()
    NEEDED = auto()
    EVERYBODY = auto()
    GENERATION = auto()
    OTHERS = auto()
    """How many fragments wait that only Python knows."""
    FIRST_OTHER = auto()
    """The number of the first of them among `Context.STRANGERS`. The others follow."""
    FIRST = auto()
    LAST = auto()


class StopReason(IntEnum):
    """Why native code stopped. The first six belong to a run of blocks, the others to turns."""

    STOPPED = 0
    """It stopped before a block that it does not run."""
    FAILED = 1
    """Something special happened, and the run is rolled back."""
    DIVERGES = 2
    LEFT = 3
    """The block continues in Python."""
    REFUSED = 4
    WAITS = 5
    EXITS = 6
    ARRIVES = 7
    """The fragment arrives at a join that Python counts."""
    HAD_TURN = 8
    CANNOT_SPLIT = 9
    """The fragment diverges, and its rows are incomplete or there is no room."""
    OTHERS_FIRST = 10
    """The queue continues with fragments that waited for a barrier and that only Python knows."""
    NOTHING_LEFT = 11
    TURNS_OVER = 12
    SPLITS = 13
    """The fragment diverges, and one part continues in Python. Splitting it there costs less than passing two
    fragments.
    """
    STRANGER = 14
    """The next fragment is one that only Python knows."""
    STANDS_BY = 15
    """The fragment has run for long without a wait, and does more than poll."""


class Result(Counted):
    """Result fields of a run of blocks."""

    STATUS = auto()
    BLOCK = auto()
    FOLLOWING = auto()
    RAN = auto()
    CHANGES = auto()
    LOADS = auto()
    LOCATION = auto()
    AT = auto()
    """The operation at which it stopped."""
    CURRENT = auto()
    """The fragment whose turn it is."""
    TURNS = auto()
    CHANGES_BEFORE = auto()
    """The changes before this turn."""


NAMED_BARRIERS = 16
TRACE_BYTES = 48
"""Bytes of an entry of the trace."""
WHOLE_CHUNK = 1 << 30
"""Added to a chunk if one access covers all its bytes."""
NOT_YET = IN_PYTHON = -1
MOST_STORES = 16
"""Most stores to tensor memory of a fragment that no wait has covered and that native code knows."""
JOIN_FIELDS, BARRIER_FIELDS = len(JoinField), len(NamedBarrier)
FRAGMENT_FIELDS = len(FragmentField) - 1 + MOST_STORES
CTA_FIELDS = len(CtaState) - 1 + NAMED_BARRIERS * BARRIER_FIELDS


def constants() -> str:
    """Returns everything as constants of Mojo."""
    lines = [f"comptime {field.name} = {field.value}" for field in Context]
    lines += [f"comptime {mark.name} = {mark.value}" for mark in Mark]
    tables = {
        "FRAGMENT": FragmentField, "STATE": FragmentState, "JOINPOINT": JoinField, "CTA": CtaState,
        "BARRIER": NamedBarrier, "STOP": StopReason, "RESULT": Result, "EVENT": TraceEvent, "TRACED": Traced,
        "FILTER": FilterCall, "WARP": FilteredWarp, "FILTERED": FilteredCta, "CHUNK": FilteredChunk,
    }  # fmt: skip
    for prefix, table in tables.items():
        lines += [f"comptime {prefix}_{field.name} = {field.value}" for field in table]
    counted = ("JOINPOINT", "BARRIER", "WARP", "FILTERED", "CHUNK")
    lines += [f"comptime {prefix}_FIELDS = {len(tables[prefix])}" for prefix in counted]
    lines += [f"comptime WINDOW_SHIFT = {WINDOW_SHIFT}", f"comptime RESERVED = UInt64({RESERVED_SHARED})"]
    lines += [f"comptime WINDOW_OF_{space.upper()} = {base >> WINDOW_SHIFT}" for space, base in WINDOWS.items()]
    numbers = ("NAMED_BARRIERS", "CTA_FIELDS", "FRAGMENT_FIELDS", "TRACE_BYTES", "WHOLE_CHUNK", "NOT_YET",
               "MOST_STORES")  # fmt: skip
    lines += [f"comptime {name} = {globals()[name]}" for name in numbers]
    return "\n".join([*lines, f"comptime CANDIDATES = {CANDIDATES}"])
