"""Weights from trainers to makers, as a transaction."""
