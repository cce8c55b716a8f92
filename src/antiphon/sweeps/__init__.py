"""Sweeps over machines, collectives, sizes and prices: which of 200 fabrics is the best for these collectives?

`request` reads the file of a sweep and lists its cells, `results` plans them by an engine (isolate/_engines.py) and has
the table.
"""
