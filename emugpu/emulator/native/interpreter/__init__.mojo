"""The native engine's interpreter: runs stretches of micro-operations on the 32-lane registers of fragments of warps."""
