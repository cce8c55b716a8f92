"""The basic types (topology, collective, schedule, plan) and the proofs about them. Import its modules directly."""
