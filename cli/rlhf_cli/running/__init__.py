"""`rlhfjob run`: the job on this machine."""
