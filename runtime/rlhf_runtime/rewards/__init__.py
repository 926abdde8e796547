"""Rewards of completions: from functions, endpoints and models."""
