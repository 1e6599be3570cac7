"""Many jobs at once: what is asked for as ranges, planned, done by an engine, and kept as it comes."""
