"""Budgets and records as messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from agentctl.modelgateway.v1 import modelgateway_service_pb2 as pb

from .budgets import Key, Record, Scope, Usage
from .pools import Pool, span


def budgets_to_pb(pools: Iterable[Pool], usage: Iterable[Usage]) -> list[pb.Budget]:
    """Those that have been drawn on, and those of the pools themselves, by pool, scope and name."""
    limits: dict[tuple[str, Scope, int], int] = {}
    used: dict[Key, Usage] = {}
    for pool in pools:
        for budget in pool.budgets:
            scope, window = Scope[budget.per.upper()], span(budget.window)
            limits[pool.name, scope, window] = budget.tokens
            if scope is Scope.POOL:
                key = Key(pool.namespace, pool.name, scope, "", window)
                used[key] = Usage(key, 0, 0, None)
    used |= {each.key: each for each in usage}
    told = []
    for key in sorted(used, key=lambda key: (key.pool, key.scope, key.name, key.window)):
        limit = limits.get((key.pool, key.scope, key.window))
        if limit is None:  # the pool has another budget by now
            continue
        each = used[key]
        budget_pb = pb.Budget(
            pool=key.pool,
            scope=pb.Scope.ValueType(key.scope),
            name=key.name,
            limit=limit,
            used=each.used,
            reserved=each.reserved,
        )
        if key.window:
            budget_pb.window.FromTimedelta(timedelta(seconds=key.window))
        if each.resets_at is not None:
            budget_pb.resets_at.FromDatetime(datetime.fromtimestamp(each.resets_at, UTC))
        told.append(budget_pb)
    return told


def record_to_pb(record: Record) -> pb.CallRecord:
    """One call."""
    told = pb.CallRecord(
        pool=record.pool,
        endpoint=record.endpoint,
        caller=record.caller,
        model=record.model,
        # messages of Anthropic's API have no number here
        operation=pb.Operation.ValueType(
            record.operation if record.operation in pb.Operation.values() else 0
        ),
        status=record.status,
        error=record.error,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_tokens=record.cached_tokens,
        estimated=record.estimated,
        attempts=record.attempts,
    )
    told.started_at.FromDatetime(datetime.fromtimestamp(record.started_at, UTC))
    told.duration.FromTimedelta(timedelta(seconds=record.seconds))
    if record.first_byte is not None:
        told.first_byte.FromTimedelta(timedelta(seconds=record.first_byte))
    return told
