"""`rlhfjob validate`: the API server's verdict, without a server."""
