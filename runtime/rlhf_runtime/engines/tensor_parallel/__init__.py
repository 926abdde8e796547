"""One rollout engine over several devices of one pod: each process computes with its part of the model."""
