"""The output for people: the report of a history, and a kernel's plan as text, data and picture."""
