"""A kernel's plan as text, data and picture."""
