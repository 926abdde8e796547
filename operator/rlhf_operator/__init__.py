"""The operator: observe, decide (pure), act, one status write. It holds no state that a restart would lose."""
