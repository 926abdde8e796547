"""What to do next, from what is observed. Pure."""
