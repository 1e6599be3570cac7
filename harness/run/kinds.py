"""What kinds of GPU are called in files."""

from __future__ import annotations


def kind_of(name: str) -> str:
    """By the name that the driver gives it: ``nvidia-h200`` of an NVIDIA H200."""
    return "-".join(name.lower().split())
