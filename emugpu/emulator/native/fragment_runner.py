"""Runs a fragment natively: passes registers and memory to the interpreter, and takes over its changes.

A native run of blocks is a transaction: if anything special happens in it (a fault of any kind, an unknown window), the
interpreter rolls it back, and the ordinary block function executes it, with its faults. So the behaviour of a kernel
and its reports do not depend on the engine.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.instructions.tensor_memory import EARLY_READ
from emugpu.emulator.machine.block_engine import Stop
from emugpu.emulator.machine.code import BLOCKED, Code
from emugpu.emulator.machine.divergence import diverge
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.slots import ALL, slots_of
from emugpu.emulator.machine.state import Cta, Fragment, Grid, PendingStore
from emugpu.emulator.memory.global_memory import Allocation, GlobalMemory
from emugpu.emulator.memory.tmem import place
from emugpu.emulator.native.layout import FRAGMENT_FIELDS as FIELDS
from emugpu.emulator.native.layout import IN_PYTHON, MOST_STORES, Context, Mark, Result, StopReason
from emugpu.emulator.native.layout import FragmentField as Field
from emugpu.emulator.native.library import Library
from emugpu.emulator.native.plan import NativePlan, Piece
from emugpu.emulator.native.trace import Trace
from emugpu.emulator.native.workspace import File, Workspace

NO_BLOCK, POISON = -3, int(Mark.POISON)


class FragmentRunner:
    """Runs the fragments of one launch, one at a time."""

    def __init__(self, library: Library, grid: Grid, plan: NativePlan) -> None:
        code: Code = grid.code
        self._library = library
        self._functions = code.functions
        self._plan = plan
        self._grid = grid
        self._unchanged = bytes(plan.rows // 8)
        self.counts = np.zeros(len(code.functions), np.int64)
        """Counts blocks that ran natively and that the machine has not counted yet."""
        self._place = plan.workspaces.pop() if plan.workspaces else Workspace(plan)
        self._pieces = plan.pieces
        self.enters = [any(piece.is_entered for piece in pieces) for pieces in plan.pieces]
        self.begins = [bool(pieces) and pieces[0].follows for pieces in plan.pieces]
        self._files = self._place.files
        self._table = self._files.table
        self._origins: list[tuple[str, str]] = []
        """The sources of undefined values, by the numbers stored in rows: the origin, and the broken rule."""
        self._allocations = self._table_of(grid.memory)
        grid.memory.on_first_undefined = self._show_shadow
        self._place.set(
            parameters=np.frombuffer(grid.launch.parameters or b"\0", np.uint8),
            parameter_bytes=len(grid.launch.parameters), counts=self.counts,
            allocations=self._allocations, allocation_count=len(grid.memory.direct()),
            last_allocation=0, constants=self._table_of(grid.constants), constant_count=len(grid.constants.direct()),
        )  # fmt: skip
        self._early_reads = np.zeros(max(1, len(plan.early_reads)), np.int64)
        self._place.set(early_reads=self._early_reads)
        self._place.set(trace=0, traces_local=1, traced=0, trace_words_used=0, trace_chunks_used=0)
        self._trace = None
        if grid.sink is not None:
            self._trace = Trace(grid, self._place.context, code.sites, plan.accesses, library)
        self._cta: Cta | None = None
        self._bounds = (-1, -1)

    @staticmethod
    def _table_of(memory: GlobalMemory) -> NDArray[np.uint64]:
        """Returns the allocations of a memory as the interpreter reads them."""
        blocks = [
            (b.base, b.data.size, b.data.ctypes.data, b.shadow[1].ctypes.data if b.valid is not None else 0)
            for b in memory.direct()
        ]
        return np.array(blocks or [(0, 0, 0, 0)], np.uint64)

    def _show_shadow(self, block: Allocation) -> None:
        """Tells the interpreter that not all bytes of a block are defined any more."""
        self._allocations[self._allocations[:, 0] == block.base, 3] = block.shadow[1].ctypes.data

    def flush(self) -> None:
        """Sends the remaining events to the sink, and reports the findings that native code has counted, at the end."""
        if self._trace is not None:
            self._trace.drain()
        for (index, message), count in zip(self._plan.early_reads, self._early_reads.tolist(), strict=False):
            if count > 1:
                self._grid.findings.note(EARLY_READ, self._grid.code.sites[index], message, count - 1)

    def end(self) -> None:
        """Ends the launch and leaves its memory to the next launch of the kernel."""
        if self._place.may_be_kept():
            self._plan.workspaces.append(self._place)

    def _visit(self, cta: Cta) -> None:
        """Makes a CTA's shared memory current in the context."""
        shared = cta.shared
        if cta is not self._cta:
            self._cta = cta
            self._place.context[0:4] = array("q", (*shared.addresses, shared.size, cta.window))
            self._place.context[Context.TMEM : Context.PARAMETERS] = array("q", cta.tmem.addresses)
            self._bounds = (-1, -1)
        bounds = shared.mbarrier_bounds
        if bounds != self._bounds:
            self._bounds = bounds
            self._place.context[4:6] = array("q", bounds)

    # ---- one fragment, for a part of its turn ----

    def run(self, f: Fragment, block: int, budget: int, stop: Stop | None = None) -> tuple[int, int, int]:
        """Runs a block and the native blocks after it, at most ``budget`` in all.

        ``stop`` says how native turns ended in the middle of the block. Returns the last block, the return value of its
        block function, and the number of blocks before it, which are counted.
        """
        ran, number = 0, stop.piece if stop is not None else 0
        failed = stop is not None and stop.reason == StopReason.FAILED and not self._settles_tmem(f)
        pieces = self._pieces[block]
        if not pieces or (failed and number == 0 and not pieces[0].synchronises):
            return block, self._functions[block](f, f.registers), 0
        while True:
            piece = self._pieces[block][number]
            if piece.publishes and f.warp.member is not None:
                f.warp.member.publish(f.warp.fragments)
            if piece.is_entered and not failed and self._hand_in(f, piece.needs):
                status, block, following, further = self._run(f, piece, budget - ran)
                ran += further
                if status == StopReason.FAILED and self._settles_tmem(f):
                    number = following
                    continue
                if status == StopReason.STOPPED:
                    return block, following, ran
                if status == StopReason.DIVERGES:
                    return block, self.diverge(f, block), ran
                number = following
                piece = self._pieces[block][number]
                if status == StopReason.FAILED and number == 0 and not piece.synchronises:
                    return block, self._functions[block](f, f.registers), ran
            if piece.function is None:
                self._plan.make_functions(block)
                assert piece.function is not None
            following = piece.function(f, f.registers)
            number, failed = number + 1, False
            if number == len(self._pieces[block]) or following == BLOCKED:
                return block, following, ran

    def _settles_tmem(self, f: Fragment) -> bool:
        """Carries out deferred writes to tensor memory if a run failed because of them. Returns whether it may be tried
        again.
        """
        units = self._place.context[Context.UNSETTLED]
        self._place.context[Context.UNSETTLED] = 0
        return units != 0 and f.cta.tmem.make_readable(units)

    def diverge(self, f: Fragment, block: int) -> int:
        """Splits a fragment at the branch that ends a block. Returns what the block's function would have returned."""
        branch = self._plan.branches[block]
        slot = branch.predicate
        return diverge(f, f.current(1 << slot)[slot], branch.yes, branch.no, self._plan.joins[block])

    def _hand_in(self, f: Fragment, needs: int) -> bool:
        """Passes those of these registers that Python has written. Returns False if it is impossible."""
        if f.warp.arriving or (f.tokens and f.warp in f.tokens):
            # Lanes of the warp wait for one another at a barrier; or they have met, but Python has not yet finished the
            # instruction at which they met.
            return False
        file: File | None = f.native
        if file is None:
            number = self._files.take()
            if number < 0:
                return False
            f.current(ALL)
            file = f.native = File(self._files, number)
            file.rows.changed[:] = self._unchanged
            f.unpassed = ALL
            for (row, kind), value in zip(self._plan.filled_rows, self._plan.filled(f), strict=True):
                file.put(row, kind, value)
        if unpassed := f.unpassed & needs:
            registers, kinds = f.registers, self._plan.kinds
            for slot in slots_of(unpassed):
                value = registers[slot]
                if type(value) is Poison:
                    if not file.put_poison(slot, kinds[slot], value, self._origin_number(value)):
                        return False
                elif not file.put(slot, kinds[slot], value):
                    return False
            f.unpassed ^= unpassed
        return True

    def _origin_number(self, value: Poison) -> int:
        origin = (value.origin, value.rule)
        if origin not in self._origins:
            self._origins.append(origin)
        return self._origins.index(origin)

    def _run(self, f: Fragment, piece: Piece, budget: int) -> tuple[int, int, int, int]:
        """Calls native code. Returns why it stopped, at which block, what follows, and how many blocks it ran
        before.
        """
        self._call(f, piece, budget, 0)
        result = self._take_over(f)
        return result[Result.STATUS], result[Result.BLOCK], result[Result.FOLLOWING], result[Result.RAN]

    def pass_window(self, f: Fragment, blocks: int) -> tuple[int, int] | None:
        """Runs ``blocks`` blocks natively. Returns None, with nothing done, if they cannot all be native, or if the
        fragment returns to the same registers and nothing changed.

        Otherwise returns the next block, and the number of loads of the last one, at most four if nothing was stored.
        """
        pieces = self._pieces[f.block]
        if not pieces or not pieces[0].is_entered:
            return None
        piece = pieces[0]
        f.current(ALL)
        if not self._hand_in(f, piece.needs):
            return None
        if self._call(f, piece, blocks, blocks) == StopReason.REFUSED:
            # The rows have changed, and the registers are what they were.
            f.unpassed |= int.from_bytes(f.native.rows.changed, "little")
            f.native.rows.changed[:] = self._unchanged
            return None
        result = self._take_over(f)
        return result[Result.FOLLOWING], result[Result.LOADS]

    def _warp_number(self, f: Fragment) -> int:
        return self._trace.number_of(f.warp) if self._trace is not None else 0

    def _call(self, f: Fragment, piece: Piece, budget: int, window: int) -> int:
        self._visit(f.cta)
        table, number = self._table, f.native.number
        base = FIELDS * number
        table[base + Field.MASK], table[base + Field.ALIVE] = f.mask, f.warp.alive
        table[base + Field.WARP] = self._warp_number(f)
        self._give_pending(f, base)
        table[base + Field.JOIN_BLOCK] = NO_BLOCK if f.join_block is None else f.join_block
        with self._place.caller:
            status: int = self._library.run(self._place.context_address, number, piece.start, budget, window)
        if self._trace is not None:
            self._trace.drain_if_full()
        return status

    def _give_pending(self, f: Fragment, base: int) -> None:
        """Passes a fragment's local memory, and the stores to tensor memory that no wait has covered."""
        if not self._plan.tracks_memory:
            return
        table, columns = self._table, 0
        pending = len(f.pending_stores)
        if pending > MOST_STORES or any(lanes & f.mask for load in f.pending_loads for lanes in load.open):
            pending = IN_PYTHON
        for n, store in enumerate(f.pending_stores if pending > 0 else ()):
            table[base + Field.STORES + n] = store.site.index << 32 | store.address
            columns |= (2 << (store.place.end_column - 1) // 8) - (1 << store.place.first_column // 8)
        table[base + Field.LOCAL] = f.warp.local.address
        table[base + Field.PENDING] = pending
        table[base + Field.STORED_COLUMNS] = columns - (1 << 64 if columns >> 63 else 0)

    def _take_pending(self, f: Fragment) -> None:
        """Takes over these stores."""
        base = FIELDS * f.native.number
        pending = self._table[base + Field.PENDING]
        if pending == IN_PYTHON or not (pending or f.pending_stores):
            return
        before, f.pending_stores = f.pending_stores, []
        for n, entry in enumerate(self._table[base + Field.STORES : base + Field.STORES + pending].tolist()):
            index, address = entry >> 32, entry & 0xFFFFFFFF
            if n < len(before) and (before[n].site.index, before[n].address) == (index, address):
                f.pending_stores.append(before[n])
                continue
            shape, times, packed, split = self._plan.stores[index]
            spot = place(shape, times, address, f.warp.index % 4, packed, split)
            f.pending_stores.append(PendingStore(self._grid.code.sites[index], address, spot, None))

    def _take_over(self, f: Fragment) -> list[int]:
        """Takes over what a call changed, and returns the fields of its result."""
        result: list[int] = self._place.out.tolist()
        self._take_state(f, result[Result.LOCATION])
        if result[Result.CHANGES]:
            self._grid.wakeups.changes += result[Result.CHANGES]
        return result

    def _take_state(self, f: Fragment, location: int) -> None:
        """Takes over which registers native code has changed, and the pending stores of a fragment at a location."""
        self._take_pending(f)
        changed = f.native.rows.changed
        if found := int.from_bytes(changed, "little"):
            changed[:] = self._unchanged
            f.unpassed &= ~found
            f.outdated |= found & self._plan.live[location]
            f.fetch = self._fetch

    def _fetch(self, f: Fragment, wanted: int) -> None:
        """Brings these registers of a fragment up to date."""
        rows, kinds, registers = f.native.rows, self._plan.kinds, f.registers
        for slot in slots_of(f.outdated & wanted & ~f.unpassed):
            if rows.marks[slot] != POISON:
                registers[slot] = rows.value(slot, kinds[slot])
            else:
                registers[slot] = f.native.poison(slot, kinds[slot], self._origins[rows.origins[slot]])
        f.outdated &= ~wanted
