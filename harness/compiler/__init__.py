"""Mojo in, artifacts out: programs, PTX, plans, and the cache they are kept in."""
