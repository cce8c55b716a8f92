"""GenTree: plans for trees of switches (docs/planners/switches.md)."""
