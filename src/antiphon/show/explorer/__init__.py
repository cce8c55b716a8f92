"""The explorer: results as one interactive HTML page."""
