"""Any relation: what ranks begin with is sent along shortest paths, and added up on the way."""
