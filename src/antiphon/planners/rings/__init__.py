"""Rings: one or several, along links or over routes.

`ring` and `multi_ring` are the planners, `circles` plans a collective around one cycle. Cycles are found by `cycles`
(one), `edge_disjoint` (several), `factors` (grids), `factor_swaps` and `most_rings` (the maximum, with proofs); `bound`
bounds rings over switches.
"""
