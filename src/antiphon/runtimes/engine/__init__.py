"""The engine in C: compiled on the user's machine, with its transports and the MPI preload library."""
