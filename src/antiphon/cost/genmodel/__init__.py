"""GenModel: incast and memory access (docs/models/genmodel.md)."""
