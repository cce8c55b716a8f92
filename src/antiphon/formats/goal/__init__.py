"""GOAL, which LogGOPSim and ATLAHS replay."""
