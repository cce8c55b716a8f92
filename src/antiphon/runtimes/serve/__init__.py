"""Plans under NumPy and PyTorch: how processes meet and share a table."""
