"""The coordinator's loops: makers and trainers side by side, each episode finished, every wait watched."""
