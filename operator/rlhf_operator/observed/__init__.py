"""What is there, as values. Pure."""
