"""Text and pictures for people."""
