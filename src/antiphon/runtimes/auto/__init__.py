"""Plans made at the start of a job, in a process apart (docs/auto.md)."""
