"""Plans put together: what other planners do in groups of ranks, level by level."""
