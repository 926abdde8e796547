# The one tests folder that is a package: without this, pytest's importlib mode would name these modules
# `operator.tests.*` and put a namespace package in the place of the standard library's `operator`.
