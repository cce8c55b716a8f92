"""The emulated cluster: links as network devices with limits (docs/lab.md)."""
