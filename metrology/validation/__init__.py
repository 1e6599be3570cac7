"""Holds the timing model against runs that were measured."""
