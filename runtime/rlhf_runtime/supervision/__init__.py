"""The supervisor's parts: one attempt, its coordinator process, its deadlines, the report that it serves."""
