"""Hierarchical plans: other planners for groups of ranks, combined level by level."""
