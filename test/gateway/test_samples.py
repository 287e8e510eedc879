# SPDX-License-Identifier: Apache-2.0
"""
The configurations in ops/ and on the first pages, as people take them over: no
other spelling of a path gets a request past the guard, and no client says who
it is.
"""

import base64
import re
import subprocess
import types

import pytest
import yaml

from gateway import ROOT, Answer, is_new, is_problem, is_replay

pytestmark = pytest.mark.nginx_only("configurations of nginx")


def config_map(name):
    path = ROOT / "ops/kubernetes" / name
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "ConfigMap":
            return document["data"]["shop.conf"]
    raise AssertionError(path)


def page(name):
    """Its block with auth_request."""
    for block in re.findall(r"(?ms)^```nginx\n(.*?)^```",
                            (ROOT / name).read_text()):
        if "auth_request " in block:
            found = re.search(r"(?ms)^ *server \{(.*?)^    \}", block)
            return found.group(1) if found else block
    raise AssertionError(name)


SAMPLES = {
    "compose": lambda: (ROOT / "ops/conf.d/shop.conf").read_text(),
    "journal": lambda: config_map("gateway-journal.yaml"),
    "postgres": lambda: config_map("gateway-postgres.yaml"),
    "sidecar": lambda: config_map("sidecar.yaml"),
    "start": lambda: page("docs/start-nginx.md"),
    "readme": lambda: page("nginx/README.md"),
}

AUTH = "/c0"        # a path of the upstream that no case has


def locations(text):
    """Those of the sample, with the names of the harness."""
    found = re.search(r"(?ms)^server \{(.*)^\}", text)
    text = found.group(1) if found else text
    for old, new in (
            (r"listen 8080;", ""), (r"\bonce( +)(default|pay);", r"once\1main;"),
            (r"/etc/nginx/conf.d/", "FOLDER/"),
            (r"proxy_pass( +)http://[\w.:]+;", r"proxy_pass\1http://origin;")):
        text = re.sub(old, new, text)
    return re.sub(r"(?s)(location = /auth .*?http://origin);",
                  r"\g<1>%s;" % AUTH, text)


@pytest.fixture(params=SAMPLES)
def sample(request, make):
    site = make(locations(SAMPLES[request.param]()), start=False)
    site.auth = types.SimpleNamespace(requests=[], script=[
        Answer(200, b"", [("X-Tenant", "ann")])])
    site.upstream.cases[AUTH.strip("/")] = site.auth
    secret = subprocess.run(["openssl", "passwd", "-6", "s3cret"], check=True,
                            capture_output=True, text=True).stdout
    (site.folder / "charges.users").write_text("ann:" + secret)
    return site.start()


CREDENTIALS = [("Authorization", "Basic " + base64.b64encode(
    b"ann:s3cret").decode())]


@pytest.mark.parametrize("path", ["/charges", "/CHARGES", "/Charges/",
                                  "/charges;v=1", "//charges", "/%63harges",
                                  "/charge", "/x/../charges", "/other"])
def test_no_spelling_of_a_path_gets_past_the_guard(sample, path):
    c = sample.case("/")
    c.path = path + "/" + c.id
    first = c.post(headers=CREDENTIALS)
    if first.status == 404:         # nothing there, so nothing was sent
        assert c.executions == 0
        return
    is_new(first)
    is_replay(c.post(headers=CREDENTIALS), first)
    assert c.executions == 1


def test_a_client_cannot_say_who_it_is(sample):
    c = sample.case("/charges/" if "location /charges" in
                    sample.gateway.texts["server"] else "/charge/")
    forged = CREDENTIALS + [("X-Tenant", "bob")]
    first = is_new(c.post(headers=forged))
    is_replay(c.post(headers=CREDENTIALS), first)
    by_request = "auth_request " in sample.gateway.texts["server"]
    if by_request:
        assert c.requests[0].all("X-Tenant") == ["ann"]
        assert all(r.all("X-Tenant") == [] for r in sample.auth.requests)
        sample.auth.script[:] = [Answer(200, b"")]
        is_problem(c.post(headers=forged), "scope-missing")
    else:
        assert c.post(headers=[("X-Tenant", "bob")]).status == 401
    assert c.executions == 1
