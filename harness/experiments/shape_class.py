"""Which problems share a tuned configuration: those for which every tile of the space makes the same launch."""

from __future__ import annotations

from dataclasses import dataclass

from harness.problem.shape import Shape

ROWS = 256
"""The most rows of a tile; those of the others divide it, but for the last tiles along M."""


@dataclass(frozen=True)
class ShapeClass:
    """M from first to last, N and K as they are: layers of a model, and tokens by how many tiles they fill."""

    first: int
    last: int
    n: int
    k: int

    def has(self, shape: Shape) -> bool:
        return self.first <= shape.m <= self.last and (self.n, self.k) == (shape.n, shape.k)

    def __str__(self) -> str:
        return f"M {self.first} to {self.last}, N {self.n}, K {self.k}"


def class_of(shape: Shape) -> ShapeClass:
    """The class of a problem."""
    last = -(-shape.m // ROWS) * ROWS
    return ShapeClass(last - ROWS + 1, last, shape.n, shape.k)
