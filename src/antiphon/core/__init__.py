"""The types everything hangs on, and the proofs about them. Import the modules directly."""
