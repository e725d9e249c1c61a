# One image; the command picks the service: agentctl-coordination, agentctl-agent, agentctl-provider, agentctl.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/agentctl && /opt/agentctl/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/agentctl /opt/agentctl
ENV PATH=/opt/agentctl/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
