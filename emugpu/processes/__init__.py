"""Processes under supervision: programs that are not ours, and workers of ours with an engine over several of them."""
