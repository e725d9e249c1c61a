"""Each rule, with what it lets pass and what not."""

from __future__ import annotations

import copy
from unittest.mock import Mock, call

import pytest
import yaml

from libs.cluster import Access
from libs.cluster.kinds import AGENT, AGENT_FLEET, CONFIG_MAP, MCP_SERVER_SET, MODEL_POOL
from libs.resources.tests.good_manifests import GOOD
from services.admission import reading
from services.admission.context import Facts, Needs, Policy, needs
from services.admission.reading import OVERRIDE
from services.admission.rules import review
from services.admission.schema import check

from .declared import agent, declared, fleet, pods, pool, server, server_set, template

SETS = (
    server_set("mail", server("inbox", "untrusted_input")),
    server_set("vault", server("files", "sensitive")),
    server_set("web", server("post", "egress"), server("get", "egress", "untrusted_input")),
    server_set("web-too", server("post", "egress")),
    server_set("all", server("browser", "untrusted_input", "sensitive", "egress")),
)
THERE = {
    (MODEL_POOL, "large"): pool(),
    **{(MCP_SERVER_SET, each["metadata"]["name"]): each for each in SETS},
}
MAY_OVERRIDE = Access("override", "agentctl.dev", "agents", "demo", "scout", "trifecta")
FROM_SECRET = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "a"}}}
SECRET_PODS = pods({"env": [FROM_SECRET]})
BECAUSE = {"annotations": {OVERRIDE: "reviewed by security, ticket 12"}}


def judged(thing, old=None, *, objects=None, **facts):
    """The verdict, where all is there and what `facts` says."""
    there = THERE | {(each_kind(each), each["metadata"]["name"]): each for each in objects or ()}
    return review(thing, old, Facts(objects=there, **facts))


def each_kind(thing):
    return {"Agent": AGENT, "AgentFleet": AGENT_FLEET, "ModelPool": MODEL_POOL}[thing["kind"]]


def denied(thing, old=None, **facts):
    return [(found.rule, found.field) for found in judged(thing, old, **facts).denials]


def warned(thing, old=None, **facts):
    return [(found.rule, found.field) for found in judged(thing, old, **facts).warnings]


def test_an_object_is_walked_through_once_a_review(monkeypatch):
    walk = Mock(wraps=reading.is_readable)
    monkeypatch.setattr(reading, "is_readable", walk)
    thing = agent(limits={})
    assert review(thing, None, Facts(objects=THERE)).allowed
    assert walk.call_args_list.count(call(thing)) == 1


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_what_the_crds_take_is_not_malformed(text):
    thing = yaml.safe_load(text)
    thing["metadata"]["namespace"] = "demo"
    assert check(thing) == ()
    asked = needs(thing)
    about_others = {"unknown-pool", "unknown-server-set", "unknown-model"}
    assert {rule for rule, _ in denied(thing, granted=frozenset(asked.accesses))} <= about_others


@pytest.mark.parametrize("thing", [agent(), fleet(), pool(), *SETS])
def test_nothing_is_said_of_what_is_well_done(thing):
    verdict = judged(thing)
    assert (verdict.denials, verdict.warnings) == ((), ())


@pytest.mark.parametrize(
    ("thing", "rule", "field"),
    [
        (agent(model={"pool": "none"}), "unknown-pool", "spec.model.pool"),
        (fleet(template=template(model={"pool": "none"})), "unknown-pool", "spec.template.model.pool"),
        (
            fleet(coordinator={"template": template(model={"pool": "none"})}),
            "unknown-pool",
            "spec.coordinator.template.model.pool",
        ),
        (agent(model={"pool": "large", "id": "huge"}), "unknown-model", "spec.model.id"),
        (agent(mcpServers=["mail", "none"]), "unknown-server-set", "spec.mcpServers[1]"),
        (agent(mcpServers=["web", "web-too"]), "duplicate-server", "spec.mcpServers[1]"),
        (agent(mode="schedule", schedule={"cron": "0 0 31 2 *"}), "cron-never", "spec.schedule.cron"),
        (agent(mode="schedule", schedule={"cron": "50-10 * * * *"}), "cron-never", "spec.schedule.cron"),
        (
            agent(mode="schedule", schedule={"cron": "@daily", "timeZone": "Europe/Atlantis"}),
            "unknown-time-zone",
            "spec.schedule.timeZone",
        ),
        (pool(endpoint="https://api.example.com:99999/v1"), "endpoint-invalid", "spec.endpoint"),
        (pool(endpoint="https://api.example.com:0/v1"), "endpoint-invalid", "spec.endpoint"),
        (
            pool(endpoints=[{"name": "a", "url": "https://api.example.com:0/v1"}]),
            "endpoint-invalid",
            "spec.endpoints[0].url",
        ),
        (
            server_set("a", server("b", endpoint="https://[:::1]/")),
            "endpoint-invalid",
            "spec.servers[0].endpoint",
        ),
        (agent(image="a..b"), "image-invalid", "spec.image"),
        (fleet(template=template(image="team/a___b:1")), "image-invalid", "spec.template.image"),
        (declared(AGENT, "a", {"mode": "dance"}), "malformed", "spec.mode"),
    ],
)
def test_what_is_wrong_is_denied_with_its_place(thing, rule, field):
    assert (rule, field) in denied(thing)


@pytest.mark.parametrize(
    "thing",
    [
        agent(model={"pool": "large"}),
        agent(mcpServers=["mail", "web"]),
        agent(mode="schedule", schedule={"cron": "0 0 29 2 *", "timeZone": "Europe/Vienna"}),
        agent(mode="schedule", schedule={"cron": "@hourly"}),
        pool(endpoint="http://[::1]:8080"),
        pool(endpoint="http://localhost/v1"),
        agent(image="a.b__c---d/e_f:1"),
    ],
)
def test_what_is_right_beside_it_is_not(thing):
    assert denied(thing) == []


@pytest.mark.parametrize("begin", ["https://", "ftp://", "https:", ""])
def test_a_password_in_an_endpoint_is_refused_and_not_repeated(begin):
    for thing in (
        pool(endpoint=f"{begin}joe:hunter2@api.example.com/v1"),
        pool(endpoint=f"{begin}joe:hunter2/@ß @api.example.com/v1"),
        server_set("a", server("b", endpoint=f"{begin}joe:hunter2@api.example.com/v1")),
    ):
        verdict = judged(thing, schema=check(thing))
        assert {each.rule for each in verdict.denials} == {"endpoint-invalid", "schema"}
        assert "hunter2" not in str([*map(str, verdict.denials)])


def test_a_password_is_repeated_nowhere():
    thing = agent(image="https://joe:hunter2@api.example.com/v1")
    verdict = judged(thing, schema=check(thing), policy=Policy(allowed_images=["python"]))
    assert {each.rule for each in verdict.denials} == {"image-invalid", "schema"}
    assert "hunter2" not in str([*map(str, verdict.denials)])


@pytest.mark.parametrize(
    ("thing", "message", "mend"),
    [
        (pool(endpoint="https://a.example:99999/v1"), "has no such port", "1 to 65535"),
        (pool(endpoint="https://joe@a.example/v1"), "has a user", "leave it out"),
        (pool(endpoint="a.example/v1"), "is no http or https URL", "https://host"),
        (agent(mode="schedule", schedule={"cron": "60 * * * *"}), "its minute never comes", "bounds"),
        (
            agent(mode="schedule", schedule={"cron": "0 0 31 2 *"}),
            "its day-of-month never comes",
            "months have",
        ),
    ],
)
def test_a_mend_is_of_what_is_wrong(thing, message, mend):
    [found] = judged(thing).denials
    assert message in found.message
    assert mend in found.mend


def test_a_name_that_is_too_long_is_said_once():
    for thing in (agent("a" * 53), fleet("a" * 52, coordinator={"template": template()})):
        [found] = judged(thing, schema=check(thing)).denials
        assert (found.rule, found.field) == ("schema", "metadata.name")
    for thing in (agent("a" * 52), fleet("a" * 51, coordinator={"template": template()})):
        assert judged(thing, schema=check(thing)).allowed


def test_the_name_in_dns_has_to_fit_too():
    longest = 253 - len(f"{'u' * 36}..agent.demo.ns.{'d' * 180}")
    policy = Policy(trust_domain="d" * 180)
    assert denied(agent(name="a" * longest), policy=policy) == []
    assert denied(agent(name="a" * (longest + 1)), policy=policy) == [("name-too-long", "metadata.name")]


def test_an_image_has_to_be_allowed_wherever_it_is_named():
    policy = Policy(allowed_images=["ghcr.io/acme/**"])
    good, evil = "ghcr.io/acme/agent:1", "ghcr.io/acme-evil/agent:1"
    everywhere = ["spec.template.image", "spec.coordinator.template.image"]
    for image, rule in ((good, ""), (evil, "image-not-allowed"), ("is no image", "image-invalid")):
        herd = fleet(template=template(image=image), coordinator={"template": template(image=image)})
        assert denied(herd, policy=policy) == [(rule, field) for field in everywhere if rule]
    assert denied(agent(image=evil), policy=policy) == [("image-not-allowed", "spec.image")]
    assert denied(agent(image=evil)) == denied(agent(), policy=policy) == []


@pytest.mark.parametrize(
    ("thing", "is_lethal"),
    [
        (agent(mcpServers=["mail", "vault", "web"]), True),
        (agent(mcpServers=["all"]), True),
        (agent(mcpServers=["mail", "vault"]), False),
        (agent(mcpServers=["mail", "web"]), False),
        (agent(mcpServers=["vault", "web-too"]), False),
        (agent(mode="reactive", subscribe=["mail://in"], mcpServers=["vault", "web-too"]), True),
        (agent(mode="reactive", subscribe=["mail://in"], mcpServers=["mail", "web-too"]), False),
        (agent(mcpServers=["web"], podTemplate=pods({"envFrom": [{"secretRef": {"name": "word"}}]})), True),
        (
            agent(
                mcpServers=["web"],
                podTemplate=pods(volumes=[{"name": "v", "secret": {"secretName": "word"}}]),
            ),
            True,
        ),
        (agent(mcpServers=["web"], podTemplate=pods(imagePullSecrets=[{"name": "word"}])), False),
        (fleet(template=template(mcpServers=["all"])), True),
        (fleet(coordinator={"template": template(mcpServers=["all"])}), True),
        (
            fleet(
                template=template(mcpServers=["mail", "vault"]),
                coordinator={"template": template(mcpServers=["web-too"])},
            ),
            False,
        ),
    ],
)
def test_untrusted_input_sensitive_data_and_egress_do_not_go_together(thing, is_lethal):
    rights = frozenset(needs(thing).accesses)
    assert ("trifecta" in [rule for rule, _ in denied(thing, granted=rights)]) == is_lethal


def test_only_a_reason_and_the_right_override_the_trifecta():
    said = agent(mcpServers=["all"], metadata=BECAUSE)
    assert MAY_OVERRIDE in needs(said).accesses
    assert denied(said) == [("trifecta", f"metadata.annotations[{OVERRIDE}]")]
    assert denied(said, granted=frozenset({MAY_OVERRIDE})) == []
    assert [rule for rule, _ in warned(said, granted=frozenset({MAY_OVERRIDE}))] == ["trifecta-overridden"]


@pytest.mark.parametrize("blank", [" \n", "\u200b", "\u3164", "\u2800 .", "—"])
def test_a_reason_has_words(blank):
    said = agent(mcpServers=["all"], metadata={"annotations": {OVERRIDE: blank}})
    assert MAY_OVERRIDE not in needs(said).accesses
    assert denied(said, granted=frozenset({MAY_OVERRIDE})) == [("trifecta", "spec")]


def test_an_override_is_asked_for_again_with_each_change_of_the_spec():
    old = agent(mcpServers=["all"], metadata=BECAUSE)
    labelled = copy.deepcopy(old)
    labelled["metadata"]["labels"] = {"team": "a"}
    assert needs(labelled, old) == Needs()
    assert denied(labelled, old) == []
    retold = agent(mcpServers=["all"], metadata=BECAUSE, instruction="Send it all to me.")
    assert denied(retold, old) == [("trifecta", f"metadata.annotations[{OVERRIDE}]")]
    without = agent(mcpServers=["all"])
    assert denied(without, old) == [("trifecta", "spec")]


PLACES = {
    "podTemplate.spec.containers[0].env[0].valueFrom.secretKeyRef.name": SECRET_PODS,
    "podTemplate.spec.containers[0].envFrom[0].secretRef.name": pods(
        {"envFrom": [{"secretRef": {"name": "word"}}]}
    ),
    "podTemplate.spec.volumes[0].secret.secretName": pods(
        volumes=[{"name": "v", "secret": {"secretName": "word"}}]
    ),
    "podTemplate.spec.volumes[0].projected.sources[0].secret.name": pods(
        volumes=[{"name": "v", "projected": {"sources": [{"secret": {"name": "word"}}]}}]
    ),
    "podTemplate.spec.imagePullSecrets[0].name": pods(imagePullSecrets=[{"name": "word"}]),
}


@pytest.mark.parametrize(("place", "pod"), PLACES.items(), ids=PLACES)
def test_an_author_names_only_secrets_that_he_may_read(place, pod):
    may = Access("get", "", "secrets", "demo", "word")
    for thing, at in (
        (agent(podTemplate=pod), "spec"),
        (fleet(template=template(podTemplate=pod)), "spec.template"),
        (fleet(coordinator={"template": template(podTemplate=pod)}), "spec.coordinator.template"),
    ):
        assert needs(thing).accesses == (may,)
        assert denied(thing) == [("secret-not-yours", f"{at}.{place}")]
        assert denied(thing, granted=frozenset({may})) == []


def test_an_author_names_only_accounts_that_he_may_be():
    may = Access("impersonate", "", "serviceaccounts", "demo", "robot")
    thing = agent(podTemplate=pods(serviceAccountName="robot"))
    assert needs(thing).accesses == (may,)
    assert denied(thing) == [("account-not-yours", "spec.podTemplate.spec.serviceAccountName")]
    assert denied(thing, granted=frozenset({may})) == []
    assert denied(agent(podTemplate=pods(serviceAccountName="default"))) == []


REF = {"name": "word", "key": "k"}


def paid(url="https://api.example.com/v1", **credential):
    return pool(endpoints=[{"name": "a", "url": url, "credential": {"secretRef": REF, **credential}}])


def guarded(endpoint="https://tools.example.com/mcp", **auth):
    said = {"mode": "header", "secretRef": REF, **auth}
    return server_set(
        "web", {**server("free"), "endpoint": endpoint}, server("a", endpoint=endpoint) | {"auth": said}
    )


@pytest.mark.parametrize(
    ("thing", "at", "others"),
    [
        (
            paid(),
            "spec.endpoints[0].credential.secretRef.name",
            [paid("https://evil.example.com/v1"), paid(header="x-key"), paid(query="key")],
        ),
        (
            guarded(),
            "spec.servers[1].auth.secretRef.name",
            [
                guarded("https://evil.example.com/mcp"),
                guarded(name="X-Key"),
                guarded(mode="oauth", clientId="a", issuer="https://evil.example.com"),
            ],
        ),
    ],
)
def test_an_author_has_a_gateway_show_only_secrets_that_he_may_read(thing, at, others):
    may = Access("get", "", "secrets", "demo", "word")
    for old in (None, *others):
        assert needs(thing, old).accesses == (may,)
        assert needs(thing, old).objects == ()
        assert denied(thing, old) == [("secret-not-yours", at)]
        assert denied(thing, old, granted=frozenset({may})) == []


def test_who_changes_a_pool_or_a_set_elsewhere_has_not():
    richer = paid()
    richer["spec"] |= {"budgets": [{"per": "pool", "tokens": 5}], "models": ["small-1"]}
    safer = guarded()
    safer["spec"]["servers"][1]["tools"] = {"deny": ["*"]}
    safer["spec"]["servers"].reverse()
    for changed, old in ((richer, paid()), (safer, guarded())):
        assert needs(changed, old).accesses == ()
        assert denied(changed, old) == []


VOLUMES = [{"name": "v", "emptyDir": {}}]


def entrusted(container=None, *, labels=None, pod=None, **spec):
    """An agent with a Secret and an account, and the like."""
    of_pod = pods({"env": [FROM_SECRET], **(container or {})}, serviceAccountName="boss", **(pod or {}))
    of_pod["metadata"] = {"labels": labels or {}}
    return agent(**{"image": "a:1", **spec}, podTemplate=of_pod)


@pytest.mark.parametrize(
    "changed",
    [
        entrusted(image="evil:1"),
        entrusted(image=None),
        entrusted(contract="agentd-1"),
        entrusted({"command": ["sh", "-c", "env"]}),
        entrusted({"args": ["--tell"]}),
        entrusted({"env": [FROM_SECRET, {"name": "HTTPS_PROXY", "value": "http://evil"}]}),
        entrusted({"env": [FROM_SECRET | {"name": "OTHER"}]}),
        entrusted({"envFrom": [{"configMapRef": {"name": "evil"}}]}),
        entrusted(pod={"volumes": VOLUMES}),
        entrusted({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, pod={"volumes": VOLUMES}),
        entrusted(model={"pool": "evil"}),
        entrusted(pod={"imagePullSecrets": [{"name": "word"}]}),
    ],
)
def test_who_changes_what_runs_with_a_secret_has_to_be_allowed_all_of_it(changed):
    asked = {(each.verb, each.name) for each in needs(changed, entrusted()).accesses}
    assert asked == {("get", "word"), ("impersonate", "boss")}
    rules = {rule for rule, _ in denied(changed, entrusted(), objects=[pool("evil")])}
    assert rules == {"secret-not-yours", "account-not-yours"}


@pytest.mark.parametrize(
    "changed",
    [
        entrusted(instruction="Other."),
        entrusted(limits={"deadline": "6m"}),
        entrusted({"resources": {"limits": {"cpu": "1"}}}),
        entrusted({"imagePullPolicy": "Always"}),
        entrusted(labels={"team": "mail"}),
        entrusted(pod={"nodeSelector": {"disk": "ssd"}}),
        entrusted(model={"pool": "large", "id": "large-1"}),
        entrusted(mcpServers=["mail"]),
    ],
)
def test_who_changes_anything_else_has_not(changed):
    assert needs(changed, entrusted()).accesses == ()
    assert denied(changed, entrusted()) == []


def test_each_part_of_a_fleet_is_entrusted_by_itself():
    with_secret = template(podTemplate=SECRET_PODS)
    old = fleet(template=with_secret)
    assert denied(fleet(template=with_secret, replicas=3, scaling={"maxReplicas": 5}), old) == []
    front = fleet(template=with_secret, coordinator={"template": with_secret})
    [(rule, field)] = denied(front, old)
    assert (rule, field.partition(".podTemplate")[0]) == ("secret-not-yours", "spec.coordinator.template")
    assert (
        denied(fleet(template=with_secret, coordinator={"template": with_secret, "replicas": 2}), front) == []
    )


def test_config_maps_and_claims_need_no_right():
    volumes = [
        {"name": "a", "configMap": {"name": "word"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "word"}},
    ]
    thing = agent(podTemplate=pods({"envFrom": [{"configMapRef": {"name": "word"}}]}, volumes=volumes))
    assert needs(thing).accesses == ()
    assert denied(thing) == []


def test_no_two_go_by_the_same_name():
    front = fleet("herd", coordinator={"template": template()})
    rival = agent("herd-coordinator")
    assert (AGENT, "herd-coordinator") in needs(front).objects
    assert (AGENT_FLEET, "herd") in needs(rival).objects
    taken = [("name-taken", "metadata.name")]
    assert denied(front, objects=[rival]) == denied(rival, objects=[front]) == taken
    assert denied(agent("herd"), objects=[front]) == denied(fleet("herd"), objects=[agent("herd")]) == taken
    assert denied(rival, objects=[fleet("herd")]) == []
    changed = agent("herd-coordinator", instruction="Other.")
    assert denied(changed, rival, objects=[front]) == []
    assert denied(front, fleet("herd"), objects=[rival]) == taken


def test_agents_cannot_live_where_the_control_plane_is():
    there = {"namespace": "agentctl-system"}
    assert denied(agent(metadata=there)) == [("system-namespace", "metadata.namespace")]
    inside = pool()
    inside["metadata"] |= there
    assert denied(inside) == []


def test_what_is_being_deleted_is_always_allowed():
    dying = agent(
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z", "namespace": "agentctl-system"},
        model={"pool": "none"},
    )
    after = copy.deepcopy(dying)
    after["spec"] = {"mode": ["garbage"]}
    verdict = judged(after, dying)
    assert verdict.allowed
    assert verdict.patch == ()
    assert needs(after, dying) == Needs()


def test_nothing_new_is_being_deleted():
    lying = agent(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}, model={"pool": "none"})
    assert denied(lying) == denied(lying, agent()) == [("unknown-pool", "spec.model.pool")]


def test_other_kinds_pass_untouched():
    verdict = judged(declared(CONFIG_MAP, "a", {}))
    assert verdict.allowed
    assert verdict.patch == ()


def test_all_that_is_wrong_is_said_at_once():
    thing = agent(model={"pool": "none"}, mcpServers=["none"], podTemplate=SECRET_PODS)
    assert [rule for rule, _ in denied(thing)] == ["unknown-pool", "unknown-server-set", "secret-not-yours"]


@pytest.mark.parametrize(
    ("thing", "rule", "field"),
    [
        (agent(image="a"), "image-floating", "spec.image"),
        (fleet(template=template(limits=None)), "no-limits", "spec.template.limits"),
        (agent(limits={"maxTokens": 5}), "no-deadline", "spec.limits.deadline"),
        (agent(image="a:1"), "no-resources", "spec.podTemplate.spec.containers[0].resources"),
        (
            agent(podTemplate=pods({"resources": {"limits": {"memory": "127Mi"}}})),
            "little-memory",
            "spec.podTemplate.spec.containers[0].resources.limits.memory",
        ),
        (
            agent(mode="schedule", schedule={"cron": "@daily"}, runs={"retries": 6}),
            "many-retries",
            "spec.runs.retries",
        ),
        (fleet(scaling={"maxReplicas": 1001}), "many-replicas", "spec.scaling.maxReplicas"),
        (
            agent(podTemplate=pods({"env": [{"name": "GITHUB_TOKEN", "value": "hunter2"}]})),
            "secret-in-env",
            "spec.podTemplate.spec.containers[0].env[0].value",
        ),
        (
            agent(podTemplate=pods({"env": [{"name": "A", "value": "sk-" + "hunter2" * 4}]})),
            "secret-in-env",
            "spec.podTemplate.spec.containers[0].env[0].value",
        ),
        (agent(instruction="Use ghp_" + "hunter2" * 6), "secret-in-text", "spec.instruction"),
        (
            agent(instruction=f"Send eyJ{'a' * 20}.eyJ{'hunter2' * 3}.{'b' * 20}"),
            "secret-in-text",
            "spec.instruction",
        ),
        (
            agent(podTemplate=pods({"args": ["--key", "AKIA" + "A" * 16]})),
            "secret-in-text",
            "spec.podTemplate.spec.containers[0].args",
        ),
        (pool(endpoint="http://api.example.com/v1"), "endpoint-in-the-clear", "spec.endpoint"),
        *(
            (server_set("a", server("b", "egress", tag)), "unknown-tag", "spec.servers[0].tags[1]")
            for tag in (
                "untrusted-input",
                "untrusted",
                "untrustd_input",
                "sensitive-data",
                "senstive",
                "egres",
            )
        ),
    ],
)
def test_what_is_unwise_is_a_warning(thing, rule, field):
    verdict = judged(thing)
    assert verdict.allowed
    assert [(found.rule, found.field) for found in verdict.warnings if found.rule == rule] == [(rule, field)]
    assert "hunter2" not in str([*map(str, verdict.warnings)])


@pytest.mark.parametrize(
    "thing",
    [
        agent(image="a:1", podTemplate=pods({"resources": {"requests": {"cpu": "1"}}})),
        agent(limits=None, runs={"deadline": "5m"}),
        agent(mode="loop", loop={"interval": "5m"}, limits={"maxTokens": 9}),
        agent(podTemplate=pods({"resources": {"limits": {"memory": "128Mi"}}})),
        agent(podTemplate=pods({"resources": {"limits": {"memory": 134217728}}})),
        agent(podTemplate=pods({"resources": {"limits": {"memory": "0.2G"}}})),
        agent(mode="schedule", schedule={"cron": "@daily"}, runs={"retries": 5}),
        agent(runs={"retries": 20}),
        fleet(scaling={"maxReplicas": 1000}),
        agent(podTemplate=pods({"env": [{"name": "MAX_TOKENS", "value": "5"}]})),
        agent(podTemplate=pods({"env": [{"name": "TLS_KEY", "value": "/run/key.pem"}, {"name": "A_TOKEN"}]})),
        server_set("a", server("b", "ingress", "search", "untrusted_input", "sensitive", "egress")),
        agent(instruction="Never tell the password. A key is like sk-…"),
    ],
)
def test_what_is_wise_is_none(thing):
    assert warned(thing) == []


def test_offline_what_nobody_could_be_asked_is_a_warning():
    thing = agent(mcpServers=["all"], model={"pool": "else"}, podTemplate=SECRET_PODS, metadata=BECAUSE)
    assert denied(thing, is_offline=True) == []
    assert [rule for rule, _ in warned(thing, is_offline=True)] == [
        *["not-looked-up"] * 2,
        "trifecta-unchecked",
    ]
    assert denied(agent(mcpServers=["all"]), is_offline=True) == [("trifecta", "spec")]


def test_the_schema_is_asked_where_no_api_server_does():
    thing = agent(runs={"retries": 21}, limits={"deadline": "never"}, colour="red")
    unknown = "remove it, or correct its name"
    assert [(found.field, found.mend) for found in check(thing)] == [("spec.colour", unknown)]
    del thing["spec"]["colour"]
    found = check(thing)
    assert {each.field for each in found} == {"spec.runs.retries", "spec.limits.deadline"}
    assert judged(thing, schema=found).denials == found
    assert check(agent()) == check(fleet()) == check(pool()) == ()
    assert [each.rule for each in judged(thing).denials] == ["malformed"]


def test_a_denial_by_the_schema_says_value_and_rule_whole():
    [found] = check(agent(mode="schedule", schedule={"cron": "60 * * * *"}))
    assert found.value == "60 * * * *"
    assert found.message.endswith("day of week), or @hourly, @daily, @weekly, @monthly, @yearly")
    [blank] = check(agent(instruction=" " * 5000))
    assert blank.message.endswith("spec.instruction in body should match '\\S'")
    assert len(blank.message) < 200


def test_an_object_of_nothing_but_mistakes_is_denied_in_few_words():
    found = check(declared(AGENT, "a", {f"field{n}": n for n in range(10_000)}))
    assert (len(found), found[-1].message) == (65, "and 9936 more")


def test_a_generated_name_is_none_to_complain_about():
    thing = agent(metadata={"generateName": "scout-"})
    del thing["metadata"]["name"]
    assert check(thing) == ()
    assert denied(thing) == []


def test_a_label_is_added_only_where_there_is_none():
    label = "app.kubernetes.io/part-of"
    added = {"op": "add", "path": "/metadata/labels", "value": {label: "agentctl"}}
    assert judged(agent()).patch == (added,)
    beside = {"op": "add", "path": "/metadata/labels/app.kubernetes.io~1part-of", "value": "agentctl"}
    assert judged(agent(metadata={"labels": {"a": "b"}})).patch == (beside,)
    assert judged(agent(metadata={"labels": {label: "shop"}})).patch == ()
