"""Jobs served by the engine: NumPy arrays, PyTorch, and how their processes meet."""
