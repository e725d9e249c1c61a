"""Containers: what they get, how they restart, are probed, and stop."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from libs.cluster.kinds import CONFIG_MAP, POD
from libs.cluster.local.runner.container import Backoff
from libs.cluster.local.runner.process import Child, Launch
from libs.errors import NotFoundError

from .world import (
    LIMITS,
    PYTHON,
    SERVE,
    SLEEP,
    STUBBORN,
    TIMEOUT,
    World,
    container,
    deployment,
    is_ready,
    job,
    pid_of,
    state,
    template,
    workload,
)

PRINT = "import os; print({name: os.environ.get(name) for name in os.environ['NAMES'].split()}, flush=True);"
HOST = {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def pod(spec, name="p"):
    return workload("Pod", name, {"terminationGracePeriodSeconds": 5, **spec})


def config(name, data, kind="ConfigMap"):
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **data}


async def test_variables_come_from_everywhere_and_nothing_of_ours_leaks(world: World, monkeypatch):
    monkeypatch.setenv("OURS", "secret")
    await world.apply(config("c", {"data": {"key": "from-config"}}))
    await world.apply(config("s", {"stringData": {"key": "from-secret"}}, "Secret"))
    names = "A B C D E F x_key OURS HOSTNAME"
    env = [
        {"name": "NAMES", "value": names},
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)2"},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
        {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "F", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "no", "optional": True}}},
    ]
    source = [{"prefix": "x_", "configMapRef": {"name": "c"}}]
    code = "import os, sys; print([os.environ.get(n) for n in os.environ['NAMES'].split()], sys.argv[1:])"
    agent = container(code, env=env, envFrom=source, args=["$(A)", "$(NONE)"])
    await world.apply(pod({"containers": [agent], "restartPolicy": "Never"}))
    done = await world.pod("p", lambda pod: pod["status"]["phase"] == "Succeeded")
    wanted = ["1", "12", "from-config", "from-secret", "p", None, "from-config", None, "p"]
    assert world.log(done) == f"{wanted} {['1', '$(NONE)']}\n"


async def test_a_container_waits_for_what_it_names(world: World):
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    await world.apply(deployment(pod=template(env=env)))

    async def waiting():
        for each in await world.pods("a"):
            for status in each["status"].get("containerStatuses", ()):
                if status["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError":
                    return status["state"]["waiting"]["message"]

    assert "default/c" in await world.until(waiting)
    await world.apply(config("c", {"data": {"other": "x"}}))
    await world.apply(config("c", {"data": {"k": "v"}}))
    await world.ready("a")


async def test_an_image_without_a_command_says_that_it_is_not_known(world: World):
    await world.apply(pod({"containers": [{"name": "agent", "image": "somewhere/agent:1"}]}))
    seen = await world.pod("p", lambda pod: pod["status"].get("containerStatuses"))
    seen = await world.pod("p", lambda pod: state(pod)["waiting"]["reason"] == "ImageEntrypointUnknown")
    assert seen["status"]["phase"] == "Pending"


async def test_a_command_that_is_not_there_is_an_error_of_its_start(world: World):
    await world.apply(job("j", template(command=["no-such-program"])))

    async def failed():
        return [pod for pod in await world.pods("j") if pod["status"]["phase"] == "Failed"]

    (first, *_) = await world.until(failed)
    terminated = state(first)["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")
    assert "no-such-program" in terminated["message"]


async def test_a_killed_container_starts_again_in_the_same_pod_after_a_pause(world: World):
    await world.apply(deployment(pod=template("print('here', flush=True);" + SLEEP)))
    (before,) = await world.ready("a")
    await world.said(before, "here")
    os.kill(pid_of(world, before), signal.SIGKILL)
    name = before["metadata"]["name"]
    crashed = await world.pod(name, lambda pod: "waiting" in state(pod))
    assert state(crashed)["waiting"]["reason"] == "CrashLoopBackOff"
    assert not is_ready(crashed)
    after = await world.pod(name, lambda pod: is_ready(pod) and "running" in state(pod))
    status = after["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    last = status["lastState"]["terminated"]
    assert (last["exitCode"], last["signal"], last["reason"]) == (137, 9, "Error")
    for part in ("uid", "name"):
        assert after["metadata"][part] == before["metadata"][part]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    await world.said(after, "here")
    assert world.log(after, previous=True) == "here\n"


async def test_the_pause_doubles(world: World):
    await world.apply(deployment(pod=template("raise SystemExit(3)")))
    pauses = set()

    async def see():
        for each in await world.pods("a"):
            for status in each["status"].get("containerStatuses", ()):
                pauses.add(status["state"].get("waiting", {}).get("message"))
        return {f"it starts again {pause} s after its end" for pause in ("0.5", "1", "2")} <= pauses

    await world.until(see)


def test_the_pause_has_an_end_and_is_short_again_after_a_steady_run():
    backoff = Backoff()
    pauses = [backoff.after(0.1) for _ in range(12)]
    assert pauses[:3] == [0.5, 1, 2]
    assert pauses[-1] == 300
    assert [backoff.after(ran) for ran in (29, 30, 0)] == [300, 0.5, 1]


async def test_what_a_process_has_started_ends_with_it(world: World):
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
    await world.apply(job("j", template(code)))

    async def done():
        return [pod for pod in await world.pods("j") if pod["status"]["phase"] == "Succeeded"]

    await world.until(done)

    async def alone():
        return not world.processes()

    await world.until(alone)


async def test_a_stubborn_process_is_killed_after_its_grace(world: World):
    spec = {"containers": [container(STUBBORN)], "terminationGracePeriodSeconds": 1}
    await world.apply(pod(spec))
    running = await world.pod("p", is_ready)
    await world.said(running, "deaf")
    pid = pid_of(world, running)
    await world.cluster.delete(POD, "default", "p")
    still = await world.cluster.get(POD, "default", "p")
    assert still["metadata"]["deletionTimestamp"]
    os.kill(pid, 0)  # it has not heard
    await world.gone(POD, "p")
    assert world.processes() == []


async def test_the_object_stays_until_the_process_is_gone(world: World):
    marker = world.folder / "tidied"
    code = (
        f"import pathlib, signal, sys, time\ndef end(*_):\n time.sleep(0.3)\n"
        f" pathlib.Path({str(marker)!r}).touch()\n sys.exit(0)\n"
        "signal.signal(15, end)\nprint('up', flush=True)\ntime.sleep(600)"
    )
    await world.apply(pod({"containers": [container(code)]}))
    await world.said(await world.pod("p", is_ready), "up")
    await world.cluster.delete(POD, "default", "p")
    await world.gone(POD, "p")
    assert marker.exists()


async def test_a_pre_stop_hook_runs_before_the_signal(world: World):
    said = world.folder / "said"
    code = (
        f"import pathlib, signal, sys, time\nsaid = pathlib.Path({str(said)!r})\n"
        "signal.signal(15, lambda *_: (said.write_text(said.read_text() + 'term'), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    hook = {"exec": {"command": ["python", f"open({str(said)!r}, 'w').write('hook ')"]}}
    await world.apply(pod({"containers": [container(code, lifecycle={"preStop": hook})]}))
    await world.said(await world.pod("p", is_ready), "up")
    await world.cluster.delete(POD, "default", "p")
    await world.gone(POD, "p")
    assert said.read_text() == "hook term"


def served(sick, **probes):
    env = [HOST, {"name": "SICK", "value": str(sick)}]
    return template(SERVE, env=env, ports=[{"name": "http", "containerPort": 8080}], **probes)


def get(path, **more):
    return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": 1, **more}


async def test_readiness_comes_and_goes_with_its_probe(world: World, tmp_path):
    sick = tmp_path / "sick"
    sick.mkdir()
    (sick / "readyz").touch()
    probes = {
        "startupProbe": get("/startz", failureThreshold=20),
        "readinessProbe": get("/readyz", failureThreshold=1),
    }
    await world.apply(deployment(pod=served(sick, **probes)))

    async def started():
        for each in await world.pods("a"):
            statuses = each["status"].get("containerStatuses", ())
            if any(status["started"] and not status["ready"] for status in statuses):
                return each

    begun = await world.until(started)
    assert begun["status"]["phase"] == "Running"
    (sick / "readyz").unlink()
    (ready,) = await world.ready("a")
    (sick / "readyz").touch()
    unready = await world.pod(ready["metadata"]["name"], lambda pod: not is_ready(pod))
    assert unready["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_container_that_does_not_live_starts_again(world: World, tmp_path):
    sick = tmp_path / "sick"
    sick.mkdir()
    probes = {"livenessProbe": get("/livez", failureThreshold=1), "readinessProbe": get("/readyz")}
    await world.apply(deployment(pod=served(sick, **probes)))
    (pod,) = await world.ready("a")
    (sick / "livez").touch()
    dead = await world.pod(pod["metadata"]["name"], lambda pod: "waiting" in state(pod))
    (sick / "livez").unlink()
    last = dead["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["message"]) == (143, "its liveness probe failed")
    await world.pod(pod["metadata"]["name"], is_ready)


async def test_a_container_that_never_starts_up_starts_again(world: World, tmp_path):
    sick = tmp_path / "sick"
    sick.mkdir()
    (sick / "startz").touch()
    await world.apply(deployment(pod=served(sick, startupProbe=get("/startz", failureThreshold=1))))

    async def ended():
        for each in await world.pods("a"):
            for status in each["status"].get("containerStatuses", ()):
                if "terminated" in status["lastState"]:
                    return status["lastState"]["terminated"]["message"]

    assert await world.until(ended) == "its startup probe failed"


async def test_a_probe_that_there_is_not_here_is_named(world: World):
    probe = {"exec": {"command": ["true"]}}
    spec = {"containers": [container(SLEEP, readinessProbe=probe)], "restartPolicy": "Never"}
    await world.apply(pod(spec))
    failed = await world.pod("p", lambda pod: pod["status"]["phase"] == "Failed")
    assert "readinessProbe" in failed["status"]["message"]


async def test_init_containers_run_first_and_sidecars_stay_until_the_end(world: World):
    order = world.folder / "order"
    note = f"import signal, sys, time\ndef note(what): open({str(order)!r}, 'a').write(what + ' ')\n"
    side = note + (
        "signal.signal(15, lambda *_: (note('side-end'), sys.exit(0)))\nnote('side')\ntime.sleep(600)"
    )
    wait = f"import os\nwhile not os.path.exists({str(order)!r}): time.sleep(0.01)\nnote('init')"
    spec = {
        "initContainers": [
            container(side, "side", restartPolicy="Always"),
            container(note + wait, "init"),
        ],
        "containers": [container(note + "note('main')")],
        "restartPolicy": "Never",
    }
    await world.apply(pod(spec))
    done = await world.pod("p", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert order.read_text() == "side init main side-end "
    assert [each["name"] for each in done["status"]["initContainerStatuses"]] == ["side", "init"]
    assert world.processes() == []


async def test_a_pod_whose_init_container_fails_has_failed(world: World):
    spec = {"initContainers": [container("raise SystemExit(4)", "init")], "containers": [container(SLEEP)]}
    await world.apply(pod({**spec, "restartPolicy": "Never"}))
    failed = await world.pod("p", lambda pod: pod["status"]["phase"] == "Failed")
    assert "init" in failed["status"]["message"]
    assert "waiting" in state(failed)


async def test_the_log_is_private_and_bounded(world: World):
    code = "import time\nwhile True: print('x' * 5000, flush=True); time.sleep(0.001)"
    await world.apply(pod({"containers": [container(code)]}))
    running = await world.pod("p", is_ready)

    async def rotated():
        return world.log(running, previous=True)

    assert len(await world.until(rotated)) == LIMITS.log_bytes
    for path in (world.folder / "pods" / running["metadata"]["uid"]).glob("agent.log*"):
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_config_map_that_goes_does_not_end_what_runs(world: World):
    await world.apply(config("c", {"data": {"k": "v"}}))
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    await world.apply(pod({"containers": [container(SLEEP, env=env)]}))
    running = await world.pod("p", is_ready)
    await world.cluster.delete(CONFIG_MAP, "default", "c")
    with pytest.raises(NotFoundError):
        await world.cluster.get(CONFIG_MAP, "default", "c")
    await world.passed()
    os.kill(pid_of(world, running), 0)


@pytest.mark.parametrize("where", ["env", "args"])
async def test_a_bomb_of_variables_is_the_containers_own_trouble(world: World, where):
    env = [{"name": "V0", "value": "x" * 1_000}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})" * 10} for n in range(1, 10 if where == "env" else 3)]
    args = ["$(V2)"] * 20 if where == "args" else []
    await world.apply(pod({"containers": [container(SLEEP, env=env, args=args)]}))

    def refused(thing):
        waiting = state(thing).get("waiting", {}) if "containerStatuses" in thing["status"] else {}
        return waiting.get("reason") == "CreateContainerConfigError" and "characters" in waiting["message"]

    assert await world.pod("p", refused)
    await world.apply(deployment())
    await world.ready("a")


async def test_a_log_that_grows_fast_is_cut_to_its_last_bytes(tmp_path):
    code = "import os, time\nos.write(1, b'a' * 10_000_000 + b'b' * 1_000)\nwhile True: time.sleep(60)"
    directory, log = tmp_path, tmp_path / "agent.log"
    environment = {"PATH": os.environ["PATH"], "WORLD": str(tmp_path)}
    launch = Launch([*PYTHON, code], environment, directory, log, tmp_path / "agent.process")
    child = await Child.start(launch)
    try:
        async with asyncio.timeout(TIMEOUT):
            while log.stat().st_size < 10_001_000:  # noqa: ASYNC110  (a file tells nobody)
                await asyncio.sleep(0.01)
        await child.bound_log(20_000_000)
        assert log.stat().st_size == 10_001_000
        await child.bound_log(3_000)
    finally:
        child.kill()
        await child.wait()
    assert log.read_bytes() == b""
    assert (tmp_path / "agent.log.1").read_bytes() == b"a" * 2_000 + b"b" * 1_000
    log.write_bytes(b"c" * 4_000)
    await child.bound_log(3_000)  # it has ended: that is its log
    assert log.read_bytes() == b"c" * 3_000
    assert sorted(each.name for each in tmp_path.iterdir()) == ["agent.log", "agent.log.1"]


async def test_the_log_of_a_container_that_has_ended_is_bounded(world: World):
    code = f"import os; os.write(1, b'x' * {LIMITS.log_bytes * 5} + b'end')"
    await world.apply(pod({"containers": [container(code)], "restartPolicy": "Never"}))
    done = await world.pod("p", lambda pod: pod["status"]["phase"] == "Succeeded")
    log = world.log(done)
    assert len(log) == LIMITS.log_bytes
    assert log.endswith("xend")


# last words


def words(code, **more):
    return container(f"import os, sys\npath = os.environ['REPORT']\n{code}", env=[REPORT], **more)


REPORT = {"name": "REPORT", "value": "/dev/termination-log"}


async def ended(world, *containers, **spec):
    await world.apply(pod({"containers": list(containers), "restartPolicy": "Never", **spec}))
    return await world.pod("p", lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))


async def test_a_container_says_at_its_end_why(world: World):
    done = await ended(world, words("open(path, 'w').write('seven')\nsys.exit(7)"))
    terminated = state(done)["terminated"]
    assert (terminated["exitCode"], terminated["reason"], terminated["message"]) == (7, "Error", "seven")


async def test_the_last_4096_bytes_of_its_last_words_count(world: World):
    done = await ended(world, words("open(path, 'w').write('x' * 10 + 'y' * 4096)"))
    assert state(done)["terminated"]["message"] == "y" * 4096


async def test_the_file_is_where_its_declaration_says(world: World):
    code = "import sys\nopen(sys.argv[1], 'w').write('here')"
    done = await ended(world, container(code, args=["/some/where"], terminationMessagePath="/some/where"))
    assert state(done)["terminated"]["message"] == "here"


async def test_each_container_has_last_words_of_its_own_and_says_them_anew(world: World):
    code = "before = open(path).read()\nopen(path, 'w').write(f'{os.getpid()}<{before}>')\nsys.exit(1)"
    await world.apply(pod({"containers": [words(code), words("pass", name="other")]}))

    def has_ended_twice(pod):
        found = pod.get("status", {}).get("containerStatuses", ())
        waits = [each for each in found if "waiting" in each["state"] and each["lastState"]]
        return len(waits) == 2 and waits[0]["restartCount"] >= 1

    seen = await world.pod("p", has_ended_twice)
    first, other = (each["lastState"] for each in seen["status"]["containerStatuses"])
    assert first["terminated"]["message"].endswith("<>")
    assert "message" not in other["terminated"]


@pytest.mark.parametrize(
    "trick",
    [
        "os.remove(path); os.symlink(os.environ['WORLD'] + '/secret', path)",
        "os.remove(path); os.mkfifo(path)",
        "os.remove(path); os.mkdir(path)",
        "os.remove(path)",
        "pass",
    ],
)
async def test_what_is_no_file_of_its_own_says_nothing(world: World, trick):
    (world.folder / "secret").write_text("secret")
    done = await ended(world, words(trick))
    assert "message" not in state(done)["terminated"]


async def test_bytes_that_are_no_text_harm_nobody(world: World):
    done = await ended(world, words("open(path, 'wb').write(b'a\\xff\\x00b')"))
    assert state(done)["terminated"]["message"] == "a\ufffd\x00b"


async def test_a_sidecar_has_last_words_too(world: World):
    side = "import signal\nsignal.signal(15, lambda *_: (open(path, 'w').write('used 5'), sys.exit(0)))\n"
    side = words(side + "print('on', flush=True)\nsignal.pause()", name="side", restartPolicy="Always")
    log = "pathlib.Path(os.environ['WORLD']).glob('pods/*/side.log')"
    wait = f"import pathlib, time\nwhile not any('on' in log.read_text() for log in {log}): time.sleep(0.01)"
    done = await ended(world, words(f"{wait}\nsys.exit(5)"), initContainers=[side])
    assert done["status"]["phase"] == "Failed"
    (beside,) = done["status"]["initContainerStatuses"]
    assert beside["state"]["terminated"]["message"] == "used 5"
