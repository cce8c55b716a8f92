"""Plans made at the start of a job, by a process of its own (docs/auto.md)."""
