"""Rings: along links, as many as there are, and over routes."""
