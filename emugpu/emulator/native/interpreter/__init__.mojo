"""The native engine's interpreter runs micro-operations on the 32-lane registers of fragments of warps."""
