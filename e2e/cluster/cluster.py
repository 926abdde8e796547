#!/usr/bin/env python3
"""A real single-node Kubernetes cluster for the end-to-end tests; see README.md beside this file."""

from localcluster.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
