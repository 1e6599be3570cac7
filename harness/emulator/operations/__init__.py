"""What instructions with an effect do to the machine. Translated code calls these with a fragment."""
