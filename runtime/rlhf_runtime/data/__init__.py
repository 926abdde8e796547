"""Prompts: where their rows come from, their order, the tokens they become."""
