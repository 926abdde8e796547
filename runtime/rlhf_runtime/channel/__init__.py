"""What the coordinator and the supervisor say to each other, and the coordinator's end of it."""
