"""The engine in C, compiled by the user's compiler, and Python's way into it."""
