"""PICCL: its schedules, topologies and files of figures."""
