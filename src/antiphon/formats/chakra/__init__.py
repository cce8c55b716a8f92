"""Chakra execution traces (MLCommons): what each rank sends, receives and computes, and what waits for what."""
