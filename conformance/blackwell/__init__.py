"""Probes of features that only Blackwell has: tensor memory, tcgen05, pairs of CTAs, cluster launch control."""
