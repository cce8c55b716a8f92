"""An emulated cluster: links as network devices with limited rates (docs/lab.md)."""
