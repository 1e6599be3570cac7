"""Work done by worker processes, whatever becomes of them: a hand gives work to one, an engine to many."""
