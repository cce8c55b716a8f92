"""Synthesis problems (C, S, R) as DIMACS and SMT-LIB files for other solvers."""
