"""Where a rollout becomes an experience."""
