"""GenTree: plans for trees of switches (docs/planners/gentree.md)."""
