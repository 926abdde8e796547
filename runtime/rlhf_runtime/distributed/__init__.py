"""Process groups and devices of a rank."""
