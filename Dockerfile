# Two images of the one distribution: `--target operator` (no torch) and `--target runtime` (ray and torch).
#
# Dependencies come from locked files, in layers of their own below our code: a change of code changes only
# the last, small layer. What a build needs of the machine it runs on (package index, proxy, certificates)
# comes in as the optional secrets `build-env`, `ca` and `apt`, and so stays out of the images.
ARG BASE=python:3.11-slim-bookworm
ARG UV=uv==0.13.9
ARG HATCHLING=hatchling==1.33.0

FROM ${BASE} AS base
# A numeric user, so that `runAsNonRoot` can be verified; with a name, because libraries ask for it.
RUN python3 -m venv --without-pip /opt/rlhfjob \
    && echo 'rlhf:x:1000:1000::/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'rlhf:x:1000:' >> /etc/group
ENV PATH=/opt/rlhfjob/bin:$PATH VIRTUAL_ENV=/opt/rlhfjob HOME=/tmp PYTHONUNBUFFERED=1

# Byte code is compiled here, for the running user cannot write it, and validated by hash, not by time stamp.
# The installer comes and goes within the step. (It cannot be mounted from another stage: buildah before
# 1.30 does not find a stage that it took from its cache.)
FROM base AS operator-dependencies
ARG UV
COPY requirements/operator.txt /opt/rlhfjob/requirements.txt
RUN --mount=type=secret,id=build-env --mount=type=secret,id=ca \
    [ ! -s /run/secrets/build-env ] || . /run/secrets/build-env; \
    set -e; cd /opt/rlhfjob; \
    python3 -m venv /tmp/tools; /tmp/tools/bin/pip install --quiet --no-cache-dir "$UV"; \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH /tmp/tools/bin/uv pip install --no-cache --link-mode=copy \
        --compile-bytecode --require-hashes -r requirements.txt; \
    rm -rf .lock /tmp/tools

# SLIM=1 leaves out what only a GPU would load (see slim_torch.py): 1 GB instead of 6, for tests on CPUs.
# One of reasoning-gym's dependencies (pycosat) comes as C source only. On a GPU Triton compiles the log-prob kernels
# when they are first used, so there the compiler stays.
FROM base AS runtime-dependencies
ARG UV
ARG SLIM=0
COPY requirements/runtime.txt /opt/rlhfjob/requirements.txt
COPY e2e/cluster/slim_torch.py /opt/rlhfjob/slim_torch.py
RUN --mount=type=secret,id=build-env --mount=type=secret,id=apt --mount=type=secret,id=ca \
    [ ! -s /run/secrets/build-env ] || . /run/secrets/build-env; \
    set -e; cd /opt/rlhfjob; \
    apt-get update -qq; apt-get install -qq --yes --no-install-recommends gcc libc6-dev; \
    python3 -m venv /tmp/tools; /tmp/tools/bin/pip install --quiet --no-cache-dir "$UV"; \
    install() { \
        PYC_INVALIDATION_MODE=UNCHECKED_HASH /tmp/tools/bin/uv pip install --no-cache --link-mode=copy \
            --compile-bytecode --require-hashes "$@"; \
    }; \
    if [ "$SLIM" = 1 ]; then \
        python3 slim_torch.py requirements requirements.txt > cpu.txt; mv cpu.txt requirements.txt; \
        install --no-deps -r requirements.txt; \
        python3 slim_torch.py libraries lib/python3*/site-packages; \
    else \
        install -r requirements.txt; \
    fi; \
    [ "$SLIM" = 0 ] || apt-get purge -qq --yes --auto-remove gcc libc6-dev; \
    rm -rf slim_torch.py .lock /tmp/tools /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log

# Our own code, installed at the place it will have, to be copied on top of the dependencies.
FROM base AS code
ARG UV
ARG HATCHLING
RUN --mount=type=secret,id=build-env --mount=type=secret,id=ca \
    [ ! -s /run/secrets/build-env ] || . /run/secrets/build-env; \
    python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-cache-dir "$UV" "$HATCHLING"
WORKDIR /src
# All that .dockerignore lets through.
COPY . .
RUN set -e; \
    /opt/tools/bin/python -m hatchling build --target wheel --directory /dist; \
    /opt/tools/bin/uv pip install --no-cache --link-mode=copy --offline --no-deps /dist/*.whl; \
    cd /opt/rlhfjob; \
    python -m compileall -q --invalidation-mode unchecked-hash lib/python3*/site-packages/rlhf_*; \
    mkdir /out; cp -a --parents bin/rlhf* lib/python3*/site-packages/rlhf* /out

FROM operator-dependencies AS operator
USER 1000:1000
ENTRYPOINT ["rlhf-operator"]
COPY --from=code /out /opt/rlhfjob

FROM runtime-dependencies AS runtime
USER 1000:1000
WORKDIR /tmp
CMD ["python"]
COPY --from=code /out /opt/rlhfjob
