"""GenModel: a model with incast and memory access (docs/models.md)."""
