"""Rollout engines: prompts and a policy in, groups of rollouts out."""
