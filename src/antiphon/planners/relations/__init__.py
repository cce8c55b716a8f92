"""Plans for custom collectives: shortest paths, with sums formed on the way."""
