"""A run's folder: journal, checkpoints, samples, the result of an attempt."""
