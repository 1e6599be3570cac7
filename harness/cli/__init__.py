"""The command line of the harness. Only this package uses Click and rich."""
