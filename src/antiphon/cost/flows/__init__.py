"""A model in which concurrent messages share links fairly (docs/models.md)."""
