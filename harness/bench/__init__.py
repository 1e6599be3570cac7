"""The benchmark: a declared suite, its history, and verdicts against a baseline."""
