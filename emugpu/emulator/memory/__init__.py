"""What is stored where: address spaces, shared, global and tensor memory, tensor maps and matrix descriptors."""
