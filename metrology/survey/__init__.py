"""A survey of a GPU: all that this project would ask a GPU nobody has measured, in one archive, and its reading."""

FIT, HOLD_OUT, CHECK = "fit", "hold-out", "check"
"""What the run of a kernel is for: a model may be fitted to its time; its time judges a model that was not fitted to
it; or only its result is looked at."""
