"""Manifests that are accepted: every mode, every variant of a fleet, every part of a pod template."""

from __future__ import annotations

GOOD = {
    "once": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: once}
spec:
  mode: once
  instruction: Summarise the release notes.
  model: {pool: stand-in, id: agentctl-extractive}
  runs: {retries: 2, deadline: 10m, keepFor: 24h, trigger: "2"}
  limits: {maxTokens: 100000, maxSteps: 20, maxDepth: 3}
""",
    "loop": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: loop}
spec:
  mode: loop
  instruction: Look for new tickets.
  model: {pool: stand-in}
  mcpServers: [tickets, wiki]
  loop: {interval: 1h30m}
  limits: {deadline: 5m}
""",
    "reactive": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: reactive}
spec:
  mode: reactive
  instruction: Answer what comes in.
  model: {pool: stand-in}
  subscribe: ["mail://inbox", "https://example.com/feed?a=b"]
""",
    "schedule": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: schedule}
spec:
  mode: schedule
  instruction: Write the weekly report.
  model: {pool: stand-in}
  schedule:
    cron: "*/15 8-18,20 1 JAN,jul mon-fri"
    timeZone: Europe/Vienna
    startingDeadline: 5m
    suspend: true
""",
    "workflow": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: workflow}
spec:
  mode: workflow
  workflow: {configMapKeyRef: {name: flows, key: release.json}}
""",
    "own image, whole pod template": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: own-image}
spec:
  mode: once
  image: localhost:5000/a_b/agent:1.2@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  instruction: Do it.
  podTemplate:
    metadata:
      labels: {team: research, example.com/cost-centre: "12"}
      annotations: {example.com/note: "Any text, with spaces."}
    spec:
      serviceAccountName: research
      imagePullSecrets: [{name: registry}]
      nodeSelector: {kubernetes.io/arch: amd64}
      tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a, b]}]}]
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 10
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {team: research}}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}
      priorityClassName: low
      runtimeClassName: gvisor
      terminationGracePeriodSeconds: 60
      volumes:
      - {name: scratch, emptyDir: {sizeLimit: 1Gi}}
      - {name: settings, configMap: {name: settings, items: [{key: a.json, path: a.json}]}}
      - {name: labels, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
      - name: both
        projected:
          sources:
          - secret: {name: token}
          - configMap: {name: settings, optional: true}
      containers:
      - command: [agent]
        args: [--verbose]
        env:
        - {name: LANG, value: de}
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token}}}
        envFrom: [{prefix: X_, configMapRef: {name: settings}}]
        resources: {requests: {cpu: 250m, memory: 256Mi}, limits: {cpu: 1, memory: 1Gi}}
        volumeMounts:
        - {name: scratch, mountPath: /scratch}
        - {name: settings, mountPath: /etc/x.d, readOnly: true}
        imagePullPolicy: IfNotPresent
""",
    "an agent of another contract": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: foreign}
spec:
  mode: loop
  image: example.com/agentd:1.4.0
  contract: agentd-1
  instruction: Look for new tickets.
  model: {pool: stand-in}
  loop: {interval: 5m}
""",
    "a fleet of another contract": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: foreigners}
spec:
  template:
    image: example.com/agentd:1.4.0
    contract: agentd-1
    instruction: Summarise.
    model: {pool: stand-in}
""",
    "fleet with every default": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: small}
spec:
  template: {instruction: Summarise., model: {pool: stand-in}}
""",
    "fleet with a coordinator": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: large}
spec:
  template: {instruction: Summarise., model: {pool: stand-in}, limits: {maxSteps: 5}}
  replicas: 7
  scaling: {minReplicas: 2, maxReplicas: 20}
  work: {queue: documents.in, slots: 8, lease: 1m, maxAttempts: 5}
  coordinator:
    replicas: 2
    template: {image: example.com/front-door}
""",
    "fleet that its demand scales": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: elastic}
spec:
  template:
    instruction: Summarise.
    model: {pool: stand-in}
    podTemplate: {metadata: {labels: {team: a}}, spec: {terminationGracePeriodSeconds: 91}}
  scaling: {maxReplicas: 2000, target: 10, targetAge: 1m30s, cooldown: 0s, fallbackReplicas: 2000}
  work: {drain: 1m30s}
""",
    "fleet of shards": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: ledgers}
spec:
  template: {instruction: Book it., model: {pool: stand-in}}
  replicas: 1024
  scaling: {mode: shard, maxReplicas: 1024}
  work: {drain: 24h}
""",
    "fleet of as many shards as it has at least": """
apiVersion: agentctl.dev/v1alpha1
kind: AgentFleet
metadata: {name: few}
spec:
  template: {instruction: Book it., model: {pool: stand-in}}
  scaling: {mode: shard}
""",
    "model pool": """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: stand-in}
spec:
  endpoint: https://provider.agentctl-system.svc.cluster.local.:8443/v1
  models: [agentctl-extractive, org/b:c]
""",
    "environment that the contract leaves to the owner": """
apiVersion: agentctl.dev/v1alpha1
kind: Agent
metadata: {name: own}
spec:
  mode: once
  instruction: Summarise the release notes.
  model: {pool: stand-in}
  podTemplate:
    metadata: {labels: {team: a}}
    spec:
      containers:
      - name: agent
        env:
        - {name: AGENT_TOOL_TIMEOUT, value: 5s}
        - {name: OPENAI_API_KEY, valueFrom: {secretKeyRef: {name: provider, key: token}}}
        - {name: AGENTCTL_LOG_LEVEL, value: DEBUG}
""",
    "model pool beside it": """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: near}
spec: {endpoint: "http://[::1]:8080", models: [a]}
""",
    "model pool of the stand-in": """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: nowhere}
spec: {models: [agentctl-extractive]}
""",
    "server set": """
apiVersion: agentctl.dev/v1alpha1
kind: MCPServerSet
metadata: {name: office}
spec:
  servers:
  - {name: tickets, endpoint: "https://tickets.example.com/mcp", tags: [read, write]}
  - {name: wiki, endpoint: "https://wiki.example.com/mcp"}
""",
    "model pool of a gateway": """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: paid}
spec:
  models: [large, small]
  endpoints:
  - name: first
    url: https://api.example.com/v1?api-version=2026-01-01
    credential: {secretRef: {name: provider, key: api-key}, header: api-key}
  - name: second
    url: https://[2001:db8::1]:8443
    credential: {secretRef: {name: other, key: k}, query: key}
  - {name: beside, url: "http://127.0.0.1:8080/v1"}
  budgets:
  - {per: agent, window: 24h, tokens: 1000000}
  - {per: agent, window: 1h, tokens: 100000}
  - {per: fleet, window: 24h, tokens: 9007199254740992}
  - {per: pool, tokens: 100000000}
  onStoreDown: allow
""",
    "model pool of another API": """
apiVersion: agentctl.dev/v1alpha1
kind: ModelPool
metadata: {name: claude}
spec:
  provider: anthropic
  models: [large]
  endpoints:
  - {name: a, url: "https://api.example.com/v1", credential: {secretRef: {name: provider, key: api-key}}}
""",
    "server set of a gateway": """
apiVersion: agentctl.dev/v1alpha1
kind: MCPServerSet
metadata: {name: guarded}
spec:
  servers:
  - name: search
    endpoint: https://search.example.com/mcp
    auth: {mode: header, name: X-Api-Key, secretRef: {name: search, key: token}}
    tools: {allow: ["find_*", read], deny: [find_people]}
    arguments:
      read:
        properties: {path: {type: string, pattern: "^/docs/"}, mode: {enum: [text, null]}}
        required: [path]
  - name: tickets
    endpoint: https://tickets.example.com/mcp
    auth:
      mode: oauth
      clientId: agentctl
      secretRef: {name: tickets, key: secret}
      issuer: https://login.example.com
      scope: tickets.read tickets.write
  - {name: closed, endpoint: "https://closed.example.com/mcp", tools: {allow: []}}
  - {name: open, endpoint: "http://open.team-a.svc/mcp", auth: {mode: none}}
""",
}
