"""Verdicts on MAX's own graph ops."""
