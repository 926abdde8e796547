"""The rlhfjob command line."""
