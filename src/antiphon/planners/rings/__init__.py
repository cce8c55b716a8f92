"""Rings: one or several, along links or over routes."""
