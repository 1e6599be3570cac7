"""The memories: address spaces, shared, global, local and tensor memory, tensor maps and matrix descriptors."""
