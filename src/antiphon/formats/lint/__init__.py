"""Checks whether a runtime would really run an exported file, or refuse it, ignore it, hang or compute wrongly."""
