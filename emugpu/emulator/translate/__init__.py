"""Translation of a kernel's basic blocks into Python functions over register values."""
