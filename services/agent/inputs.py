"""The files that the environment names, read before anything else happens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from libs.ids import new_id

from .settings import Settings

if TYPE_CHECKING:
    from .modes.kept import Kept
    from .modes.steps import Plan


@dataclass(frozen=True, slots=True)
class Inputs:
    """What there is to do."""

    instruction: str
    run_id: str
    """Of the only run, in the modes that have one."""
    plan: Plan | None = None
    kept: Kept | None = None


def read(settings: Settings) -> Inputs:
    """ValueError has a line for each thing that is wrong."""
    for name, file in (
        ("OPENAI_API_KEY_FILE", settings.api_key_file),
        ("AGENT_MODEL_CA_FILE", settings.model_ca_file),
    ):
        try:
            if file:
                file.read_bytes()
        except OSError as error:
            raise ValueError(f"{name}: {error}") from error
    run_id = settings.run_id or new_id()
    if settings.workflow_file is None:
        return Inputs(settings.prompt(), run_id)
    from .modes import kept, steps  # costly

    try:
        plan = steps.read(settings.workflow_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"AGENT_WORKFLOW_FILE: {error}") from error
    problems = [
        f"AGENT_MCP_SERVERS: has no {name}, whose tool the workflow calls"
        for name in sorted(plan.servers - {server.name for server in settings.servers})
    ]
    if plan.asks_a_model and not settings.model:
        problems.append("AGENT_MODEL: is empty, and the workflow has a step that asks a model")
    if settings.state_dir and not (settings.state_dir.is_dir() and os.access(settings.state_dir, os.W_OK)):
        problems.append(f"AGENT_STATE_DIR: {settings.state_dir} is no folder that we may write to")
    if problems:
        raise ValueError("\n".join(problems))
    store = kept.Kept(settings.state_dir, run_id, plan.digest) if settings.state_dir else None
    return Inputs(settings.prompt(), run_id, plan, store)
