"""Models in which steps are barriers, or messages wait for nothing but each other."""
