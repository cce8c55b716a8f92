"""PICCL: its schedules, topologies and result files."""
