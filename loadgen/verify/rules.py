"""The rules that one item's story must keep. Pure: records in, violations out.

What is asserted is what the API promises, whatever harm was done meanwhile:

* one owner: a token is granted once; tokens grow with real time; while a lease lives, as its holder must
  believe by `expires_in`, nobody else is granted the item; once a larger token was answered, a smaller one
  changes nothing; and who must believe that his lease lives is not refused;
* settled once: one result, told once, that of the ack that was told OK, by the last grant;
* attempts: an attempt more for each lease that failed or ran out, none for one given back; a lease that ran
  out may be forgiven where there can have been an outage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentctl.coordination.v1 import work_pb2

from ..tally import Violations
from .history import Event, Record, Verdict, endings
from .plan import ATTEMPTS, POISON_ATTEMPTS, is_poison

_SLACK = 5_000_000  # ns: milliseconds on the wire are rounded, and two clocks do not run quite alike
_REFUNDS = 3
_LEASED = (Event.RENEW, Event.FAIL, Event.RELEASE)
_SUCCEEDED, _DEAD = work_pb2.WORK_STATE_SUCCEEDED, work_pb2.WORK_STATE_DEAD


@dataclass(frozen=True)
class Circumstances:
    """What was going on, in time as the history has it."""

    steps: Sequence[tuple[int, int, float]] = ()
    """From, to, and by how many seconds the storage clock was set meanwhile."""
    outages: Sequence[tuple[int, int]] = ()
    """When the store may have been unable to commit for a second."""
    disturbances: Sequence[int] = ()
    """When an answer may have been lost on its way."""

    def forward(self, begin: int, end: int) -> int:
        """By how many ns the storage clock may have been ahead of its time within these."""
        steps = sum(step for since, until, step in self.steps if step > 0 and since < end and until > begin)
        return round(steps * 1e9)

    def calm(self, begin: int, end: int) -> bool:
        """Whether no outage can have ended within these."""
        return not any(since < end and until > begin for since, until in self.outages)

    def lost_answers(self, begin: int, end: int) -> int:
        return sum(begin < when < end for when in self.disturbances)


@dataclass
class Counts:
    """What the stories had in them."""

    grants: int = 0
    regrants: int = 0
    expired: int = 0
    forgiven: int = 0
    late_acks: int = 0
    refused: int = 0
    settled: int = 0
    dead: int = 0


class Judge:
    """Looks at one item after the other."""

    def __init__(self, circumstances: Circumstances) -> None:
        self._circumstances = circumstances
        self.found = Violations()
        self.counts = Counts()

    def judge(self, item: int, accepted: bool, records: Sequence[Record]) -> None:
        """All records of an item, in any order."""
        grants = sorted((r for r in records if r.event == Event.GRANT), key=lambda r: r.token)
        results = [r for r in records if r.event == Event.RESULT]
        uses = [r for r in records if r.event not in (Event.GRANT, Event.RESULT)]
        self.counts.grants += len(grants)
        self.counts.regrants += max(0, len(grants) - 1)
        self._tokens(item, grants)
        self._owners(item, grants, uses)
        self._settles(item, grants, uses, accepted, results)
        if results:
            self._attempts(item, grants, uses, results[0])

    def _tokens(self, item: int, grants: Sequence[Record]) -> None:
        earliest: int | None = None
        for n in range(len(grants) - 1, -1, -1):
            grant = grants[n]
            if earliest is not None and earliest < grant.before:
                self._note("a later grant has a smaller token", item, grant)
            earliest = grant.after if earliest is None else min(earliest, grant.after)
            if n and grants[n - 1].token == grant.token:
                self._note("two grants with one token", item, grant)
            elif n and grants[n - 1].status > grant.status:
                self._note("attempts: a later grant has a smaller one", item, grant)

    def _owners(self, item: int, grants: Sequence[Record], uses: Sequence[Record]) -> None:
        for lease, following in pairwise(grants):
            own = [use for use in uses if use.token == lease.token]
            given_up = any(
                use.event in (Event.FAIL, Event.RELEASE)
                and use.status in (Verdict.OK, Verdict.UNKNOWN)
                and use.before < following.after
                for use in own
            )
            ends = max(
                [lease.value, *(u.value for u in own if u.event == Event.RENEW and u.status == Verdict.OK)]
            )
            ends -= self._circumstances.forward(lease.before, following.after) + _SLACK
            if not given_up and following.after < ends:
                self._note("two live owners", item, following, f"{(ends - following.after) / 1e9:.3f} s")
            failed = any(use.event == Event.FAIL and use.status == Verdict.OK for use in own)
            if failed and following.status <= lease.status:
                self._note("attempts: a failed one was not counted", item, following)
        for use in uses:
            if use.event in _LEASED and use.status == Verdict.LOST:
                self.counts.refused += 1
            if use.status == Verdict.LOST:
                self._refused(item, grants, uses, use)
            if use.status == Verdict.OK and any(
                grant.token > use.token and grant.after < use.before for grant in grants
            ):
                self._note(f"a lost lease was honoured by {Event(use.event).name}", item, use)

    def _refused(self, item: int, grants: Sequence[Record], uses: Sequence[Record], use: Record) -> None:
        """A lease that its holder must believe to live is his."""
        own = [other for other in uses if other.token == use.token and other.before < use.before]
        if any(other.event in (Event.FAIL, Event.RELEASE) and other.status != Verdict.LOST for other in own):
            return
        lease = next((grant for grant in grants if grant.token == use.token), None)
        if lease is not None:
            ends = self._end([lease], own, use.token)
            ends -= self._circumstances.forward(lease.before, use.after) + _SLACK
            if use.after < ends:
                more = f"{Event(use.event).name}, {(ends - use.after) / 1e9:.3f} s"
                self._note("a live lease was refused", item, use, more)

    def _settles(
        self,
        item: int,
        grants: Sequence[Record],
        uses: Sequence[Record],
        accepted: bool,
        results: Sequence[Record],
    ) -> None:
        acked = [use for use in uses if use.event == Event.ACK and use.status == Verdict.OK]
        if len({use.token for use in acked}) > 1:
            self._note("settled twice", item, acked[1])
        for use in acked:
            if grants and grants[-1].token > use.token:
                self._note("granted again though it was settled", item, grants[-1])
            if use.after > self._end(grants, uses, use.token):
                self.counts.late_acks += 1
        if not results:
            if accepted or acked:
                self._note("lost", item, next(reversed([*grants, *acked]), None))
            return
        if len(results) > 1:
            self._note("told twice by WatchResults", item, results[1])
        result = results[0]
        if result.status == _SUCCEEDED:
            self.counts.settled += 1
            self._result(item, grants, uses, result)
        elif result.status == _DEAD:
            self.counts.dead += 1
            if result.before < (POISON_ATTEMPTS if is_poison(item) else ATTEMPTS):
                self._note("dead against the rules", item, result)
        else:
            self._note(f"ended as {work_pb2.WorkState.Name(result.status)}", item, result)  # type: ignore[arg-type]
        if acked and (acked[0].token, acked[0].worker) != (result.token, result.worker):
            self._note("another result than the one acked", item, result)

    def _result(self, item: int, grants: Sequence[Record], uses: Sequence[Record], result: Record) -> None:
        if not any((grant.token, grant.worker) == (result.token, result.worker) for grant in grants):
            self._note("a result of somebody who did not hold it", item, result)
        elif grants[-1].token != result.token:
            self._note("settled by a lease that was lost", item, result)
        for use in uses:
            if use.token != result.token:
                continue
            if use.event == Event.ACK and use.status in (Verdict.LOST, Verdict.SETTLED):
                self._note(f"an ack that settled was told {Verdict(use.status).name}", item, use)
            if use.event in (Event.FAIL, Event.RELEASE) and use.status == Verdict.OK:
                self._note("settled after the lease was given up", item, use)

    def _attempts(self, item: int, grants: Sequence[Record], uses: Sequence[Record], result: Record) -> None:
        """The history that the server kept of the item against its count."""
        past = endings(result.value)
        self.counts.expired += sum(ending.expired for ending in past)
        if len(past) == 10:  # it keeps no more
            return
        begin = grants[0].before if grants else 0
        # More answers lost than are forgiven an item count. No one knows which.
        spare = self._circumstances.lost_answers(begin, result.after) > _REFUNDS
        counts, forgiven = {0}, False
        for ending in past:
            if not counts & {ending.attempt - 1, ending.attempt - 1 - spare}:
                self._note("attempts: the history is not what was counted", item, result, str(past))
                return
            forgiven = forgiven or ending.attempt - 1 != max(counts)
            counts = {ending.attempt, ending.attempt - 1} if ending.expired else {ending.attempt}
        last = past[-1] if past else None
        late = (
            last is not None and last.expired
            and result.after > self._end(grants, uses, result.token)
            and any(u.event == Event.ACK and u.token == result.token for u in uses)
            and max((u.after or result.after) for u in uses if u.token == result.token)
            > self._end(grants, uses, result.token)
        )  # fmt: skip
        if result.status == _DEAD:
            allowed = {last.attempt} if last else set()
        else:
            allowed = {count + 1 for count in counts}
            if late and last is not None:
                allowed |= {last.attempt - 1}
        if spare:
            allowed |= {count + 1 for count in allowed}
        if result.before not in allowed:
            self._note("attempts: not what the history says", item, result, f"{result.before}: {past}")
        elif last is not None and last.expired and not late and result.status == _SUCCEEDED:
            forgiven = forgiven or result.before == last.attempt
        if forgiven:
            self.counts.forgiven += 1
            if self._circumstances.calm(begin, result.after):
                self._note("attempts: one that ran out was not counted", item, result, str(past))

    def _end(self, grants: Sequence[Record], uses: Sequence[Record], token: int) -> int:
        """When the lease of this token ended, as its holder must believe."""
        ends = [grant.value for grant in grants if grant.token == token]
        ends += [u.value for u in uses if u.token == token and u.event == Event.RENEW and u.status == 1]
        return max(ends, default=0)

    def _note(self, kind: str, item: int, record: Record | None, more: str = "") -> None:
        told = f"item {item}"
        if record is not None:
            told += f", token {record.token}, worker {record.worker >> 8}.{record.worker & 255}"
        self.found.note(kind, f"{told}{more and ', ' + more}")
