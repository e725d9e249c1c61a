"""What is refused before it runs."""

from __future__ import annotations

import pytest

from libs.cluster.kinds import DEPLOYMENT, JOB, POD
from libs.cluster.local.runner.declared import check
from libs.errors import InvalidError

from .world import World, container, deployment, job, template, workload


@pytest.mark.parametrize(
    ("kind", "thing", "field"),
    [
        (DEPLOYMENT, deployment(replicas="three"), "spec.replicas"),
        (DEPLOYMENT, deployment(strategy={"rollingUpdate": {"maxSurge": "some"}}), "maxSurge"),
        (DEPLOYMENT, deployment(pod=template(env=[{"name": "A=B"}])), "env[0].name"),
        (DEPLOYMENT, deployment(pod=template(name="../../x")), "containers[0].name"),
        (DEPLOYMENT, deployment(pod=template(spec={"restartPolicy": "Never"})), "restartPolicy"),
        (POD, workload("Pod", "p", {"containers": []}), "spec.containers"),
        (POD, workload("Pod", "p", {"containers": [{"image": "x"}]}), "name"),
        (POD, workload("Pod", "p", {"containers": [container("", command="text")]}), "command"),
        (JOB, job("j", template(readinessProbe={"httpGet": {"path": "/"}})), "port"),
    ],
)
def test_what_has_another_type_is_named(kind, thing, field):
    with pytest.raises(InvalidError) as error:
        check(kind, thing)
    assert field in str(error.value)


def test_what_we_do_not_read_is_not_looked_at():
    check(DEPLOYMENT, deployment(pod=template(spec={"tolerations": 3, "priority": "x"}), other="field"))


async def test_what_cannot_be_read_leaves_the_others_alone(world: World):
    pod = workload("Pod", "p", {"containers": [container("pass", ports=[{"containerPort": "http"}])]})
    await world.apply(pod)
    await world.apply(deployment("bad", template(env=[{"name": "A", "value": 3}])))
    failed = await world.pod("p", lambda pod: pod["status"]["phase"] == "Failed")
    assert "containerPort" in failed["status"]["message"]
    await world.apply(deployment())
    await world.ready("a")
    assert await world.pods("bad") == []
    await world.cluster.delete(POD, "default", "p")
    await world.gone(POD, "p")
