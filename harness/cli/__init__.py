"""The command line: Click and rich end here."""
