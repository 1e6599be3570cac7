"""Supervised processes: foreign programs, our own workers, and an engine that distributes jobs over several workers."""
