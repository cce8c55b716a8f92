"""From a schedule to its programs: what every rank does with which addresses (docs/program.md)."""
