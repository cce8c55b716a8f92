"""LogGP: an event simulator of messages, packets and processors (docs/models/loggp.md)."""
