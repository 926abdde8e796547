"""A maker: samples groups, has them scored, completes them to experiences."""
