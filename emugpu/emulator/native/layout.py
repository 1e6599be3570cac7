"""What Python and the interpreter share: tables of 8-byte fields, and the numbers of states and answers.

The interpreter has these as constants, named after the table and the field.
"""

from __future__ import annotations

from enum import IntEnum, auto


class Counted(IntEnum):
    """Fields that are numbered from 0."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class Context(Counted):
    """What the interpreter is told of a launch, and of the CTA whose memory it accesses; addresses, and numbers."""

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
    OPERATIONS = auto()
    ENTRIES = auto()
    """Of each block its first operation, or -1."""
    LOCATIONS = auto()
    LOCATION_SLOTS = auto()
    SAVED_SLOTS = auto()
    COUNTS = auto()
    OUT = auto()
    OUT32 = auto()
    OUT64 = auto()
    OUT_PREDICATES = auto()
    SAVED_ROWS = auto()
    LOG = auto()
    LOG_ROOM = auto()
    PLACES = auto()
    SCRATCH = auto()
    STAMP = auto()
    """The last one that was given."""
    LOGGED = auto()
    WATCHES = auto()
    WATCHED_ROWS = auto()
    WATCHED_BLOCKS = auto()
    KEPT_ROWS = auto()
    ROWS = auto()
    JOINS_OF_BLOCKS = auto()
    FIXED_ROWS = auto()
    """Rows of special registers, which new fragments of a warp get from those they come from."""
    FIXED_COUNT = auto()
    FRAGMENTS = auto()
    FREE = auto()
    """Numbers of fragments that are not in use."""
    FREE_COUNT = auto()
    QUEUE = auto()
    QUEUE_ROOM = auto()
    HEAD = auto()
    TAIL = auto()
    CLOSED_AT = auto()
    """Where the queue ends for now, as others of whom the interpreter does not know come before what is appended."""
    TOUCHED = auto()
    TOUCHED_COUNT = auto()
    JOINS = auto()
    JOIN_COUNT = auto()
    JOIN_ROOM = auto()
    JOINS_GIVEN = auto()
    """How many are Python's, the first ones."""
    FREE_JOIN = auto()
    """The last one that was completed, or -1; the one before is its parent."""
    BORN = auto()
    """How many fragments were made."""
    CHANGES = auto()
    WEIGHT = auto()
    CTAS = auto()
    TURN_BLOCKS = auto()
    WINDOW_BLOCKS = auto()
    TRACE = auto()
    """Where it is written down what happens, or 0: nobody listens."""
    TRACED = auto()
    TRACE_ROOM = auto()
    TRACE_WORDS = auto()
    TRACE_WORDS_USED = auto()
    TRACE_WORDS_ROOM = auto()
    TRACE_CHUNKS = auto()
    TRACE_CHUNKS_USED = auto()
    TRACE_CHUNKS_ROOM = auto()
    SLICE = auto()
    """Blocks of a turn, of a window in which it is watched whether a loop only polls (0: none is to be run), and after
    how many without a wait a fragment gives way to everything else."""


class Mark(IntEnum):
    """Of a row: what is known of its lanes. Those of what is computed follow by `and` from those of the sources."""

    POISON = 0
    """Some lanes are undefined, all bits of them."""
    VARIED = 2
    UNIFORM = 3
    """All lanes agree."""


class FragmentField(Counted):
    """A fragment of a warp. Its number is also that of its rows."""

    FILE = auto()
    STAMP = auto()
    MASK = auto()
    ALIVE = auto()
    """Lanes of the warp that have not left."""
    CTA = auto()
    BLOCK = auto()
    START = auto()
    """The operation to go on at in the middle of a turn, or -1."""
    RAN = auto()
    """Blocks that this turn has run already."""
    LOCATION = auto()
    """Where it is known which rows are live."""
    JOIN = auto()
    """The number of the join at which its siblings wait. -1: it has none; less: one of Python's."""
    JOIN_BLOCK = auto()
    STREAK = auto()
    STATE = auto()
    BARRIER = auto()
    """That it has arrived at, or -1."""
    GENERATION = auto()
    NEXT = auto()
    """Who waits behind it."""
    IS_COMPLETE = auto()
    """Whether all its live rows have their values, not only those that native code may read."""
    HAS_OBJECT = auto()
    """Whether Python knows it."""
    ORIGIN = auto()
    """The fragment that Python knows from which it has come."""
    BORN = auto()
    IS_TOUCHED = auto()
    """Whether it is in the list of those that Python is to look at."""
    WARP = auto()
    """The number of its warp among those that are traced."""


class Event(IntEnum):
    """What an entry of the trace tells of; `emugpu.emulator.machine.events` says more of each."""

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


class Traced(IntEnum):
    """Of an access in the trace, in the low byte; the high one has for each item whether all lanes store one value."""

    SAME = 1
    """One address for all lanes."""
    VALUES = 2
    """Values of 64 bits."""
    WIDE = 4
    """Addresses of 64 bits."""
    SHARED = 8
    STORE = 16
    ROW = 32
    """All lanes, one behind the other: the address is the first one's."""
    GLOBAL = 64


class FilterCall(Counted):
    """What the access filter is given: a part of the trace, tables of warps and CTAs, and room for lists of entries,
    one behind the other, each with room for all. The first fields are the lengths of the lists: entries of CTAs that
    are not filtered; of those that are, accesses to global memory, exits of warps, ends of generations of the barrier,
    and arrivals there, each with the time and the number of the warp.
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
    """Of each instruction the bytes that a lane accesses."""
    WARPS = auto()
    CTAS = auto()


class FilteredWarp(Counted):
    """A warp that is traced, by its number. TIME: how often it has arrived or split, plus 1; where it has split, that
    of the lanes HOLDER. INTERVAL: a number that it has until its lanes meet again. APART: how many fragments it has,
    but one, and that since the entry SPLIT_AT, or -1: since an earlier part of the trace. Since then, LANES: those that
    were the first to access global memory; ALSO: whether others have; STORED: whether any of them has stored there.
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
    """A CTA that is filtered. STOPPED_AT: the entry at which it has ceased to be a single-barrier CTA, or its accesses
    to be in order for certain, or NOT_YET. SHADOW: of its chunks, of which there are so many; MARKS: of the words of 4
    bytes in them, who has read each last, and behind that who has written it, as an interval and a lane. INTERVALS: how
    many numbers of intervals were given.
    """

    STOPPED_AT = auto()
    SHADOW = auto()
    CHUNKS = auto()
    MARKS = auto()
    INTERVALS = auto()
    WARPS = auto()
    ARRIVED = auto()
    EXITED = auto()


class FilteredChunk(Counted):
    """A chunk of a CTA's shared memory, in fields of 4 bytes: the epoch, plus 1, and the warp of the last write and of
    the last reads since; the epochs, plus 1, of the last write of all of it and of the one before.
    """

    WRITE = auto()
    READ = auto()
    WHOLE = auto()
    WHOLE_BEFORE = auto()


class State(IntEnum):
    """Of a fragment."""

    READY = 0
    WAITS = 1
    ARRIVED = 2
    GONE = 3
    """It has split, or become one with others."""
    LEFT = 4
    """Its lanes have left the kernel."""


class JoinField(Counted):
    """Where lanes meet again."""

    BLOCK = auto()
    MASK = auto()
    ARRIVED = auto()
    """A mask."""
    FIRST = auto()
    LAST = auto()
    COUNT = auto()
    PARENT = auto()
    PARENT_BLOCK = auto()


class CtaState(Counted):
    """A CTA; the first nine fields are those with which the context begins. Its barriers follow."""

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
    """Whether nobody has arrived at a barrier that only Python knows, the cluster's among them."""
    BARRIERS = auto()


class Barrier(Counted):
    """A named barrier of a CTA."""

    ARRIVED = auto()
    NEEDED = auto()
    EVERYBODY = auto()
    GENERATION = auto()
    OTHERS = auto()
    """Whether somebody waits whom only Python knows."""
    FIRST = auto()
    LAST = auto()


class Answer(IntEnum):
    """Why native code has stopped. The first six are those of a run of blocks, the others of turns."""

    STOPPED = 0
    """Before a block that it does not run."""
    FAILED = 1
    """Something is out of the ordinary: the run is taken back."""
    DIVERGES = 2
    LEFT = 3
    """The block goes on in Python."""
    REFUSED = 4
    WAITS = 5
    EXITS = 6
    ARRIVES = 7
    """At a join of which Python keeps count."""
    HAD_TURN = 8
    CANNOT_SPLIT = 9
    """It diverges, and not all its rows are here, or there is no room."""
    OTHERS_FIRST = 10
    """The queue goes on with those who waited for a barrier and whom only Python knows."""
    NOTHING_LEFT = 11
    TURNS_OVER = 12
    SPLITS = 13
    """It diverges, and one part has to go on in Python, which splits it for less than it costs to hand over two."""


class Result(Counted):
    """Result fields of a run of blocks; lists of rows follow from `FIRST_ROW` on."""

    STATUS = auto()
    BLOCK = auto()
    FOLLOWING = auto()
    RAN = auto()
    CHANGES = auto()
    WEIGHT = auto()
    LOADS = auto()
    SCALARS = auto()
    ROWS32 = auto()
    ROWS64 = auto()
    PREDICATES = auto()
    POISONS = auto()
    LOCATION = auto()
    AT = auto()
    """The operation that it has stopped at."""
    CURRENT = auto()
    """Whose turn it is."""
    TURNS = auto()
    CHANGES_BEFORE = auto()
    """Before this turn."""


FIRST_ROW = 17
NAMED_BARRIERS = 16
TRACE_BYTES = 48
"""Of an entry of the trace."""
WHOLE_CHUNK = 1 << 30
"""Is added to a chunk all bytes of which one access covers."""
NOT_YET = -1
JOIN_FIELDS, BARRIER_FIELDS = len(JoinField), len(Barrier)
CTA_FIELDS = len(CtaState) - 1 + NAMED_BARRIERS * BARRIER_FIELDS


def constants() -> str:
    """All of it as constants of Mojo."""
    lines = [f"comptime {field.name} = {field.value}" for field in Context]
    lines += [f"comptime {mark.name} = {mark.value}" for mark in Mark]
    tables = {
        "FRAGMENT": FragmentField, "STATE": State, "JOINPOINT": JoinField, "CTA": CtaState, "BARRIER": Barrier,
        "ANSWER": Answer, "RESULT": Result, "EVENT": Event, "TRACED": Traced,
        "FILTER": FilterCall, "WARP": FilteredWarp, "FILTERED": FilteredCta, "CHUNK": FilteredChunk,
    }  # fmt: skip
    for prefix, table in tables.items():
        lines += [f"comptime {prefix}_{field.name} = {field.value}" for field in table]
    counted = ("FRAGMENT", "JOINPOINT", "BARRIER", "WARP", "FILTERED", "CHUNK")
    lines += [f"comptime {prefix}_FIELDS = {len(tables[prefix])}" for prefix in counted]
    numbers = ("FIRST_ROW", "NAMED_BARRIERS", "CTA_FIELDS", "TRACE_BYTES", "WHOLE_CHUNK", "NOT_YET")
    lines += [f"comptime {name} = {globals()[name]}" for name in numbers]
    return "\n".join(lines)
