"""Flows of data that are only moved, as paths: gather, scatter, alltoall, and relations like them."""
