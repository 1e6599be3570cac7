"""The native engine of a launch, which also gives fragments their turns.

If fragments have their turns in the order in which they became ready, the interpreter schedules them itself
(`NativeEngine.take_turns`): it goes from one fragment to the next as they wait at barriers, diverge and rejoin, until
one of them needs Python. New fragments that still exist then become Python objects.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from emugpu.emulator.machine import lifetime
from emugpu.emulator.machine.barriers import Waiting
from emugpu.emulator.machine.block_engine import Stop
from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.schedule import RandomSchedule
from emugpu.emulator.machine.state import Cta, Fragment, Grid, JoinPoint
from emugpu.emulator.native.fragment_runner import NO_BLOCK, FragmentRunner
from emugpu.emulator.native.layout import (
    BARRIER_FIELDS,
    CTA_FIELDS,
    JOIN_FIELDS,
    NAMED_BARRIERS,
    Context,
    CtaState,
    FragmentState,
    JoinField,
    Result,
    StopReason,
)
from emugpu.emulator.native.layout import FRAGMENT_FIELDS as FIELDS
from emugpu.emulator.native.layout import FragmentField as Field
from emugpu.emulator.native.library import Library
from emugpu.emulator.native.plan import NativePlan
from emugpu.emulator.native.workspace import CTA_ROOM, JOIN_ROOM, MOST_FRAGMENTS, QUEUE_ROOM, File

CALLS, RANDOM_CALLS, SHORTEST_PAUSE, LONGEST_PAUSE = 16, 4, 64, 4096
"""After so many calls, or so many under a random schedule, the engine looks how many turns they have given. If they are
too few, fragments run one by one for a number of turns, which doubles each time.
"""
FEWEST_TURNS, STRANGERS = 2.5, 64
"""A call must give so many turns on average, and one more for so many fragments that it passes as strangers."""
ROOM = 4
"""The fewest unused fragments with which native code splits and joins fragments."""
MOST_STRANGERS = QUEUE_ROOM - MOST_FRAGMENTS - 1024
"""With more strangers than that native code gets no other CTA, whose barriers may have 1024 more: even if all fragments
become ready, they have room in the queue.
"""
NARROWEST, WIDEST = 8, 1024
"""The most fragments passed to native code in one call."""
_NO_BARRIERS = array("q", [-1] * (NAMED_BARRIERS * BARRIER_FIELDS))


class _Participants:
    """The participants of one call of native turns, by their numbers in the interpreter."""

    __slots__ = ("ctas", "given_joins", "joins", "numbers", "objects", "outers", "released", "root",
                 "strangers", "woken")  # fmt: skip

    def __init__(self) -> None:
        self.objects: dict[int, Fragment] = {}
        self.ctas: dict[Cta, int] = {}
        self.numbers: dict[JoinPoint, int] = {}
        self.given_joins: set[int] = set()
        self.joins: dict[int, list[JoinPoint]] = {-1: []}
        """Each join with the joins around it, by the number of the innermost one."""
        self.outers = 0
        """The number of lists of joins whose innermost join only Python knows."""
        self.root: Callable[[Fragment], int] | None = None
        """Under a random schedule, the root of a warp's priorities."""
        self.strangers: list[Fragment] = []
        """Under a random schedule, the fragments that native code knows only by the roots of their priorities."""
        self.released: dict[int, list[Fragment]] = {}
        """The fragments that each barrier has released and that only Python knew, at the end."""
        self.woken: set[Agent] = set()
        """Fragments that Python must run."""


class NativeEngine(FragmentRunner):
    """Runs fragments natively and gives them their turns."""

    def __init__(self, library: Library, grid: Grid, plan: NativePlan) -> None:
        super().__init__(library, grid, plan)
        self._calls = self._taken = self._pause = 0
        self._fewest = 0.0
        self._next_pause = SHORTEST_PAUSE
        self._width = NARROWEST
        """The most fragments passed in one call. It grows while all of them get their turns."""

    def may_begin(self, f: Fragment) -> bool:
        """Returns whether native turns may begin with a fragment, and are worth it."""
        if f.block < 0 or not (self.begins[f.block] or f.block == f.join_block):
            return False
        if self._pause:
            self._pause -= 1
            return False
        return True

    def take_turns(
        self, ready: deque[Fragment], starts: int, turns: int, blocks: int, window: int, slice: int
    ) -> Stop | None:
        """Gives fragments at most ``turns`` turns, first come, first served, until one of them needs Python. Returns
        None, with nothing done, if the first one does.

        starts: above 0 if the fragments are the warps of the only CTA that runs, which starts; then so many CTAs may
        start natively after it, each when the one before it has ended.

        A turn has at most ``blocks`` blocks. In the ``window`` of blocks after it the engine detects whether a loop
        only polls (0: Python does that). After ``slice`` blocks without a wait a fragment is deferred.
        """
        now = self._begin_call()
        given = 0
        for f in islice(ready, self._width):
            if not self._give(f, now):
                break
            self._place.queue[given] = f.native.number
            given += 1
        if not given:
            return None
        is_open = given == len(ready)
        c = self._place.context
        c[Context.HEAD], c[Context.TAIL], c[Context.CLOSED_AT] = 0, given, -1 if is_open else given
        c[Context.IS_RANDOM], c[Context.TURN_BLOCKS], c[Context.FIRST_LOOK] = 0, blocks, blocks
        c[Context.WINDOW_BLOCKS], c[Context.SLICE] = window, slice
        if starts and is_open and self._plan.cta_rows is not None:
            self._let_start(starts, ready[0].cta, given)
        for _ in range(given):
            ready.popleft()
        taken, result = self._give_turns(turns, now)
        if result[Result.STATUS] == StopReason.NOTHING_LEFT and not is_open:
            self._width = min(4 * self._width, WIDEST)
        else:
            self._width = max(self._width // 2, 2 * c[Context.HEAD], NARROWEST)
        before = self._grid.wakeups.changes + result[Result.CHANGES_BEFORE]
        self._take_back(now, result[Result.CURRENT])
        queue = self._place.queue[c[Context.HEAD] : c[Context.TAIL]].tolist()
        split_at = 0 if is_open else max(given - c[Context.HEAD], 0)
        ready.extendleft(now.objects[number] for number in reversed(queue[:split_at]))
        for number in queue[split_at:]:
            if number >= 0:
                ready.append(now.objects[number])
            else:
                self._grid.wakeups.resume_all(now.released[-1 - number])
        return self._stop(now, taken, result, before)

    def take_random_turns(
        self, first: Fragment, ready: deque[Fragment], schedule: RandomSchedule, can_start: bool, woken: set[Agent],
        turns: int, blocks: int, window: int, slice: int,
    ) -> Stop | None:  # fmt: skip
        """Gives a fragment its turn, and then those of the ready ones that a random schedule draws, at most ``turns``
        turns, until one of them needs Python or the next step is not the turn of a fragment. Returns None, with nothing
        done, if the first one does.

        Of the ready fragments native code knows only the roots of their priorities, until it draws one. can_start:
        whether a cluster can start. woken: the fragments whose next turn is for Python. The others are as in
        `take_turns`.
        """
        if len(ready) > MOST_STRANGERS or first.agent in woken:
            return None
        now = self._begin_call()
        now.root, now.woken = schedule.root, woken
        self._add_strangers(ready, now)
        if not self._give(first, now):
            return None
        c, count = self._place.context, len(ready)
        c[Context.HEAD], c[Context.TAIL] = 0, count
        self._place.queue[:count] = array("i", range(-1, -1 - count, -1))
        c[Context.FIRST_LOOK], c[Context.WINDOW_BLOCKS], c[Context.SLICE] = blocks, window, slice
        draws = schedule.draws
        c[Context.IS_RANDOM : Context.BUDGETS] = array(
            "q", (1, draws.seed, draws.drawn, schedule.steps_to_change, schedule.epoch, schedule.operations_share,
                  schedule.surprise, schedule.start_share, schedule.has_operations, can_start),
        )  # fmt: skip
        taken, result = self._give_turns(turns, now, first.native.number)
        draws.drawn, schedule.steps_to_change = c[Context.DRAWN], c[Context.STEPS_TO_CHANGE]
        schedule.operations_share = c[Context.OPERATIONS_SHARE]
        schedule.go_to_epoch(c[Context.EPOCH])
        before = self._grid.wakeups.changes + result[Result.CHANGES_BEFORE]
        self._take_back(now, result[Result.CURRENT])
        ready.clear()
        for number in self._place.queue[: c[Context.TAIL]].tolist():
            f = now.objects[number] if number >= 0 else now.strangers[-1 - number]
            f.waiting = None
            ready.append(f)
        return self._stop(now, taken, result, before)

    def _begin_call(self) -> _Participants:
        """Begins a call of native turns, of which nothing is passed yet."""
        c = self._place.context
        c[Context.TOUCHED_COUNT] = c[Context.CHANGES] = c[Context.JOIN_COUNT] = 0
        c[Context.FREE_JOIN] = -1
        c[Context.STARTS] = c[Context.STARTED] = c[Context.LAST_START] = 0
        return _Participants()

    def _let_start(self, starts: int, cta: Cta, warps: int) -> None:
        """Lets native code start CTAs after this one, which starts, too, and is the only one that runs."""
        c, rows = self._place.context, self._plan.cta_rows
        assert rows is not None
        about = (warps, *cta.index, *self._grid.launch.grid[:2], *rows)
        c[Context.STARTS] = starts
        c[Context.FIRST_COUNT : Context.ROW_Z + 1] = array("q", about)
        self._place.ctas[CTA_FIELDS : 2 * CTA_FIELDS] = self._place.ctas[:CTA_FIELDS]

    def _add_strangers(self, fragments: Collection[Fragment], now: _Participants) -> int:
        """Passes the roots of the priorities of fragments. Returns the number of the first one."""
        at = len(now.strangers)
        assert now.root is not None
        roots = array("q", map(now.root, fragments))
        self._place.strangers[at : at + len(roots)] = roots
        now.strangers += fragments
        return at

    def _give_stranger(self, place: int, now: _Participants) -> bool:
        """Passes the stranger at a place in the queue. Returns False if Python must run it."""
        f = now.strangers[-1 - self._place.queue[place]]
        waiting, f.waiting = f.waiting, None
        if f.agent in now.woken or not self._give(f, now):
            f.waiting = waiting
            return False
        self._place.queue[place] = f.native.number
        return True

    def _give_turns(self, turns: int, now: _Participants, first: int = -1) -> tuple[int, list[int]]:
        """Calls native code until the turns are over, or a fragment needs Python. Returns the number of turns, and the
        last result.
        """
        c = self._place.context
        c[Context.FIRST_TURN] = first
        taken = 0
        while True:
            if c[Context.FREE_COUNT] < ROOM:
                self._files.grow()
            c[Context.TURNS_BEFORE] = taken
            result = self._call_native(turns - taken)
            taken += result[Result.TURNS]
            status, number = result[Result.STATUS], result[Result.CURRENT]
            if status == StopReason.OTHERS_FIRST and self._give_released(-1 - number, now):
                continue
            if status == StopReason.STRANGER and self._give_stranger(result[Result.AT], now):
                continue
            if status != StopReason.CANNOT_SPLIT or not self._make_splittable(number, now):
                break
            c[Context.FIRST_TURN] = number
            taken -= 1
        if self._trace is not None:
            self._trace.drain_if_full()
        self._look_at_turns(taken, len(now.strangers))
        return taken, result

    def _stop(self, now: _Participants, taken: int, result: list[int], before: int) -> Stop:
        """Returns why turns have ended. before: the machine's count of changes before the last turn."""
        c = self._place.context
        starts = c[Context.STARTED], taken - c[Context.LAST_START]
        current = now.objects.get(result[Result.CURRENT])
        if current is None:
            return Stop(taken, *starts)
        ran = self._table[FIELDS * current.native.number + Field.RAN]
        blocks, reason = c[Context.TURN_BLOCKS], StopReason(result[Result.STATUS])
        return Stop(taken, *starts, reason, current, result[Result.FOLLOWING], blocks, ran, before)

    def _look_at_turns(self, taken: int, strangers: int) -> None:
        """Makes fragments run one by one for a while, longer each time, if calls give few turns."""
        self._calls += CALLS // RANDOM_CALLS if strangers else 1
        self._taken += taken
        self._fewest += FEWEST_TURNS + strangers / STRANGERS
        if self._calls >= CALLS:
            is_few = self._taken < self._fewest
            self._pause = self._next_pause if is_few else 0
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE) if is_few else SHORTEST_PAUSE
            self._calls = self._taken = 0
            self._fewest = 0.0

    def _call_native(self, turns: int) -> list[int]:
        """Calls native code and returns its result."""
        self._cta = None
        with self._place.caller:
            self._library.run_turns(self._place.context_address, turns)
        result: list[int] = self._place.out.tolist()
        return result

    def _give(self, f: Fragment, now: _Participants) -> bool:
        """Passes a ready fragment to native code. Returns False if Python must run it."""
        block = f.block
        meets = block == f.join_block
        if block < 0 or f.warp.arriving or f.warp.gathering or not (self.begins[block] or meets):
            return False
        cta = now.ctas.get(f.cta)
        if cta is None:
            if len(now.ctas) == CTA_ROOM or len(now.strangers) > MOST_STRANGERS:
                return False
            cta = self._give_cta(f.cta, now)
        join, join_block = self._give_joins(f, now) if f.joins else (-1, NO_BLOCK)
        if join >= 0:
            if not self._give_rows(f, self._plan.live[block], now):
                return False
        elif meets or not self._give_rows(f, self._plan.pieces[block][0].needs, now):
            return False
        self._give_state(f, cta, join, join_block, FragmentState.READY, now)
        return True

    def _give_released(self, number: int, now: _Participants) -> bool:
        """Passes the fragments that only Python knew and that a completed barrier has released, in the place of the
        barrier's entry at the head of the queue. Returns False if Python must run one of them.
        """
        barrier = list(now.ctas)[number // NAMED_BARRIERS].named[number % NAMED_BARRIERS]
        released = barrier.waiters
        first = self._place.context[Context.HEAD] + 1 - len(released)
        if first < 0 or any(f.joins or not self._give(f, now) for f in released):
            return False
        self._place.context[Context.HEAD] = first
        for place, f in enumerate(released, first):
            f.waiting = None
            self._place.queue[place] = f.native.number
        barrier.waiters = []
        return True

    def _give_rows(self, f: Fragment, needs: int, now: _Participants) -> bool:
        """Passes these registers, the pending stores, and the barrier at which a fragment has arrived."""
        named: Any = [item for item in f.tokens.items() if _is_named(item[0])]
        if not self._hand_in(f, needs) or len(named) > 1:
            return False
        is_complete = not f.unpassed & self._plan.live[f.block]
        number = f.native.number
        barrier, generation = (named[0][0].number, named[0][1]) if named else (-1, 0)
        base = FIELDS * number
        about = (barrier, generation, -1, is_complete, 1, number, 0, 0, self._warp_number(f))
        self._table[base + Field.BARRIER : base + Field.PENDING] = array("q", about)
        self._give_pending(f, base)
        self._new_stamp(base)
        return True

    def _new_stamp(self, base: int) -> None:
        self._place.context[Context.STAMP] += 1
        self._table[base + Field.STAMP] = self._place.context[Context.STAMP]

    def _give_state(self, f: Fragment, cta: int, join: int, join_block: int, state: int, now: _Participants) -> None:
        number, block = f.native.number, f.block
        base = FIELDS * number
        self._table[base + Field.MASK : base + Field.BARRIER] = array(
            "q", (f.mask, f.warp.alive, cta, block, -1, 0, block, join, join_block, f.streak, state)
        )
        if now.root is not None:
            self._table[base + Field.ROOT] = now.root(f)
        now.objects[number] = f

    def _give_cta(self, cta: Cta, now: _Participants) -> int:
        number = now.ctas[cta] = len(now.ctas)
        shared, base = cta.shared, CTA_FIELDS * number
        about = (*shared.addresses, shared.size, cta.window, *shared.mbarrier_bounds, *cta.tmem.addresses)
        used = self._plan.barriers
        is_known = all(b.number in used and not b.gathering for b in cta.named.in_use())
        is_quiet = not cta.cluster.barrier.arrived and is_known
        self._place.ctas[base : base + CtaState.BARRIERS] = array("q", (*about, cta.alive, cta.threads, is_quiet))
        self._place.ctas[base + CtaState.BARRIERS : base + CTA_FIELDS] = _NO_BARRIERS
        for n in self._plan.barriers:
            barrier, at = cta.named[n], base + CtaState.BARRIERS + n * BARRIER_FIELDS
            counts = (barrier.arrived, barrier.needed, barrier.everybody, barrier.generation, len(barrier.waiters))
            others = self._add_strangers(barrier.waiters, now) if now.root is not None else -1
            self._place.ctas[at : at + BARRIER_FIELDS] = array("q", (*counts, others, -1, -1))
        return number

    def _give_joins(self, f: Fragment, now: _Participants) -> tuple[int, int]:
        """Returns the number of a fragment's innermost join, and its block."""
        join, block = -1, NO_BLOCK
        is_plain = _is_plain(f)
        for depth, point in enumerate(f.joins):
            number = now.numbers.get(point) if is_plain else None
            if number is None and is_plain:
                number = self._give_join(point, f.joins[: depth + 1], join, block, now)
            if number is None:
                now.outers += 1
                number = -1 - now.outers
                now.joins[number] = f.joins[: depth + 1]
            join, block = number, point.block
        return join, block

    def _give_join(
        self, point: JoinPoint, joins: list[JoinPoint], parent: int, parent_block: int, now: _Participants
    ) -> int | None:
        """Passes a join with the fragments that arrived there. Returns its number, or None if Python must handle one of
        them.
        """
        number = self._place.context[Context.JOIN_COUNT]
        if not self._plan.has_all_rows[point.block] or number >= JOIN_ROOM // 2:
            return None
        for f in point.arrived:
            if not _is_plain(f) or not self._give_rows(f, self._plan.live[point.block], now):
                return None
        self._place.context[Context.JOIN_COUNT] = number + 1
        now.numbers[point] = number
        now.given_joins.add(number)
        now.joins[number] = joins
        numbers, arrived = [f.native.number for f in point.arrived], 0
        for f, following in zip(point.arrived, [*numbers[1:], -1], strict=False):
            self._give_state(f, now.ctas[f.cta], number, point.block, FragmentState.ARRIVED, now)
            self._table[FIELDS * f.native.number + Field.NEXT] = following
            arrived |= f.mask
        base = JOIN_FIELDS * number
        first, last = (numbers[0], numbers[-1]) if numbers else (-1, -1)
        about = (point.block, point.mask, arrived, first, last, len(numbers), parent, parent_block, 1)
        self._place.joins[base : base + JOIN_FIELDS] = array("q", about)
        return number

    def _make_splittable(self, number: int, now: _Participants) -> bool:
        """Passes what native code needs to split a fragment."""
        base = FIELDS * number
        if not self._table[base + Field.IS_COMPLETE]:
            f, location = now.objects[number], self._table[base + Field.LOCATION]
            self._take_state(f, location)
            if not self._hand_in(f, self._plan.live[location]):
                return False
            self._table[base + Field.IS_COMPLETE] = 1
        else:
            return self._place.context[Context.FREE_COUNT] < ROOM and self._files.grow()
        return True

    def _take_back(self, now: _Participants, current: int) -> None:
        """Updates the machine's objects with the results of the interpreter. current: the fragment whose turn it is."""
        c, table = self._place.context, self._table
        self._grid.wakeups.changes += c[Context.CHANGES]
        touched = self._library.touch_living(self._place.context_address, current, len(now.ctas))
        made, gone, left, changed = [], [], [], []
        for number in self._place.touched[:touched].tolist():
            base = FIELDS * number
            table[base + Field.IS_TOUCHED] = 0
            fields = table[base : base + Field.PENDING].tolist()
            f = now.objects.get(number)
            if f is None:
                made.append((fields[Field.BORN], number, fields))
            elif fields[Field.STATE] == FragmentState.GONE:
                gone.append(f)
            elif fields[Field.STATE] == FragmentState.LEFT:
                left.append(f)
            else:
                changed.append((f, fields))
        for _, number, fields in sorted(made):
            f = self._make(number, fields, now)
            if fields[Field.STATE] == FragmentState.LEFT:
                left.append(f)
            else:
                changed.append((f, fields))
        for f in left:
            lifetime.depart(f)
            f.native = None
        for f in gone:
            f.warp.fragments.remove(f)
            del now.objects[f.native.number]
            f.native = None
        for f, fields in changed:
            self._update(f, fields, now)
        for number in range(c[Context.JOIN_COUNT]):
            first = self._place.joins[JOIN_FIELDS * number + JoinField.FIRST]
            if first >= 0 or number in now.given_joins:
                self._joins_of(number, now)[-1].arrived = self._list_from(first, now)
        for cta, number in now.ctas.items():
            for n in self._plan.barriers:
                now.released[number * NAMED_BARRIERS + n] = self._take_barrier(cta, number, n, now)

    def _make(self, number: int, fields: list[int], now: _Participants) -> Fragment:
        """Makes the object of a new fragment."""
        origin = now.objects[fields[Field.ORIGIN]]
        joins = self._joins_of(fields[Field.JOIN], now)
        f = Fragment(origin.warp, fields[Field.MASK], list(origin.registers), fields[Field.BLOCK], joins)
        f.tokens, f.observed = dict(origin.tokens), dict(origin.observed)
        f.pending_loads, f.pending_stores = list(origin.pending_loads), list(origin.pending_stores)
        f.native, f.unpassed = File(self._files, number), 0
        table, base = self._table, FIELDS * number
        table[base + Field.HAS_OBJECT], table[base + Field.ORIGIN] = 1, number
        now.objects[number] = f
        f.warp.fragments.append(f)
        return f

    def _update(self, f: Fragment, fields: list[int], now: _Participants) -> None:
        f.block, f.streak = fields[Field.BLOCK], fields[Field.STREAK]
        self._take_state(f, fields[Field.LOCATION])
        f.joins = self._joins_of(fields[Field.JOIN], now)
        f.join_block = f.joins[-1].block if f.joins else None
        if f.tokens:
            f.tokens = {b: generation for b, generation in f.tokens.items() if not _is_named(b)}
        if fields[Field.BARRIER] >= 0:
            f.tokens[f.cta.named[fields[Field.BARRIER]]] = fields[Field.GENERATION]

    def _joins_of(self, number: int, now: _Participants) -> list[JoinPoint]:
        found = now.joins.get(number)
        if found is None:
            base = JOIN_FIELDS * number
            fields = self._place.joins[base : base + JOIN_FIELDS].tolist()
            point = JoinPoint(fields[JoinField.BLOCK], fields[JoinField.MASK], list(self._grid.code.initial))
            found = now.joins[number] = [*self._joins_of(fields[JoinField.PARENT], now), point]
        return found

    def _list_from(self, number: int, now: _Participants) -> list[Fragment]:
        """Returns the fragments of a linked list of waiting fragments."""
        found = []
        while number >= 0:
            found.append(now.objects[number])
            number = self._table[FIELDS * number + Field.NEXT]
        return found

    def _take_barrier(self, cta: Cta, number: int, n: int, now: _Participants) -> list[Fragment]:
        """Updates a barrier. Returns the fragments that waited there before and are released."""
        base = CTA_FIELDS * number + CtaState.BARRIERS + n * BARRIER_FIELDS
        barrier = cta.named[n]
        fields = self._place.ctas[base : base + BARRIER_FIELDS].tolist()
        arrived, needed, everybody, generation, others, _, first, _ = fields
        barrier.arrived, barrier.needed, barrier.everybody = arrived, needed, bool(everybody)
        barrier.generation = generation
        let_go: list[Fragment] = []
        if not others:
            let_go, barrier.waiters = barrier.waiters, []
        code = self._grid.code
        for f in self._list_from(first, now):
            f.waiting = Waiting(barrier, "waits", code.sites[code.first[f.block]])
            barrier.waiters.append(f)
        return let_go


def _is_named(barrier: Any) -> bool:
    return getattr(barrier, "number", -1) >= 0


def _is_plain(f: Fragment) -> bool:
    """Returns whether a fragment brings only registers to a join."""
    return not (f.tokens or f.observed or f.pending_loads or f.pending_stores)
