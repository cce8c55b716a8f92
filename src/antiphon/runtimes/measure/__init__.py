"""Benchmarks of plans and libraries on every runtime."""
