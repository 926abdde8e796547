"""The objects that a job is made of. Pure."""
