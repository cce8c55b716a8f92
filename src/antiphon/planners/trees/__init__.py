"""Packed spanning trees: exactly optimal (`trees`) and as published (`blink`). See docs/planners/trees.md."""
