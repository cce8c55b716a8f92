"""Tree packing: `trees` (exactly optimal) and `blink` (as published). See docs/planners/trees.md."""
