"""What the object's status says. Pure."""
