.DEFAULT_GOAL := help
export RLHF_CACHE ?= $(HOME)/.cache/rlhfjob
PY := .venv/bin/python
# The first process that imports torch keeps its byte code for all later ones: each saves about 20 seconds of a core.
unexport PYTHONDONTWRITEBYTECODE

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

venv: .venv/.installed ## the development environment, from the lock
.venv/.installed: requirements/dev.txt pyproject.toml
	command -v uv >/dev/null || python3 -m pip install --quiet uv
	test -x $(PY) || uv venv --quiet --python python3.11 .venv
	uv pip sync --quiet --python $(PY) --require-hashes requirements/dev.txt
	uv pip install --quiet --python $(PY) --no-deps --editable .
	touch $@

generate: venv ## write the CRD and the API reference from the API types
	$(PY) crds/generate.py

COMPILE := uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11
lock: ## resolve the requirement files anew from pyproject.toml, all with the same versions
	$(COMPILE) --extra runtime pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra operator pyproject.toml -c requirements/runtime.txt -o requirements/operator.txt
	$(COMPILE) --all-extras --group dev pyproject.toml -c requirements/runtime.txt -c requirements/operator.txt \
	  -o requirements/dev.txt

verify: venv ## lint, format, strict types, layering, generated files
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy crds/rlhf_api operator/rlhf_operator runtime/rlhf_runtime runtime/rlhf_samples cli/rlhf_cli e2e/*.py e2e/cluster
	.venv/bin/lint-imports
	$(PY) crds/generate.py --check

quick: venv ## tests that need no torch, no model, no Ray and no cluster
	$(PY) -m pytest --quick -m "not full"

unit: venv ## unit and integration tests, local Ray included
	$(PY) -m pytest -m "not full"

cluster-up: ## a real single-node Kubernetes with KubeRay and our images; again: only what changed
	python3 e2e/cluster/cluster.py up
	python3 e2e/cluster/cluster.py images

cluster-down: ## end it; only the caches stay
	python3 e2e/cluster/cluster.py down

e2e: venv cluster-up ## end-to-end tests on that cluster
	python3 e2e/cluster/cluster.py exec -- $(PY) -m pytest -m "not full" --timeout=1800 e2e

test: verify unit e2e cluster-down ## everything CI runs

test-full: venv cluster-up ## every sample, every bad job, every control
	$(PY) -m pytest --timeout=1800
	python3 e2e/cluster/cluster.py exec -- $(PY) -m pytest --timeout=3600 e2e

demo: venv ## run the sample on this machine, live
	.venv/bin/rlhfjob run -f manifests/samples/addition.yaml --storage runs --fresh

.PHONY: help venv generate lock verify quick unit cluster-up cluster-down e2e test test-full demo
