"""Step by step whatever is still missing: the planner `greedy`."""
