"""Runs SIMT code natively: a library that is compiled once interprets micro-operations on 32 lanes."""
