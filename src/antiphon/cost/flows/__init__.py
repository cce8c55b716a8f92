"""Flows that share links fairly (docs/models/flows.md)."""
