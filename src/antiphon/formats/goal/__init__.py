"""GOAL, the input of LogGOPSim and ATLAHS."""
