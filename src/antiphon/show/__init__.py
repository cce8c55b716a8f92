"""What people look at: text and pictures."""
