"""What is legal but unwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches

from libs.cluster import Object
from libs.findings import shortened
from libs.resources.agent import AgentSpec
from libs.resources.fleet import FleetSpec
from libs.resources.pool import TRIFECTA, ServerSetSpec

from . import images, reading
from .context import Case
from .verdict import Finding

_LEAST_MEMORY = 128 * 2**20
_MANY_RETRIES = 5
_MANY_AGENTS = 1000
_NEARLY = 0.8  # a typo or two; ingress is not nearly egress
_LONGEST_NAME, _LONGEST_VALUE = 253, 32768  # of a variable, says the CRD
_RUNS = ("once", "workflow", "schedule")
_QUANTITY = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:([KMGTPE]i)|([numkMGTPE])|[eE]([-+]?[0-9]{1,2}))?",
    re.ASCII,
)
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SECRET_NAME = re.compile(r"(?i)(?:^|[_.-])(?:api-?key|key|token|secret|password|passwd|credentials?)$")
_KEY = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[\w-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}\b|AIza[\w-]{35})"
    r"|(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"  # \b would try each word of a long one: quadratic
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.ASCII,
)
"""Of the kinds that leak most: model providers, source hosts, chats, clouds, JWTs, PEM."""


def _floating(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        if part.image and _is_floating(part.image):
            message = "which image this means changes, and pods of one agent may differ"
            yield Finding(
                "image-floating", f"{at}.image", shortened(part.image), message, "add a tag or a digest"
            )


def _is_floating(image: str) -> bool:
    try:
        return images.parsed(image).is_floating
    except ValueError:
        return False


def _limits(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        if part.model and part.limits is None and isinstance(case.spec, FleetSpec):
            message = "nothing but the 50 turns bounds what an item may cost"
            yield Finding("no-limits", f"{at}.limits", "", message, "set maxTokens and deadline")


def _deadline(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        is_run = isinstance(part, AgentSpec) and part.mode in _RUNS
        has_one = bool(part.limits and part.limits.deadline)
        if isinstance(part, AgentSpec) and part.runs and part.runs.deadline:
            has_one = True
        if is_run and not has_one:
            message = "a run that hangs is never ended"
            yield Finding("no-deadline", f"{at}.limits.deadline", "", message, "set it, or runs.deadline")


def _resources(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        where = f"{at}.podTemplate.spec.containers[0].resources"
        containers = reading.pod(part).containers
        said = containers[0].resources if containers else {}
        if part.image and not said:
            message = "it gets 100m CPU and 128Mi whatever its image needs, and no upper limit"
            yield Finding("no-resources", where, "", message, "set requests and limits")
        limits = said.get("limits")
        memory = limits.get("memory") if isinstance(limits, dict) else None
        amount = _amount(memory)
        if amount is not None and amount < _LEAST_MEMORY:
            message = "an agent seldom fits into so little, and is killed"
            yield Finding(
                "little-memory", f"{where}.limits.memory", shortened(memory), message, "use 128Mi or more"
            )


def _amount(quantity: object) -> float | None:
    """A Kubernetes quantity; None if it is none."""
    match = _QUANTITY.fullmatch(str(quantity)) if isinstance(quantity, str | int) else None
    if match is None:
        return None
    number, binary, decimal, exponent = match.groups()
    if binary:
        return float(number) * 1024.0 ** ("KMGTPE".index(binary[0]) + 1)
    return float(number) * 10.0 ** (_POWERS[decimal] if decimal else int(exponent or 0))


def _numbers(case: Case) -> Iterator[Finding]:
    match case.spec:
        case AgentSpec(mode="schedule", runs=runs) if runs and runs.retries > _MANY_RETRIES:
            message = "one bad run may take the time of many that follow, none of which starts meanwhile"
            mend = f"use at most {_MANY_RETRIES}: the next run is a retry too"
            yield Finding("many-retries", "spec.runs.retries", str(runs.retries), message, mend)
        case FleetSpec(scaling=scaling) if scaling.max_replicas > _MANY_AGENTS:
            message = "a full queue may fill the cluster and spend without end"
            mend = f"use at most {_MANY_AGENTS} unless the nodes and the budget are there"
            where = "spec.scaling.maxReplicas"
            yield Finding("many-replicas", where, str(scaling.max_replicas), message, mend)


def _variables(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        for n, container in enumerate(reading.pod(part).containers):
            for index, variable in reading.objects(container.env):
                if _is_secret(variable):
                    where = f"{at}.podTemplate.spec.containers[{n}].env[{index}].value"
                    message = f"{shortened(variable.get('name'))} looks like a secret, and all who may read "
                    message += "the object can read it"
                    yield Finding(
                        "secret-in-env", where, "", message, "put it into a Secret; use secretKeyRef"
                    )


def _is_secret(variable: Object) -> bool:
    name, value = variable.get("name"), variable.get("value")
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    is_named_so = bool(_SECRET_NAME.search(name[:_LONGEST_NAME]))
    is_word = bool(value) and not value.startswith(("/", "$("))
    return (is_named_so and is_word) or bool(_KEY.search(value[:_LONGEST_VALUE]))


def _texts(case: Case) -> Iterator[Finding]:
    for at, part in case.parts.items():
        texts = {"instruction": part.instruction}
        if isinstance(part, AgentSpec) and part.workflow:
            texts["workflow.inline"] = part.workflow.inline
        for n, container in enumerate(reading.pod(part).containers):
            inside = f"podTemplate.spec.containers[{n}]"
            texts[f"{inside}.command"] = "\n".join(container.command)
            texts[f"{inside}.args"] = "\n".join(container.args)
        for field, text in texts.items():
            if _KEY.search(text):
                message = "holds what looks like a key, and all who may read the object can read it"
                mend = "revoke it, and put a new one into a Secret"
                yield Finding("secret-in-text", f"{at}.{field}", "", message, mend)


def _tags(case: Case) -> Iterator[Finding]:
    for index, server in enumerate(case.spec.servers if isinstance(case.spec, ServerSetSpec) else ()):
        for n, tag in enumerate(server.tags):
            if meant := _meant(tag):
                message = f"the trifecta rule does not know it; it knows {', '.join(TRIFECTA)}"
                where = f"spec.servers[{index}].tags[{n}]"
                yield Finding(
                    "unknown-tag", where, shortened(tag), message, f"write {meant}, if that is meant"
                )


def _meant(tag: str) -> str:
    """The tag of the trifecta that it nearly is; "" if none."""
    longer = [leg for leg in TRIFECTA if tag.startswith(leg.partition("_")[0])]
    nearly = longer or get_close_matches(tag, TRIFECTA, 1, _NEARLY)
    return nearly[0] if nearly and tag not in TRIFECTA else ""


RULES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _floating,
    _limits,
    _deadline,
    _resources,
    _numbers,
    _variables,
    _texts,
    _tags,
)
