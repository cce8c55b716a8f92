"""Check whether a runtime would run an exported file, or reject it, ignore it, hang or compute wrong values."""
