"""PostgreSQL in a pod of its own, as it is prepared: a database, a role and a Secret for each component."""

from __future__ import annotations

import base64
import subprocess

import pytest

from libs.cluster.kinds import SECRET
from libs.postgres import pod
from libs.postgres.account import Account, StartError

from .test_postgres import open_folder

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


class Secrets:
    """As much of a cluster as is asked."""

    def __init__(self):
        self.things = {}

    async def get(self, kind, namespace, name):
        assert kind is SECRET
        return self.things.get(name, {})

    async def apply(self, thing, manager):
        self.things[thing["metadata"]["name"]] = thing

    def of(self, name):
        return {key: base64.b64decode(value).decode() for key, value in self.things[name]["data"].items()}


@pytest.fixture
def secrets():
    return Secrets()


@pytest.fixture
def data(monkeypatch):
    """A folder's path, for a user whom PostgreSQL runs as; in the pod that is everybody."""
    with open_folder() as folder:
        account = Account.of(folder / "data")
        account.own(folder)

        def run(program, *arguments, stdin=""):
            command = account.command(account.programs() / program, *arguments)
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd="/")
            if done.returncode:
                raise StartError(done.stderr)
            return done.stderr

        monkeypatch.setattr(pod, "_run", run)
        yield folder / "data"


def opened(data, database):
    """What PostgreSQL says when that database is opened; StartError if there is none."""
    return pod._run("postgres", "--single", "-D", str(data), database, stdin="select 1\n")


async def test_each_component_has_a_database_and_a_secret_that_says_how_to_reach_it(data, secrets):
    await pod.prepare(secrets, "system", ["coordination", "modelgateway"], data)
    for name in ("coordination", "modelgateway"):
        said = secrets.of(f"{name}-database")
        assert f"dbname={name} user={name} password={said['password']} " in said["dsn"]
        opened(data, name)
    assert len({secrets.of(name)["password"] for name in secrets.things}) == 2
    assert (data / "pg_hba.conf").read_text().splitlines() == [
        "local coordination coordination scram-sha-256",
        "local modelgateway modelgateway scram-sha-256",
    ]


async def test_a_component_may_come_later_and_those_that_are_there_keep_what_they_have(data, secrets):
    await pod.prepare(secrets, "system", ["coordination"], data)
    before = secrets.of("coordination-database")
    with pytest.raises(StartError):
        opened(data, "modelgateway")
    for _ in range(2):
        await pod.prepare(secrets, "system", ["coordination", "modelgateway"], data)
    assert secrets.of("coordination-database") == before
    opened(data, "modelgateway")


async def test_what_postgresql_refuses_otherwise_is_an_error(data, secrets):
    await pod.prepare(secrets, "system", ["coordination"], data)
    with pytest.raises(StartError, match="does not exist"):
        pod._execute(data, ["alter role nobody password 'x'"])
