"""Which prompts are dispatched next, how stale they may be, which rank trains them. Pure: no torch, no clock."""
