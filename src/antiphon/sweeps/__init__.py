"""Sweeps over machines, collectives, sizes and prices: which of 200 fabrics is the best for these collectives?

`request` reads the file of a sweep and lists its cells, `engines` plans them (in processes here, on Ray or on Dask),
`results` is the table.
"""
