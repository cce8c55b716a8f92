"""Points (C, S, R) as questions for anybody's solver."""
