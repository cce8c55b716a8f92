"""Tables of the papers, made again: published, ours, and how they deviate (docs/reproduction.md)."""

from antiphon.api.running import papers, reproduce

__all__ = ["papers", "reproduce"]
