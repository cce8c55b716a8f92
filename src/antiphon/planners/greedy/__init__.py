"""The planner `greedy`: step by step, send the missing data that helps most."""
