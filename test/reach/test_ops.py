# SPDX-License-Identifier: Apache-2.0
"""
ops/compose.yaml and ops/kubernetes: each file has the shape that its tool reads,
and each command in them is run, with its volumes, its user and its probes.

The shape of the first is judged by docker-compose itself, that of the others by
the models of Kubernetes' client for Python (Debian's, of Kubernetes 1.22). What
is younger than these is listed here and not judged: LATER. Not run are the
services that stand for yours, the scheduler, and the mounting of a volume.
"""

import http.client
import os
import pathlib
import re
import subprocess
import tempfile

import pytest
import yaml
from kubernetes import client

import servers
from images import ROOT, UID, entering, inside
from machine import eventually

OPS = ROOT / "ops"
FILES = sorted((OPS / "kubernetes").glob("*.yaml"))
OURS = re.compile(r"^(?:registry\.example/)?(once|once-nginx):")
# Of Kubernetes 1.29 and 1.30.
LATER = {("V1Container", "restartPolicy"): "Always",
         ("V1Handler", "sleep"): {"seconds": 5}}


def documents(path):
    return list(yaml.safe_load_all(path.read_text("utf-8")))


# ---- Their shape ---------------------------------------------------------


def judge(value, kind, where):
    """Unknown members, missing ones, and values of another type."""
    several = re.fullmatch(r"(list|dict)[\[(](?:str, ?)?(.*)[\])]", kind)
    if several:
        assert isinstance(value, {"list": list, "dict": dict}[several[1]]), \
            where
        inner = value.values() if several[1] == "dict" else value
        for one in inner:
            judge(one, several[2], where)
        return
    model = getattr(client, kind, None)
    if model is None:
        known = {"str": str, "int": int, "bool": bool,
                 "object": (str, int, dict)}
        assert kind in known, (where, kind)
        assert isinstance(value, known[kind]), (where, value, kind)
        return
    names = {there: here for here, there in model.attribute_map.items()}
    given = {}
    for member, inner in value.items():
        if (kind, member) in LATER:
            assert inner == LATER[kind, member], where
            continue
        assert member in names, "%s: %s has no %s" % (where, kind, member)
        judge(inner, model.openapi_types[names[member]],
              "%s.%s" % (where, member))
        given[names[member]] = inner
    model(**given)  # it refuses what is incomplete


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_kubernetes_knows_each_member(path):
    for document in documents(path):
        judge(document, "V1" + document["kind"],
              "%s %s" % (path.name, document["kind"]))


def test_the_judge_sees_what_is_wrong():
    good = {"name": "a", "image": "b", "ports": [{"containerPort": 1}]}
    judge(good, "V1Container", "good")
    for bad in ({"imagePullPolice": "Never"}, {"ports": [{}]}, {"args": "x"},
                {"ports": [{"containerPort": "1"}]}):
        with pytest.raises((AssertionError, ValueError)):
            judge({**good, **bad}, "V1Container", "bad")


@pytest.fixture(scope="module")
def composed():
    """As docker-compose has read it."""
    out = subprocess.run(["docker-compose", "-f", str(OPS / "compose.yaml"),
                          "config"], check=True, stdout=subprocess.PIPE)
    return yaml.safe_load(out.stdout)


def pods(path):
    for document in documents(path):
        if document["kind"] in ("Job", "Deployment"):
            yield document, document["spec"]["template"]["spec"]


def ours(spec):
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        if OURS.match(container["image"]):
            yield container


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_each_container_of_ours_may_do_little(path):
    for _, spec in pods(path):
        for container in ours(spec):
            may = {**spec.get("securityContext", {}),
                   **container["securityContext"]}
            assert may["runAsUser"] == UID and may["runAsNonRoot"]
            assert may["readOnlyRootFilesystem"]
            assert may["capabilities"] == {"drop": ["ALL"]}
            assert not may["allowPrivilegeEscalation"]
            assert may["fsGroup" if "fsGroup" in may else "runAsGroup"] == UID


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_no_pod_has_a_token_for_the_cluster(path):
    for _, spec in pods(path):
        assert spec["automountServiceAccountToken"] is False


def test_each_container_of_compose_may_do_little(composed):
    for name in ("init", "gateway"):
        may = composed["services"][name]
        assert may["cap_drop"] == ["ALL"] and may["read_only"]
        assert may["security_opt"] == ["no-new-privileges:true"]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def test_a_stop_waits_for_longer_than_nginx_does(composed):
    """What is killed before it has ended is left as unknown."""
    conf = (OPS / "image/nginx.conf").read_text("utf-8")
    waits = seconds(re.search(r"worker_shutdown_timeout (\w+);", conf)[1])
    assert seconds(composed["services"]["gateway"]["stop_grace_period"]) > \
        waits
    for path in FILES:
        for document, spec in pods(path):
            if document["kind"] == "Deployment":
                assert spec["terminationGracePeriodSeconds"] > waits + 5


def test_a_journal_has_one_pod():
    """The day on which it had two is in test_image.py."""
    path = OPS / "kubernetes/gateway-journal.yaml"
    seen = {d["kind"]: d["spec"] for d in documents(path) if "spec" in d}
    assert seen["Deployment"]["replicas"] == 1
    assert seen["Deployment"]["strategy"] == {"type": "Recreate"}
    assert seen["PersistentVolumeClaim"]["accessModes"] == ["ReadWriteOncePod"]


def test_no_store_is_made_at_each_start(composed):
    """An empty one in place of the old would execute all of it once more."""
    assert composed["services"]["init"]["profiles"] == ["init"]
    assert "depends_on" not in composed["services"]["gateway"]
    for path in FILES:
        for document, spec in pods(path):
            if document["kind"] == "Deployment":
                assert all("init" not in c.get("args", ())
                           for c in ours(spec))


# ---- What they run -------------------------------------------------------


@pytest.fixture(scope="module")
def database():
    world = servers.World()
    try:
        world.build("postgres")
        yield world.servers["postgres"].url()
    finally:
        world.close()


class Place:
    """Makes the folders that are mounted, and keeps claimed ones."""

    def __init__(self, folder, made, url):
        self.folder, self.made, self.url = folder, made, url
        self.claims = {}

    def new(self, mode=0o2777):
        """As the kubelet makes it: root's, with the pod's group."""
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        os.chown(path, 0, UID)
        path.chmod(mode)
        return path

    def with_files(self, files):
        path = self.new(0o755)
        for name, text in files.items():
            (path / name).write_text(text)
            os.chown(path / name, 0, UID)
            (path / name).chmod(0o440)
        return path

    def secret(self, name):
        data = self.made["Secret", name]["stringData"]
        text, count = re.subn("(?m)^url = postgres://.*$",
                              "url = " + self.url, data["default"])
        assert count == 1
        return self.with_files({**data, "default": text})

    def mount(self, volume):
        if "secret" in volume:
            return self.secret(volume["secret"]["secretName"])
        if "configMap" in volume:
            return self.with_files(
                self.made["ConfigMap", volume["configMap"]["name"]]["data"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            assert ("PersistentVolumeClaim", claim) in self.made
            if claim not in self.claims:
                self.claims[claim] = self.new(0o2775)
            return self.claims[claim]
        assert "emptyDir" in volume
        return self.new()


def hosts(folder):
    path = folder / "hosts"
    path.write_text("127.0.0.1 localhost shop\n")
    path.chmod(0o644)
    return [(path, "/etc/hosts")]


def probe(container, what, pid):
    if "exec" in what:
        return subprocess.run(entering(pid) + what["exec"]["command"],
                              check=False, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    asked = http.client.HTTPConnection(
        "127.0.0.1", ports[what["httpGet"]["port"]], timeout=10)
    try:
        asked.request("GET", what["httpGet"]["path"])
        return 200 <= asked.getresponse().status < 400
    except OSError:
        return False
    finally:
        asked.close()


def run_container(image, container, binds, job):
    shm = dict((there, here) for here, there in binds).pop("/dev/shm", None)
    binds = [pair for pair in binds if pair[1] != "/dev/shm"]
    more = {"tmp": False, "shm": shm, "binds": binds,
            "entry": container.get("command")}
    if job:
        status, said = image.run(None, *container.get("args", ()), **more)
        assert status == 0, said
        return
    with image.start(None, *container.get("args", ()), **more) as process:
        pid = inside(process)
        eventually(lambda: probe(container, container["startupProbe"], pid),
              "it has started")
        for name in "readinessProbe", "livenessProbe":
            assert name not in container or \
                probe(container, container[name], pid)
        image.stop(pid)
        assert process.wait(60) == 0


def made_by(*names):
    return {(d["kind"], d["metadata"]["name"]): d for name in names
            for d in documents(OPS / "kubernetes" / name)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_each_command_of_kubernetes_runs(path, images, folder, database):
    """In the order of the file: the Job before what needs the store."""
    made = made_by("gateway-postgres.yaml", path.name)
    place = Place(folder, made, database)
    whole = list(pods(path))
    if path.name == "sidecar.yaml":
        whole = list(pods(OPS / "kubernetes/gateway-postgres.yaml"))[:1] + whole
    seen = 0
    for document, spec in whole:
        mounts = {v["name"]: place.mount(v) for v in spec.get("volumes", ())}
        for container in ours(spec):
            binds = hosts(folder) + [(mounts[m["name"]], m["mountPath"])
                                     for m in container["volumeMounts"]]
            image = images[OURS.match(container["image"])[1]]
            run_container(image, container, binds, document["kind"] == "Job")
            seen += 1
    assert seen >= 2


def test_each_command_of_compose_runs(composed, images, volume, folder):
    services = composed["services"]
    conf = pathlib.Path(tempfile.mkdtemp(dir=folder))
    conf.chmod(0o755)
    for path in (OPS / "conf.d").iterdir():
        (conf / path.name).write_bytes(path.read_bytes())
    (conf / "charges.users").write_text("ann:$6$no$password\n")
    image = images["once-nginx"]
    status, said = image.run(volume, *services["init"]["command"],
                             entry=services["init"]["entrypoint"])
    assert status == 0, said
    gateway = services["gateway"]
    assert gateway["tmpfs"] == ["/tmp"] and gateway["read_only"]
    binds = hosts(folder) + [(conf, "/etc/nginx/conf.d")]
    with image.start(volume, binds=binds) as process:
        pid = inside(process)
        kind, *words = gateway["healthcheck"]["test"]
        assert kind == "CMD"
        eventually(lambda: probe({}, {"exec": {"command": words}}, pid),
              "it is healthy")
        image.stop(pid)
        assert process.wait(60) == 0
