"""Makers and trainers as Ray actors, placed and called: the only package of the runtime that knows Ray."""
