"""What a survey's archive says: constants for the timing model, the measured side of its proof, and where the emulator
was wrong.
"""
