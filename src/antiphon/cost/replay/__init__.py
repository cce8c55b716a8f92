"""A recorded job once more: its computation and collectives as a graph, with other times for the collectives."""
