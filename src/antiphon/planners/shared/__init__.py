"""Code that several planners use."""
