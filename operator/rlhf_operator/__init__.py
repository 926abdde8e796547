"""The operator: observes, decides, acts, and writes one status."""
