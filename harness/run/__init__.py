"""One run of a kernel: on the emulated GPU or, in a supervised process through MAX, on a real one; and its record."""
