"""What the run of a kernel is for."""

FIT, JUDGE = "fit", "judge"
"""It is timed: the timing model may be fitted to it, or is only judged by it."""
CHECK = "check"
"""It is not timed: only its result is looked at."""
