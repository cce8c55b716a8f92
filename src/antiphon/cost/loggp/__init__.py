"""LogGP: messages, packets and processors that take turns (docs/models/loggp.md)."""
