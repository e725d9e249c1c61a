"""What a review knows besides the object, and what has to be looked up for it.

Whoever asks does three steps: `needs`, then gather that into `Facts`, then `rules.review`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from libs.cluster import Access, Object
from libs.cluster.kinds import AGENT, AGENT_FLEET, MCP_SERVER_SET, MODEL_POOL, Kind
from libs.resources.crds import SYSTEM_NAMESPACE
from libs.resources.names import COORDINATOR, agent_names

from . import images, reading
from .verdict import Finding

Reference = tuple[Kind, str]
"""A kind, and a name in the namespace of the object under review."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What this installation wants. ValueError if a pattern is none (see `images.Pattern`)."""

    allowed_images: Sequence[str] = ()
    """Patterns such as ghcr.io/acme/** or docker.io/library/python:3.*; empty: any image."""
    trust_domain: str = ""
    """Of the agents' certificates; "": whether an agent's DNS name fits is not looked at."""
    system_namespace: str = SYSTEM_NAMESPACE
    """Where the control plane lives, and no agent may."""

    def __post_init__(self) -> None:
        for each in self.allowed_images:
            images.pattern(each)


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be looked up before a review. Often nothing."""

    namespace: str = ""
    """Of all the lookups."""
    objects: Sequence[Reference] = ()
    """ModelPools, MCPServerSets, Agents and AgentFleets, each by name."""
    accesses: Sequence[Access] = ()
    """What to ask of the author's rights."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The answers. What could not be looked up has to be an UnavailableError before the review: what is
    absent here is not there, or not granted."""

    policy: Policy = field(default_factory=Policy)
    objects: Mapping[Reference, Object] = field(default_factory=dict)
    """Those of the needed objects that are there."""
    granted: frozenset[Access] = frozenset()
    """Those of the needed accesses that the author has."""
    schema: Sequence[Finding] | None = None
    """What `schema.check` found, to be among the denials; None: an API server checks the schema itself."""
    is_offline: bool = False
    """Nobody could be asked: objects that are absent and all accesses are unknown, which is a warning."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule is asked about."""

    thing: Object
    kind: Kind
    spec: reading.Spec
    old: Object | None
    before: reading.Spec | None
    """The old spec, if there was one that can be read."""
    facts: Facts

    @property
    def parts(self) -> dict[str, reading.Part]:
        """What it makes pods of, by where that is said."""
        return reading.parts(self.spec)

    def knows(self, reference: Reference) -> bool:
        """Whether it is known if that object is there."""
        return reference in self.facts.objects or not self.facts.is_offline


def case(thing: Object, old: Object | None, facts: Facts) -> Case | None:
    """None if no rule on the spec has to be asked: it is of another kind, being deleted, or changed
    elsewhere. `thing` is readable. MalformedError."""
    kind = reading.kind_of(thing)
    old = old if reading.is_readable(old) else None
    if kind is None or reading.is_leaving(thing, old) or reading.is_untouched(thing, old):
        return None
    before = None
    if old is not None and reading.kind_of(old) == kind:
        with suppress(reading.MalformedError):
            before = reading.read(old, kind)
    return Case(thing, kind, reading.read(thing, kind), old, before, facts)


def needs(thing: Object, old: Object | None = None) -> Needs:
    """What to look up for a review of `thing`, which is to follow on `old` (None: it is new). Both may be
    malformed."""
    if not reading.is_readable(thing):
        return Needs()
    try:
        about = case(thing, old, Facts())
    except reading.MalformedError:
        return Needs()
    if about is None:
        return Needs()
    accesses, named = [access for _, access in rights(about)], list[Reference]()
    if about.parts:
        named = [*(each for _, each in named_objects(about)), *namesakes(about)]
        if reading.reason(thing):
            accesses.append(override(about))
    unique_objects, unique_accesses = tuple(dict.fromkeys(named)), tuple(dict.fromkeys(accesses))
    return Needs(reading.text(thing, "namespace"), unique_objects, unique_accesses)


def named_objects(about: Case) -> Iterator[tuple[str, Reference]]:
    """The pools and server sets that it names, and where."""
    for at, part in about.parts.items():
        if part.model:
            yield f"{at}.model.pool", (MODEL_POOL, part.model.pool)
        for index, name in enumerate(part.mcp_servers):
            yield f"{at}.mcpServers[{index}]", (MCP_SERVER_SET, name)


def namesakes(about: Case) -> Iterator[Reference]:
    """Agents and fleets whose pods might go by a name that its own would."""
    name = reading.text(about.thing, "name")
    wanted = [(kind, each) for each in sorted(names(about.thing)) for kind in (AGENT, AGENT_FLEET)]
    wanted.append((AGENT_FLEET, name.removesuffix(COORDINATOR)))
    return (each for each in wanted if name and each != (about.kind, name))


def names(thing: Object | None) -> frozenset[str]:
    """The agent names that its pods go by; none if it has no name yet."""
    return agent_names(thing) if thing and reading.text(thing, "name") else frozenset()


def rights(about: Case) -> Iterator[tuple[str, Access]]:
    """What its author has to be allowed, and where it is said: all that a part names, if what runs there is
    new, and a credential, if it is new to whom it is shown. Else who may not read a Secret could have
    another's agent, or a gateway, send it."""
    namespace = reading.text(about.thing, "namespace")
    shown = [to for _, _, to in reading.credentials(about.before)] if about.before else []
    for where, name, to in reading.credentials(about.spec):
        if to not in shown:
            yield where, Access("get", "", "secrets", namespace, name)
    before = reading.parts(about.before) if about.before else {}
    for at, part in about.parts.items():
        if at in before and reading.runs(part) == reading.runs(before[at]):
            continue
        for where, name in (*reading.secrets(at, part), *reading.pull_secrets(at, part)):
            yield where, Access("get", "", "secrets", namespace, name)
        account = reading.pod(part).service_account_name
        if account not in ("", "default"):  # absent is default
            where = f"{at}.podTemplate.spec.serviceAccountName"
            yield where, Access("impersonate", "", "serviceaccounts", namespace, account)


def override(about: Case) -> Access:
    """The right to override the trifecta rule."""
    thing, kind = about.thing, about.kind
    at = reading.text(thing, "namespace"), reading.text(thing, "name")
    return Access("override", kind.group, kind.plural, *at, subresource="trifecta")
