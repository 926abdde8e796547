"""Builds, starts and stops the e2e cluster: every part of a node, built from source, in one network namespace.

The standard library only: this program runs before anything of the project is installed.
"""
