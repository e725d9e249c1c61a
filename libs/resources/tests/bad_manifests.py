"""Manifests that are refused, each with a part of what kubectl then prints."""

from __future__ import annotations

_ONCE = "mode: once, instruction: a, model: {pool: a}"
_WORKER = "instruction: a, model: {pool: a}"


def _manifest(kind: str, spec: str, name: str = "bad", namespace: str = "default") -> str:
    return f"""
apiVersion: agentctl.dev/v1alpha1
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}}}
spec: {spec}
"""


def _agent(spec: str, name: str = "bad") -> str:
    return _manifest("Agent", f"{{{spec}}}", name)


def _fleet(spec: str, name: str = "bad") -> str:
    return _manifest("AgentFleet", f"{{{spec}}}", name)


def _pod(template: str) -> str:
    return _agent(f"{_ONCE}, podTemplate: {{spec: {{{template}}}}}")


def _pool(spec: str) -> str:
    return _manifest("ModelPool", f"{{models: [a], {spec}}}")


def _endpoint(endpoint: str) -> str:
    return _pool(f"endpoints: [{{name: a, {endpoint}}}]")


def _server(server: str) -> str:
    return _manifest("MCPServerSet", f"{{servers: [{{name: a, endpoint: 'https://a', {server}}}]}}")


def _container(container: str) -> str:
    return _pod(f"containers: [{{{container}}}]")


BAD: dict[str, tuple[str, str]] = {
    # the mode and its block
    "unknown mode": (
        _agent("mode: sometimes, instruction: a, model: {pool: a}"),
        'spec.mode: Unsupported value: "sometimes": supported values: "once", "loop", "reactive", "schedule"',
    ),
    "no mode": (_agent("instruction: a, model: {pool: a}"), "spec.mode: Required value"),
    "no spec": (_manifest("Agent", "null"), "spec: Required value"),
    "schedule block on a loop": (
        _agent(
            "mode: loop, instruction: a, model: {pool: a}, loop: {interval: 5m}, schedule: {cron: '@daily'}"
        ),
        "spec.schedule: Invalid value: goes with mode schedule",
    ),
    "loop without a loop block": (
        _agent("mode: loop, instruction: a, model: {pool: a}"),
        "spec.loop: Invalid value: goes with mode loop",
    ),
    "loop block on once": (
        _agent(f"{_ONCE}, loop: {{interval: 5m}}"),
        "spec.loop: Invalid value: goes with mode loop",
    ),
    "workflow without a document": (
        _agent("mode: workflow"),
        "spec.workflow: Invalid value: goes with mode workflow",
    ),
    "workflow with two documents": (
        _agent("mode: workflow, workflow: {inline: '{}', configMapKeyRef: {name: a, key: b}}"),
        "spec.workflow: Invalid value: exactly one of inline, configMapKeyRef",
    ),
    "workflow that is empty": (
        _agent("mode: workflow, workflow: {}"),
        "spec.workflow: Invalid value: exactly one of inline, configMapKeyRef",
    ),
    "reactive to nothing": (
        _agent("mode: reactive, instruction: a, model: {pool: a}, subscribe: []"),
        "spec.subscribe: Invalid value: goes with mode reactive",
    ),
    "subscribed but not reactive": (
        _agent(f"{_ONCE}, subscribe: ['file:///inbox']"),
        "spec.subscribe: Invalid value: goes with mode reactive",
    ),
    "subscribed to no URI": (
        _agent("mode: reactive, instruction: a, model: {pool: a}, subscribe: [inbox]"),
        'spec.subscribe[0]: Invalid value: "inbox": has to be a URI with its scheme',
    ),
    "no instruction": (
        _agent("mode: once, model: {pool: a}"),
        "spec.instruction: Invalid value: is needed in every mode but workflow",
    ),
    "blank instruction": (
        _agent("mode: once, instruction: '  ', model: {pool: a}"),
        r"""spec.instruction: Invalid value: "  ": spec.instruction in body should match '\S'""",
    ),
    "reference agent without a model": (
        _agent("mode: once, instruction: a"),
        "spec.model: Invalid value: the reference agent needs a model",
    ),
    "runs of a loop": (
        _agent("mode: loop, instruction: a, model: {pool: a}, loop: {interval: 5m}, runs: {retries: 1}"),
        "spec.runs: Invalid value: goes with the modes once, workflow and schedule",
    ),
    "trigger of a schedule": (
        _agent(
            "mode: schedule, instruction: a, model: {pool: a}, schedule: {cron: '@daily'}, runs: {trigger: a}"
        ),
        "spec.runs.trigger: Invalid value: goes with the modes once and workflow",
    ),
    # times
    **{
        f"bad cron: {why}": (
            _agent(f"mode: schedule, instruction: a, model: {{pool: a}}, schedule: {{cron: '{cron}'}}"),
            f'spec.schedule.cron: Invalid value: "{cron}": has to be five fields (minute, hour',
        )
        for why, cron in {
            "four fields": "* * * *",
            "six fields": "0 * * * * *",
            "minute 60": "60 * * * *",
            "hour 24": "0 24 * * *",
            "day 0": "0 0 0 * *",
            "month 13": "0 0 1 13 *",
            "weekday 8": "0 0 * * 8",
            "step 0": "*/0 * * * *",
            "words": "every morning",
            "@reboot": "@reboot",
            "with a time zone": "TZ=UTC 0 0 * * *",
        }.items()
    },
    "bad time zone": (
        _agent(f"{_ONCE.replace('once', 'schedule')}, schedule: {{cron: '@daily', timeZone: Local}}"),
        'spec.schedule.timeZone: Invalid value: "Local": has to be the IANA name of a time zone',
    ),
    "interval without a unit": (
        _agent("mode: loop, instruction: a, model: {pool: a}, loop: {interval: '5'}"),
        "spec.loop.interval in body should be at least 2 chars long",
    ),
    "interval of nothing": (
        _agent("mode: loop, instruction: a, model: {pool: a}, loop: {interval: 0s}"),
        'spec.loop.interval: Invalid value: "0s": has to be a duration of 1s to 720h, such as 30s, 5m, 1h30m',
    ),
    "deadline in days": (
        _agent(f"{_ONCE}, runs: {{deadline: 2d}}"),
        'spec.runs.deadline: Invalid value: "2d": has to be a duration of 1s to 720h',
    ),
    # numbers
    "min above max": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{minReplicas: 3, maxReplicas: 2}}"),
        "spec.scaling: Invalid value: minReplicas may not be more than maxReplicas",
    ),
    "min above the default max": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{minReplicas: 11}}"),
        "spec.scaling: Invalid value: minReplicas may not be more than maxReplicas",
    ),
    "max of nothing": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{maxReplicas: 0}}"),
        "spec.scaling.maxReplicas in body should be greater than or equal to 1",
    ),
    "replicas above max": (
        _fleet(f"template: {{{_WORKER}}}, replicas: 11"),
        "spec.replicas: Invalid value: has to be between scaling.minReplicas and scaling.maxReplicas",
    ),
    "replicas below min": (
        _fleet(f"template: {{{_WORKER}}}, replicas: 0, scaling: {{minReplicas: 1}}"),
        "spec.replicas: Invalid value: has to be between scaling.minReplicas and scaling.maxReplicas",
    ),
    "unknown mode of scaling": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{mode: hash}}"),
        'spec.scaling.mode: Unsupported value: "hash": supported values: "claim", "shard"',
    ),
    **{
        f"shards with {field}": (
            _fleet(f"template: {{{_WORKER}}}, scaling: {{mode: shard, {field}: {value}}}"),
            "spec.scaling: Invalid value: target, targetAge and fallbackReplicas are for mode claim",
        )
        for field, value in {"target": 5, "targetAge": "30s", "fallbackReplicas": 2}.items()
    },
    "more shards than a queue may have": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{mode: shard, maxReplicas: 1025}}"),
        "spec.scaling.maxReplicas: Invalid value: a queue has at most 1024 shards",
    ),
    "no shards": (
        _fleet(f"template: {{{_WORKER}}}, replicas: 0, scaling: {{mode: shard}}"),
        "spec.replicas: Invalid value: has to be at least 1: there is no fleet of no shards",
    ),
    "fallback above max": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{fallbackReplicas: 11}}"),
        "spec.scaling.fallbackReplicas: Invalid value: has to be between minReplicas and maxReplicas",
    ),
    "fallback below min": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{minReplicas: 3, fallbackReplicas: 2}}"),
        "spec.scaling.fallbackReplicas: Invalid value: has to be between minReplicas and maxReplicas",
    ),
    "fallback to nobody": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{fallbackReplicas: 0}}"),
        "spec.scaling.fallbackReplicas in body should be greater than or equal to 1",
    ),
    "target of nothing": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{target: 0}}"),
        "spec.scaling.target in body should be greater than or equal to 1",
    ),
    "target age of nothing": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{targetAge: 0s}}"),
        'spec.scaling.targetAge: Invalid value: "0s": has to be a duration of 1s to 24h',
    ),
    "cooldown above an hour": (
        _fleet(f"template: {{{_WORKER}}}, scaling: {{cooldown: 61m}}"),
        'spec.scaling.cooldown: Invalid value: "61m": has to be a duration of 0s to 1h',
    ),
    "drain above a day": (
        _fleet(f"template: {{{_WORKER}}}, work: {{drain: 25h}}"),
        'spec.work.drain: Invalid value: "25h": has to be a duration of 1s to 24h',
    ),
    "drain as long as the grace": (
        _fleet(
            f"template: {{{_WORKER}, podTemplate: {{spec: {{terminationGracePeriodSeconds: 90}}}}}},"
            " work: {drain: 1m30s}"
        ),
        "spec.template.podTemplate.spec.terminationGracePeriodSeconds: Invalid value:"
        " has to be more than work.drain",
    ),
    "a number as a word": (
        _fleet(f"template: {{{_WORKER}}}, work: {{slots: many}}"),
        'spec.work.slots in body must be of type integer: "string"',
    ),
    "too many slots": (
        _fleet(f"template: {{{_WORKER}}}, work: {{slots: 257}}"),
        "spec.work.slots in body should be less than or equal to 256",
    ),
    "lease above an hour": (
        _fleet(f"template: {{{_WORKER}}}, work: {{lease: 61m}}"),
        'spec.work.lease: Invalid value: "61m": has to be a duration of 1s to 1h',
    ),
    "an empty lease": (
        _fleet(f"template: {{{_WORKER}}}, work: {{lease: ''}}"),
        "spec.work.lease in body should be at least 2 chars long",
    ),
    "no tokens at all": (
        _agent(f"{_ONCE}, limits: {{maxTokens: 0}}"),
        "spec.limits.maxTokens in body should be greater than or equal to 1",
    ),
    "a deadline of a run below a second": (
        _agent(f"{_ONCE}, limits: {{deadline: 0s}}"),
        'spec.limits.deadline: Invalid value: "0s": has to be a duration of 1s to 720h',
    ),
    "a deadline in the loop block": (
        _agent("mode: loop, instruction: a, model: {pool: a}, loop: {interval: 5m, deadline: 1m}"),
        'strict decoding error: unknown field "spec.loop.deadline"',
    ),
    # contracts
    "unknown contract": (
        _agent(f"{_ONCE}, contract: agentd-2"),
        'spec.contract: Unsupported value: "agentd-2": supported values: "agentctl", "agentd-1"',
    ),
    "another contract without an image": (
        _agent(f"{_ONCE}, contract: agentd-1"),
        "spec.image: Invalid value: is needed with contract agentd-1",
    ),
    "another contract without a model": (
        _agent("mode: once, instruction: a, image: a, contract: agentd-1"),
        "spec.model: Invalid value: is needed with contract agentd-1",
    ),
    "another contract without an instruction": (
        _agent("mode: workflow, workflow: {inline: a}, model: {pool: a}, image: a, contract: agentd-1"),
        "spec.instruction: Invalid value: is needed with contract agentd-1",
    ),
    "worker of another contract without an image": (
        _fleet(f"template: {{{_WORKER}, contract: agentd-1}}"),
        "spec.template.image: Invalid value: is needed with contract agentd-1",
    ),
    "worker of another contract with too many slots": (
        _fleet(f"template: {{{_WORKER}, image: a, contract: agentd-1}}, work: {{slots: 5}}"),
        "spec.work.slots: Invalid value: an agent of contract agentd-1 works on at most 4 items at a time",
    ),
    "coordinator of another contract": (
        _fleet(
            f"template: {{{_WORKER}}}, coordinator: {{template: {{{_WORKER}, image: a, contract: agentd-1}}}}"
        ),
        "spec.coordinator.template.contract: Invalid value: a coordinator speaks contract agentctl",
    ),
    # names
    "queue of another namespace": (
        _fleet(f"template: {{{_WORKER}}}, work: {{queue: other/jobs}}"),
        'spec.work.queue: Invalid value: "other/jobs": has to be a queue',
    ),
    "fleet name too long for its coordinator": (
        _fleet(f"template: {{{_WORKER}}}", "f" * 52),
        "metadata.name: Too long: may not be more than 51 bytes",
    ),
    "agent name too long for a CronJob": (
        _agent(_ONCE, "a" * 53),
        "metadata.name: Too long: may not be more than 52 bytes",
    ),
    "name with a dot": (
        _agent(_ONCE, "a.b"),
        "metadata.name: Invalid value: a name is lower case letters, digits and dashes",
    ),
    "image that is none": (
        _agent(f"{_ONCE}, image: 'Registry/Image:tag'"),
        'spec.image: Invalid value: "Registry/Image:tag": has to be an image reference',
    ),
    "one server set twice": (
        _agent(f"{_ONCE}, mcpServers: [files, files]"),
        'spec.mcpServers[1]: Duplicate value: "files"',
    ),
    "unknown field": (
        _agent(f"{_ONCE}, instructions: b"),
        'strict decoding error: unknown field "spec.instructions"',
    ),
    "unknown field below": (
        _fleet(f"template: {{{_WORKER}, mode: once}}"),
        'strict decoding error: unknown field "spec.template.mode"',
    ),
    "fleet without a template": (_fleet(""), "spec.template: Required value"),
    "coordinator without a template": (
        _fleet(f"template: {{{_WORKER}}}, coordinator: {{replicas: 1}}"),
        "spec.coordinator.template: Required value",
    ),
    "worker without an instruction": (
        _fleet("template: {model: {pool: a}}"),
        "spec.template.instruction: Invalid value: the reference agent needs an instruction",
    ),
    "agent among the components": (
        _manifest("Agent", f"{{{_ONCE}}}", namespace="agentctl-system"),
        "agents cannot live in agentctl-system, where the control plane is",
    ),
    "fleet among the components": (
        _manifest("AgentFleet", f"{{template: {{{_WORKER}}}}}", namespace="agentctl-system"),
        "agents cannot live in agentctl-system, where the control plane is",
    ),
    # pools and servers
    "two servers of one name": (
        _manifest(
            "MCPServerSet", "{servers: [{name: a, endpoint: 'https://a'}, {name: a, endpoint: 'https://b'}]}"
        ),
        'spec.servers[1]: Duplicate value: {"name":"a"}',
    ),
    "server without a name": (
        _manifest("MCPServerSet", "{servers: [{endpoint: 'https://a'}]}"),
        "spec.servers[0].name: Required value",
    ),
    "set without servers": (
        _manifest("MCPServerSet", "{servers: []}"),
        "spec.servers in body should have at least 1 items",
    ),
    **{
        f"endpoint with {what}": (
            _manifest("ModelPool", f"{{endpoint: '{url}', models: [a]}}"),
            f'spec.endpoint: Invalid value: "{url}": has to be an http or https URL without user',
        )
        for what, url in {
            "another scheme": "ftp://a",
            "no scheme": "api.example.com/v1",
            "no host": "https:///v1",
            "a password": "https://me:secret@api.example.com/v1",
            "a query": "https://api.example.com/v1?key=secret",
            "a space": "https://api.example.com/v1 beta",
        }.items()
    },
    "pool without models": (
        _manifest("ModelPool", "{endpoint: 'https://a', models: []}"),
        "spec.models in body should have at least 1 items",
    ),
    "one model twice": (
        _manifest("ModelPool", "{endpoint: 'https://a', models: [a, b, a]}"),
        'spec.models[2]: Duplicate value: "a"',
    ),
    "endpoint beside endpoints": (
        _pool("endpoint: 'https://a', endpoints: [{name: a, url: 'https://a'}]"),
        "spec.endpoints: Invalid value: endpoint or endpoints, not both",
    ),
    "no endpoint in endpoints": (
        _pool("endpoints: []"),
        "spec.endpoints in body should have at least 1 items",
    ),
    "two endpoints of one name": (
        _pool("endpoints: [{name: a, url: 'https://a'}, {name: a, url: 'https://b'}]"),
        'spec.endpoints[1]: Duplicate value: {"name":"a"}',
    ),
    **{
        f"endpoint of a gateway with {what}": (
            _endpoint(f"url: '{url}'"),
            f'spec.endpoints[0].url: Invalid value: "{url}": has to be an https URL, or http on loopback',
        )
        for what, url in {
            "another scheme": "ftp://a",
            "plain http": "http://api.example.com/v1",
            "a host that looks like loopback": "http://127.0.0.1.example.com/v1",
            "a password": "https://me:secret@api.example.com/v1",
            "a fragment": "https://api.example.com/v1#a",
        }.items()
    },
    "unknown provider": (
        _pool("provider: other"),
        'spec.provider: Unsupported value: "other": supported values: "openai", "anthropic"',
    ),
    "provider of one endpoint": (
        _endpoint("url: 'https://a', provider: openai"),
        'strict decoding error: unknown field "spec.endpoints[0].provider"',
    ),
    "key in a manifest": (
        _endpoint("url: 'https://a', credential: {value: sk-secret}"),
        'strict decoding error: unknown field "spec.endpoints[0].credential.value"',
    ),
    "credential without a Secret": (
        _endpoint("url: 'https://a', credential: {header: api-key}"),
        "spec.endpoints[0].credential.secretRef: Required value",
    ),
    "credential without a key of the Secret": (
        _endpoint("url: 'https://a', credential: {secretRef: {name: a}}"),
        "spec.endpoints[0].credential.secretRef.key: Required value",
    ),
    "credential in two places": (
        _endpoint("url: 'https://a', credential: {secretRef: {name: a, key: b}, header: c, query: d}"),
        "spec.endpoints[0].credential.query: Invalid value: header or query, not both",
    ),
    "credential in a header that is none": (
        _endpoint("url: 'https://a', credential: {secretRef: {name: a, key: b}, header: 'X: c'}"),
        'credential.header: Invalid value: "X: c": has to be the name of an HTTP header',
    ),
    "credential as the host": (
        _endpoint("url: 'https://a', credential: {secretRef: {name: a, key: b}, header: Host}"),
        'credential.header: Invalid value: "Host": is a header that the gateway sets',
    ),
    "credential in a parameter that is none": (
        _endpoint("url: 'https://a', credential: {secretRef: {name: a, key: b}, query: 'a=b'}"),
        'credential.query: Invalid value: "a=b": has to be the name of a parameter of a URL',
    ),
    "budget of nobody": (
        _pool("budgets: [{per: team, tokens: 5}]"),
        'spec.budgets[0].per: Unsupported value: "team": supported values: "pool", "fleet", "agent"',
    ),
    "budget of nothing": (
        _pool("budgets: [{per: pool, tokens: 0}]"),
        "spec.budgets[0].tokens in body should be greater than or equal to 1",
    ),
    "budget of a day": (
        _pool("budgets: [{per: pool, tokens: 5, window: 1d}]"),
        'spec.budgets[0].window: Invalid value: "1d": has to be a duration of 1s to 8760h',
    ),
    "two budgets of one window": (
        _pool("budgets: [{per: pool, tokens: 5, window: 60m}, {per: pool, tokens: 6, window: 1h}]"),
        "spec.budgets: Invalid value: two budgets are per the same thing and window",
    ),
    "two budgets for ever": (
        _pool("budgets: [{per: agent, tokens: 5}, {per: agent, tokens: 6}]"),
        "spec.budgets: Invalid value: two budgets are per the same thing and window",
    ),
    "unsure what to do without a store": (
        _pool("onStoreDown: perhaps"),
        'spec.onStoreDown: Unsupported value: "perhaps": supported values: "refuse", "allow"',
    ),
    "auth of an unknown mode": (
        _server("auth: {mode: basic}"),
        'spec.servers[0].auth.mode: Unsupported value: "basic": supported values: "none", "header", "oauth"',
    ),
    "auth without a mode": (
        _server("auth: {secretRef: {name: a, key: b}}"),
        "spec.servers[0].auth.mode: Required value",
    ),
    "header without a Secret": (
        _server("auth: {mode: header}"),
        "spec.servers[0].auth.secretRef: Invalid value: goes with the modes header and oauth",
    ),
    "Secret for nothing": (
        _server("auth: {mode: none, secretRef: {name: a, key: b}}"),
        "spec.servers[0].auth.secretRef: Invalid value: goes with the modes header and oauth",
    ),
    "session as a credential": (
        _server("auth: {mode: header, name: Mcp-Session-Id, secretRef: {name: a, key: b}}"),
        'spec.servers[0].auth.name: Invalid value: "Mcp-Session-Id": is a header that the gateway sets',
    ),
    "header of oauth": (
        _server("auth: {mode: oauth, clientId: a, name: X-Key, secretRef: {name: a, key: b}}"),
        "spec.servers[0].auth.name: Invalid value: goes with mode header",
    ),
    "oauth without a client": (
        _server("auth: {mode: oauth, secretRef: {name: a, key: b}}"),
        "spec.servers[0].auth.clientId: Invalid value: goes with mode oauth",
    ),
    "client that is none": (
        _server("auth: {mode: oauth, clientId: 'a b', secretRef: {name: a, key: b}}"),
        'spec.servers[0].auth.clientId: Invalid value: "a b": has to be a client id of OAuth',
    ),
    **{
        f"{field} of a header": (
            _server(f"auth: {{mode: header, secretRef: {{name: a, key: b}}, {field}: 'https://a'}}"),
            f"spec.servers[0].auth.{field}: Invalid value: goes with mode oauth",
        )
        for field in ("clientId", "issuer", "scope")
    },
    "issuer that is none": (
        _server("auth: {mode: oauth, clientId: a, secretRef: {name: a, key: b}, issuer: example.com}"),
        'spec.servers[0].auth.issuer: Invalid value: "example.com": has to be an http or https URL',
    ),
    "scopes with a comma and a space too many": (
        _server("auth: {mode: oauth, clientId: a, secretRef: {name: a, key: b}, scope: 'a,  b'}"),
        'spec.servers[0].auth.scope: Invalid value: "a,  b": has to be scopes, a space between two',
    ),
    "one tool twice": (
        _server("tools: {allow: [read, read]}"),
        'spec.servers[0].tools.allow[1]: Duplicate value: "read"',
    ),
    "tool with a space": (
        _server("tools: {deny: ['read file']}"),
        r"""spec.servers[0].tools.deny[0] in body should match '^\S+$'""",
    ),
    "arguments without a schema": (
        _server("arguments: {read: anything}"),
        'spec.servers[0].arguments.read in body must be of type object: "string"',
    ),
    # templates that cannot be a pod, or not one of ours
    "field that pods do not have": (
        _pod("nodeSelektor: {a: b}"),
        'strict decoding error: unknown field "spec.podTemplate.spec.nodeSelektor"',
    ),
    "security context": (
        _container("securityContext: {privileged: true}"),
        'strict decoding error: unknown field "spec.podTemplate.spec.containers[0].securityContext"',
    ),
    "path of the node": (
        _pod("volumes: [{name: root, hostPath: {path: /}}]"),
        'strict decoding error: unknown field "spec.podTemplate.spec.volumes[0].hostPath"',
    ),
    "a token of the cluster": (
        _pod("volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: token}}]}}]"),
        'unknown field "spec.podTemplate.spec.volumes[0].projected.sources[0].serviceAccountToken"',
    ),
    "volume without a source": (
        _pod("volumes: [{name: a}]"),
        "spec.podTemplate.spec.volumes[0]: Invalid value: exactly one of emptyDir, configMap, secret",
    ),
    "volume with a name of ours": (
        _pod("volumes: [{name: agentctl-tls, emptyDir: {}}]"),
        'volumes[0].name: Invalid value: "agentctl-tls": names that begin with agentctl- are ours',
    ),
    "two volumes of one name": (
        _pod("volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]"),
        'spec.podTemplate.spec.volumes[1]: Duplicate value: {"name":"a"}',
    ),
    "mount of no volume": (
        _container("volumeMounts: [{name: a, mountPath: /a}]"),
        "spec.podTemplate.spec: Invalid value: every volumeMount names one of spec.volumes",
    ),
    "mount over ours": (
        _pod(
            "volumes: [{name: a, emptyDir: {}}], "
            "containers: [{volumeMounts: [{name: a, mountPath: /run/agentctl/trust}]}]"
        ),
        "volumeMounts[0].mountPath: Invalid value: /tmp and /run/agentctl are mounted by us",
    ),
    "mount that climbs": (
        _pod(
            "volumes: [{name: a, emptyDir: {}}], "
            "containers: [{volumeMounts: [{name: a, mountPath: /a/../run/agentctl}]}]"
        ),
        'volumeMounts[0].mountPath: Invalid value: "/a/../run/agentctl": has to be an absolute path',
    ),
    "a sidecar": (
        _container("name: sidecar"),
        'spec.podTemplate.spec.containers[0].name: Unsupported value: "sidecar": supported values: "agent"',
    ),
    "two containers": (
        _pod("containers: [{name: agent}, {name: agent}]"),
        "spec.podTemplate.spec.containers: Too many: 2: must have at most 1 item",
    ),
    **{
        f"environment: {name} is ours": (
            _container(f"env: [{{name: {name}, value: a}}]"),
            f'env[0].name: Invalid value: "{name}": AGENT_*, AGENTCTL_* and OPENAI_* are set by us',
        )
        for name in ("AGENT_QUEUE", "AGENTCTL_TLS_DIR", "OPENAI_BASE_URL")
    },
    "one variable twice": (
        _container("env: [{name: A, value: a}, {name: A, value: b}]"),
        'env[1]: Duplicate value: {"name":"A"}',
    ),
    "variable with two values": (
        _container("env: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"),
        "env[0]: Invalid value: value or valueFrom, not both",
    ),
    "variable that is no string": (
        _container("env: [{name: A, value: 5}]"),
        'env[0].value in body must be of type string: "integer"',
    ),
    "memory in words": (
        _container("resources: {limits: {memory: 1 gig}}"),
        'resources.limits.memory: Invalid value: "1 gig"',
    ),
    "toleration of an unknown effect": (
        _pod("tolerations: [{operator: Exists, effect: Never}]"),
        'tolerations[0].effect: Unsupported value: "Never": supported values: "NoSchedule"',
    ),
    "affinity that is none": (
        _pod("affinity: {nodeAffinity: {required: []}}"),
        'strict decoding error: unknown field "spec.podTemplate.spec.affinity.nodeAffinity.required"',
    ),
    "grace that is too short to drain": (
        _pod("terminationGracePeriodSeconds: 5"),
        "terminationGracePeriodSeconds in body should be greater than or equal to 30",
    ),
    "label of ours": (
        _agent(f"{_ONCE}, podTemplate: {{metadata: {{labels: {{agentctl.dev/agent: other}}}}}}"),
        "spec.podTemplate.metadata.labels: Invalid value: keys under agentctl.dev/",
    ),
    "label that is none": (
        _agent(f"{_ONCE}, podTemplate: {{metadata: {{labels: {{'a b': c}}}}}}"),
        "spec.podTemplate.metadata.labels: Invalid value: a key is a name of at most 63 letters",
    ),
}
