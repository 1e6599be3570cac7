"""One run: which device, the run itself, its record, several side by side."""
