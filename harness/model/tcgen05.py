"""The times of a tcgen05.mma: the cycles until the tensor core takes the next one, and until it is done.

The form is that of published micro-benchmarks of a B200 (`harness.model.silicon`). It depends on the shape and on where
A lies, not on the types: an instruction takes 32 bytes of each row of A and B for every type.
"""

from __future__ import annotations

from dataclasses import dataclass

from emugpu.emulator.units.mma_instruction import Mma
from harness.model.constants import GpuConstants

K_BYTES = 32
"""Bytes of a row of A or B in one multiplication, for every type."""
HALF_ROWS = 128
"""Rows of a pair with 64 rows per CTA, which then works on half of the columns at a time."""
NARROW = 112
"""A pair with at least this many columns reads its operands without a pause."""


@dataclass(frozen=True)
class MmaForm:
    """The properties that decide the time of an instruction. ``m``, ``n``: rows and columns of D, of both CTAs of a
    pair together. ``group``: 1 CTA or 2. ``scaled``: whether it takes scale factors.
    """

    m: int
    n: int
    group: int
    a_in_tmem: bool = False
    scaled: bool = False

    @property
    def compute(self) -> float:
        """Returns the cycles of the multiplications alone."""
        return self.n / 4 if self.group == 2 and self.m == HALF_ROWS else self.n / 2

    @property
    def a_bytes(self) -> int:
        """Returns the bytes of A that a CTA reads from its shared memory."""
        return 0 if self.a_in_tmem else self.m // self.group * K_BYTES

    @property
    def b_bytes(self) -> int:
        """Returns the bytes of B that a CTA reads from its shared memory."""
        return self.n // self.group * K_BYTES


def form_of(what: Mma) -> MmaForm:
    """Returns the form of an instruction of the emulator."""
    shape = what.shape()
    return MmaForm(shape.m, shape.n, what.cta_group, what.a_in_tmem, what.vectors > 0)


class MmaTimes:
    """The times on a GPU with tcgen05.mma."""

    def __init__(self, gpu: GpuConstants) -> None:
        self.overhead = gpu["tensor.overhead"]
        self.each = gpu["tensor.per_instruction"]
        self.shared_rate = gpu["shared.port"]
        self.narrow = gpu["tcgen05.narrow_pair"]
        self.least = gpu["tcgen05.least_of_pair"]
        self.loaded_a = gpu["tcgen05.loaded_a"]
        self.loaded_b = gpu["tcgen05.loaded_b"]
        self.fixed = gpu["tcgen05.latency"]
        self.fixed_pair = gpu["tcgen05.pair_latency"]
        self.fixed_half = gpu["tcgen05.half_latency"]
        self.scales = gpu["tcgen05.scales"]

    def interval(self, form: MmaForm, loaded: bool = False) -> float:
        """Returns the cycles until the tensor core takes another instruction of this form.

        ``loaded`` says whether B has just been loaded, as in a main loop; otherwise the same operands are multiplied
        again and again, as in micro-benchmarks.
        """
        operands = (form.a_bytes + form.b_bytes) / self.shared_rate
        least = 0.0
        if form.group == 2:
            least = self.least
            if form.n < NARROW:
                operands *= self.narrow
        if loaded:
            read = form.a_bytes / self.loaded_a + form.b_bytes / self.shared_rate
            least = max(least, read, form.b_bytes / self.loaded_b)
        return max(form.compute, operands, least) * self.overhead + self.each

    def latency(self, form: MmaForm) -> float:
        """Returns the cycles from an instruction's start until it is done: A is read, then the columns are computed."""
        fixed = self.fixed
        if form.group == 2:
            fixed = self.fixed_half if form.m == HALF_ROWS else self.fixed_pair
        busy = (form.compute + form.a_bytes / self.shared_rate) * self.overhead + self.each
        return busy + fixed + (self.scales if form.scaled else 0.0)
