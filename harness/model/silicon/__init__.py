"""What others have published of a chip, held against the emulated GPU and the timing model."""
