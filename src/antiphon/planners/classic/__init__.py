"""The classics: trees, rings in one step or in powers of two, as textbooks have them."""
