"""The rules, and the verdict of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from ipaddress import ip_address
from urllib.parse import urlsplit

from cronsim import CronSim, CronSimError

from libs.cluster import Access, Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET, MODEL_POOL
from libs.cluster.local.rules import zone_of
from libs.findings import shortened
from libs.resources.agent import AgentSpec
from libs.resources.crds import SYSTEM_RULE
from libs.resources.names import LONGEST_DNS_NAME
from libs.resources.pool import PoolSpec, ServerSetSpec

from . import advice, defaults, images, reading, trifecta
from .context import Case, Facts, case, named_objects, names, namesakes, rights
from .verdict import Finding, Verdict

Rule = Callable[[Case], Iterator[Finding]]

_UID_CHARS = 36
_CHECKED_FROM = datetime(2000, 1, 1)  # any: whether a schedule ever fires does not depend on it


def review(thing: Object, old: Object | None, facts: Facts) -> Verdict:
    """All that is to be said of `thing`, which is to follow on `old` (None: it is new). The rules on the spec
    are not asked about a change that leaves it as it is, and the override of the trifecta too."""
    if reading.is_leaving(thing, old):
        return Verdict()
    schema = tuple(facts.schema or ())
    if not reading.is_readable(thing):
        return Verdict(schema or (_malformed("object: is none, too deep, or no Unicode"),))
    patch, place = defaults.patch(thing), tuple(_place(thing, facts))
    try:
        about = case(thing, old, facts)
    except reading.MalformedError as error:
        return Verdict((*(schema or (_malformed(str(error)),)), *place), (), patch)
    if about is None:
        return Verdict((*schema, *place), (), patch)
    denials = (*schema, *place, *(found for rule in DENYING for found in rule(about)))
    warnings = tuple(found for rule in WARNING for found in rule(about))
    return Verdict(tuple(dict.fromkeys(denials)), tuple(dict.fromkeys(warnings)), patch)


def _malformed(error: str) -> Finding:
    where, _, what = error.partition(": ")
    return Finding("malformed", where, "", what, "write it as `kubectl explain` says")


def _place(thing: Object, facts: Facts) -> Iterator[Finding]:
    if reading.kind_of(thing) not in (AGENT, AGENT_FLEET):
        return
    namespace = reading.text(thing, "namespace")
    if namespace == facts.policy.system_namespace:
        mend = "declare it in another namespace"
        yield Finding("system-namespace", "metadata.namespace", namespace, SYSTEM_RULE.message, mend)


def _image(case: Case) -> Iterator[Finding]:
    allowed = case.facts.policy.allowed_images
    for at, part in case.parts.items():
        if not part.image:
            continue
        where, value = f"{at}.image", shortened(part.image)
        try:
            image = images.parsed(part.image)
        except ValueError as error:
            mend = "write it as registry.example.com/team/agent:1.2"
            yield Finding("image-invalid", where, value, str(error), mend)
            continue
        if allowed and not any(images.pattern(each).allows(image) for each in allowed):
            message = f"is none of the images that are allowed here: {shortened(', '.join(allowed))}"
            mend = "use one of those, or have the administrator allow it"
            yield Finding("image-not-allowed", where, value, message, mend)


def _existence(case: Case) -> Iterator[Finding]:
    for at, (kind, name) in named_objects(case):
        if (kind, name) not in case.facts.objects and case.knows((kind, name)):
            rule = "unknown-pool" if kind == MODEL_POOL else "unknown-server-set"
            message = f"there is no {kind.name} of that name in this namespace"
            yield Finding(rule, at, shortened(name), message, "create it first, or name another")


def _model(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        pool = case.facts.objects.get((MODEL_POOL, part.model.pool)) if part.model else None
        if part.model and part.model.id and pool is not None:
            models = reading.models(pool)
            if part.model.id not in models:
                yield Finding(
                    "unknown-model",
                    f"{at}.model.id",
                    shortened(part.model.id),
                    f"ModelPool {part.model.pool} has no such model; it has {shortened(', '.join(models))}",
                    "name one of those, or leave it out for the first",
                )


def _servers(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        seen: dict[str, str] = {}
        for index, name in enumerate(part.mcp_servers):
            for server in reading.servers(case.facts.objects.get((MCP_SERVER_SET, name), {})):
                if seen.setdefault(server.name, name) != name:
                    message = f"{seen[server.name]} and {name} both have a server {server.name}"
                    where = f"{at}.mcpServers[{index}]"
                    yield Finding(
                        "duplicate-server", where, shortened(name), message, "rename one of the two"
                    )


def _length(case: Case) -> Iterator[Finding]:
    domain, namespace = case.facts.policy.trust_domain, reading.text(case.thing, "namespace")
    around = _UID_CHARS + len(f"..agent.{namespace}.ns.{domain}")
    for name in sorted(names(case.thing)) if case.parts and domain else ():
        over = len(name) + around - LONGEST_DNS_NAME
        if over > 0:  # the CRDs say how long a name may be for all else
            message = f"the DNS names of its agents would be {over} characters too long"
            yield Finding("name-too-long", "metadata.name", shortened(name), message, "shorten it")


def _namesakes(case: Case) -> Iterator[Finding]:
    gained = names(case.thing) - (names(case.old) if case.before is not None else frozenset())
    for reference in dict.fromkeys(namesakes(case)) if case.parts else ():
        other = case.facts.objects.get(reference)
        for name in sorted(gained & names(other)):
            message = f"{reference[0].name} {reference[1]} has pods of the name {name}"
            yield Finding("name-taken", "metadata.name", shortened(name), message, "give it another name")


def _author(case: Case) -> Iterator[Finding]:
    for at, access in rights(case) if not case.facts.is_offline else ():
        if access not in case.facts.granted:
            rule = "secret-not-yours" if access.resource == "secrets" else "account-not-yours"
            message = f"its author may not {_shown(access)} in this namespace, and what gets it is new"
            mend = "name one that its author may use, or let somebody apply it who may"
            yield Finding(rule, at, shortened(access.name), message, mend)


def _shown(access: Access) -> str:
    return f"{access.verb} {access.resource} {shortened(access.name)}"


def _schedule(case: Case) -> Iterator[Finding]:
    schedule = case.spec.schedule if isinstance(case.spec, AgentSpec) else None
    if schedule is None:
        return
    if zone_of(schedule.time_zone) is None:
        message = "there is no such time zone"
        mend = "use an IANA name, such as Europe/Vienna"
        yield Finding(
            "unknown-time-zone", "spec.schedule.timeZone", shortened(schedule.time_zone), message, mend
        )
    if not schedule.cron.startswith("@"):
        try:
            next(CronSim(schedule.cron, _CHECKED_FROM))
        except (CronSimError, StopIteration) as error:
            field = str(error).removeprefix("Bad ") or "moment"
            mend = "keep it within its bounds, and ranges from low to high"
            if field in ("day-of-month", "moment"):
                mend = "name a day that its months have"
            value = shortened(schedule.cron)
            yield Finding("cron-never", "spec.schedule.cron", value, f"its {field} never comes", mend)


def _endpoints(case: Case) -> Iterator[Finding]:
    for at, endpoint in _endpoints_of(case.spec):
        if fault := _fault(endpoint):
            value = "" if "@" in endpoint else shortened(endpoint)
            yield Finding("endpoint-invalid", at, value, *fault)


def _endpoints_of(spec: reading.Spec) -> Iterator[tuple[str, str]]:
    if isinstance(spec, PoolSpec):
        if spec.endpoint is not None:
            yield "spec.endpoint", spec.endpoint
        for index, endpoint in enumerate(spec.endpoints):
            yield f"spec.endpoints[{index}].url", endpoint.url
    if isinstance(spec, ServerSetSpec):
        for index, server in enumerate(spec.servers):
            yield f"spec.servers[{index}].endpoint", server.endpoint


def _fault(endpoint: str) -> tuple[str, str] | None:
    """What is wrong with a URL, and its mend."""
    no_url = "is no http or https URL", "write it as https://host:port/path"
    no_port = "has no such port", "name one from 1 to 65535, or none"
    try:
        url = urlsplit(endpoint)
    except ValueError:  # such as of an IPv6 address that is none
        return no_url
    if url.scheme not in ("http", "https") or not url.hostname:
        return no_url
    if "@" in url.netloc:
        return "has a user", "leave it out, and put the password into a Secret"
    try:
        return no_port if url.port == 0 else None
    except ValueError:
        return no_port


def _in_the_clear(case: Case) -> Iterator[Finding]:
    for at, endpoint in _endpoints_of(case.spec):
        if not _fault(endpoint) and urlsplit(endpoint).scheme == "http" and not _is_loopback(endpoint):
            message = "prompts, data and keys would travel in the clear, so the reference agent refuses it"
            yield Finding("endpoint-in-the-clear", at, shortened(endpoint), message, "use https")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unchecked(case: Case) -> Iterator[Finding]:
    for at, (kind, name) in named_objects(case):
        if not case.knows((kind, name)):
            message = f"whether there is such a {kind.name} was not looked up"
            yield Finding("not-looked-up", at, shortened(name), message, "see to it that it is there")
    for at, access in rights(case) if case.facts.is_offline else ():
        message = f"whether its author may {_shown(access)} was not looked up"
        yield Finding("not-looked-up", at, shortened(access.name), message, "see to it that its author may")


DENYING: tuple[Rule, ...] = (
    _image,
    trifecta.denials,
    _existence,
    _model,
    _servers,
    _length,
    _namesakes,
    _author,
    _schedule,
    _endpoints,
)
"""What they find is against the object."""

WARNING: tuple[Rule, ...] = (_unchecked, trifecta.warnings, _in_the_clear, *advice.RULES)
"""What they find is legal."""
