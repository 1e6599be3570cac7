"""SIMT code run natively: micro-operations on 32 lanes, interpreted by a library that is compiled once."""
