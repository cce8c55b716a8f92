"""Textbook algorithms: trees, direct exchange, halving and doubling."""
