# The gateway as an image: built from hash-locked wheels, run as uid 10001 on a read-only root, everything kept in /data.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
# Or deploy/small.lock: without litellm, embeddings on this machine and `compute` (docs/install.md, A smaller image).
ARG LOCK=deploy/image.lock

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

# pip refuses here what the lock does not name: another hash, another version, one more package. No wheel may bring a
# .pth file, which Python would run at every start. A read-only root cannot keep bytecode, so without compileall every
# start would compile litellm again (9.4 s instead of 3.6); unchecked, because the sources cannot change any more.
ARG LOCK
COPY deploy/image.lock deploy/small.lock ./deploy/
RUN python -m venv --without-pip /opt/parlour \
 && python -m pip --python /opt/parlour/bin/python install --quiet --no-compile --require-hashes --only-binary :all: -r "${LOCK}" \
 && test -z "$(find /opt/parlour -name '*.pth' -print)" \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/parlour/lib

# Our own wheel is built by a locked hatchling in a venv that stays behind in this stage. It goes into a folder beside
# the packages, so that they stay one layer for all images of a lock: an upgrade stores and moves our files alone.
COPY deploy/build.lock ./deploy/
RUN python -m venv --without-pip /opt/build \
 && python -m pip --python /opt/build/bin/python install --quiet --require-hashes --only-binary :all: -r deploy/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY gateway ./gateway
COPY channels ./channels
COPY agent ./agent
COPY deploy/wheel ./deploy/wheel
COPY deploy/systemd ./deploy/systemd
COPY deploy/monitoring ./deploy/monitoring
COPY docker-compose.yml ./
COPY deploy/compose.https.yml deploy/compose.mcp.yml deploy/compose.ollama.yml deploy/compose.postgres.yml deploy/compose.scale.yml deploy/compose.secrets.yml ./deploy/
RUN /opt/build/bin/python -m hatchling build -t wheel -d /opt/wheel \
 && python -m pip --python /opt/parlour/bin/python install --quiet --no-compile --no-deps --no-index --prefix /opt/own \
      /opt/wheel/*.whl \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /opt/own -p /opt/parlour /opt/own/lib

FROM ${PYTHON_IMAGE}
# The base image ships its standard library without bytecode.
RUN python -m compileall -q -j 0 -x '/(lib2to3|site-packages|test|idlelib|turtledemo)/' --invalidation-mode unchecked-hash \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && groupadd --gid 10001 parlour \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin parlour \
 && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/parlour /opt/parlour
COPY --from=build /opt/own /opt/parlour
COPY deploy/healthcheck.py /opt/parlour/healthcheck.py

# Beyond loopback the page asks for a login code: `parlour web login` prints one.
# `container` says where we are (systemd's convention): the doctor words what is to be pasted by it.
ENV PATH=/opt/parlour/bin:$PATH \
    container=oci \
    PARLOUR_HOME=/data \
    PARLOUR_WEB__HOST=0.0.0.0 \
    PARLOUR_WEB__PORT=8787 \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
VOLUME ["/data"]
EXPOSE 8787
USER 10001:10001
WORKDIR /data

# Which commit this is. At the end, because it changes each time and nothing before it does.
ARG COMMIT=unknown
ARG VERSION=unknown
ENV BUILD_COMMIT=${COMMIT}
LABEL org.opencontainers.image.title="parlour" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.licenses="MIT"

# A standard-library script: importing Parlour every 30 seconds would cost more than serving does. The compose file has a
# start_interval besides; here the flag would end a build with Podman 4 or Docker before 25.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-I", "/opt/parlour/healthcheck.py"]
ENTRYPOINT ["parlour"]
CMD ["run"]
