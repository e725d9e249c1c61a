"""What must be so before PostgreSQL starts in a pod of its own: `python -m libs.postgres.pod FOLDER NAME…`.

FOLDER has the data. Each NAME is a component that has a database and a role of its name there, which need TLS
and a password to be reached. The Secret NAME-database of our namespace says how: `dsn`, `password`, and
`ca.crt`, the server's own certificate. May be repeated; keeps what is there.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from libs.cluster import Cluster
from libs.cluster.kinds import SECRET
from libs.cluster.kubernetes import connect

from .account import Account, StartError

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MANAGER = "agentctl-postgres"
_YEARS = timedelta(days=3650)  # pinned by whoever has the Secret, so that it need not be renewed
_INITDB = ("--username=postgres", "--auth=reject", "--encoding=UTF8", "--locale=C", "--no-instructions")
_CONF = """# Written at each start.
listen_addresses = ''
unix_socket_directories = '/tmp'
unix_socket_permissions = 0700
password_encryption = 'scram-sha-256'
dynamic_shared_memory_type = mmap
max_connections = 200
shared_buffers = 256MB
max_parallel_workers_per_gather = 0
jit = off
random_page_cost = 1.1
wal_buffers = 16MB
max_wal_size = 2GB
checkpoint_timeout = 15min
autovacuum_naptime = 5s
log_checkpoints = off
"""
# Nobody comes in without the password, for whoever does comes through our TLS, with our user id.
_HBA = "local {0} {0} scram-sha-256\n"


async def prepare(cluster: Cluster, namespace: str, names: Sequence[str], data: Path) -> None:
    """See the module. Raises StartError, and what the cluster raises."""
    host = f"postgres.{namespace}.svc"
    await asyncio.to_thread(_make, data, host, names)
    for name in names:
        await _admit(cluster, namespace, name, data, host)


async def _admit(cluster: Cluster, namespace: str, name: str, data: Path, host: str) -> None:
    """A component: its role, its database, and its Secret."""
    secret = f"{name}-database"
    known = (await cluster.get(SECRET, namespace, secret)).get("data") or {}
    password = base64.b64decode(known.get("password", "")).decode() or secrets.token_urlsafe(32)
    await asyncio.to_thread(
        _execute,
        data,
        [
            f"create role {name} login",
            f"alter role {name} password '{password}'",
            f"create database {name} owner {name}",
        ],
    )
    dsn = {
        "host": host,
        "dbname": name,
        "user": name,
        "password": password,
        "sslmode": "verify-full",
        "sslnegotiation": "direct",
        "sslrootcert": "/etc/agentctl/database/ca.crt",
    }
    said = {
        "dsn": " ".join(f"{field}={value}" for field, value in dsn.items()),
        "password": password,
        "ca.crt": (data / "server.crt").read_text(),
    }
    content = {key: base64.b64encode(value.encode()).decode() for key, value in said.items()}
    metadata = {"name": secret, "namespace": namespace}
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content}, _MANAGER
    )


def _make(data: Path, host: str, names: Sequence[str]) -> None:
    """The folder, whole or not at all, and its configuration."""
    if not data.exists():
        unfinished = data.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        _run("initdb", *_INITDB, "--pgdata", str(unfinished))
        certify(unfinished, host)
        unfinished.rename(data)
    (data / "postgresql.conf").write_text(_CONF)
    (data / "pg_hba.conf").write_text("".join(_HBA.format(name) for name in names))


def certify(folder: Path, host: str) -> None:
    """The server's key, and a certificate that it signs itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    hosts = x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName(f"{host}.cluster.local")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _YEARS)
        .add_extension(hosts, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "server.key").touch(mode=0o600)
    (folder / "server.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "server.crt").write_bytes(made.public_bytes(Encoding.PEM))


def _execute(data: Path, statements: list[str]) -> None:
    """In the single-user mode, which reads a statement a line and goes on after an error. What is to be made
    may be there."""
    said = _run("postgres", "--single", "-D", str(data), "postgres", stdin="\n".join(statements) + "\n")
    if any("ERROR:" in line and not line.endswith(" already exists") for line in said.splitlines()):
        raise StartError(f"PostgreSQL refused: {said}")


def _run(program: str, *arguments: str, stdin: str = "") -> str:
    programs = Account(os.geteuid(), os.getegid()).programs()
    command = [str(programs / program), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise StartError(f"{program} failed: {done.stderr.strip()}")
    return done.stderr


async def _main(namespace: str, data: Path, names: Sequence[str]) -> None:
    async with connect(None) as cluster:
        await prepare(cluster, namespace, names, data)


if __name__ == "__main__":
    asyncio.run(_main(_NAMESPACE.read_text().strip(), Path(sys.argv[1]), sys.argv[2:]))
