"""What the run of a kernel is for."""

FIT, SEEN, JUDGE, JUDGE_FAR = "fit", "seen", "judge", "judge-far"
"""It is timed: the timing model may be fitted to it; it judged the model while its form was still being settled; or it
judges it, and nothing about it may change the model: near the defaults of a kernel, or far from them. On a GPU that the
model has not been compared with all that do not fit judge."""
TIMED = (JUDGE, JUDGE_FAR, SEEN, FIT)
CHECK = "check"
"""It is not timed: only its result is looked at."""
