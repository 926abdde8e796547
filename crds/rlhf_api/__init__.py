"""The RLHFJob API: what a user writes, what the operator tells the runtime, what the runtime tells back.

Importing this package loads pydantic and the standard library only, so that the operator needs no torch,
the runtime no Kubernetes client, and a laptop neither.
"""
