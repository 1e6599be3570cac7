"""Numbers that fill a range evenly however many of them there are, and lie far from those before."""

GOLDEN = (5**0.5 - 1) / 2


def evenly(number: int) -> float:
    """Of a sequence, from 0 to 1: the multiples of the golden ratio without their whole parts."""
    return number * GOLDEN % 1
