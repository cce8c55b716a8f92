"""Recorded jobs replayed as graphs, with other times for their collectives."""
