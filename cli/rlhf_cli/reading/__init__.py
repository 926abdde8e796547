"""`rlhfjob history` and `rlhfjob samples`: what a run did."""
