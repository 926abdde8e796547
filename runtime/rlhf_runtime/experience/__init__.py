"""The data types that travel: rollouts, experiences, groups, and what is said about them."""
