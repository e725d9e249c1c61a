"""A watch that is left behind, over TLS, at a server that does not say goodbye."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from contextlib import suppress

import anyio
import pytest
import yaml

from libs.cluster.kinds import CONFIG_MAP
from libs.cluster.kubernetes import connect
from libs.testing import ca

CHANGE = b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "2"}}}\n'


class Mute:
    """Answers one request with a stream of one change, and hears no farewell; then waits for the end of the
    TCP connection."""

    def __init__(self, context):
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()
        self._listener.close()

    def _serve(self):
        accepted, _ = self._listener.accept()
        accepted.settimeout(10)
        with self._context.wrap_socket(accepted, server_side=True) as tls:
            tls.recv(65536)
            tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            tls.sendall(b"%x\r\n%b\r\n" % (len(CHANGE), CHANGE))
            with socket.socket(fileno=os.dup(tls.fileno())) as line, suppress(TimeoutError):
                line.settimeout(10)
                with suppress(ConnectionResetError):
                    while line.recv(4096):
                        pass
                self.left.set()


@pytest.fixture
def mute(tmp_path):
    identity = ca.identity(ca.authority(), tmp_path, "/cp/coordination")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with Mute(context) as server:
        yield server


async def test_its_connection_ends_at_once_and_not_after_the_loop(mute, tmp_path):
    server = {"server": f"https://127.0.0.1:{mute.port}", "insecure-skip-tls-verify": True}
    document = {
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))

    async with connect(path) as cluster, anyio.create_task_group() as group:
        heard = anyio.Event()

        async def watch():
            async for _ in cluster.watch(CONFIG_MAP, since="1"):
                heard.set()

        group.start_soon(watch)
        await heard.wait()
        group.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(mute.left.wait, 10)
