.DEFAULT_GOAL := help
export RLHF_CACHE ?= $(HOME)/.cache/rlhfjob
export PYTHONPATH := $(CURDIR)/crds:$(CURDIR)/operator:$(CURDIR)/runtime:$(CURDIR)/cli
PY := .venv/bin/python

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16
