# SPDX-License-Identifier: Apache-2.0
"""
routes.py - the route file of the scenarios (test/guard/conf.h), for services in
other languages: each directive of Once becomes a member of a route, as it is
written. What computes a text from a request stays here.
"""

import json
import re
import sys

# What is nginx's own way of reading, buffering and sending.
IGNORED = re.compile(
    "auth_basic|gzip|client_body_.*|proxy_(?!pass$|read_timeout$).*")
UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Location:
    """One route: what it guards, and where its handler goes."""

    def __init__(self, path):
        self.path = path
        self.store = None
        self.route = {}
        self.scope = self.key = self.fingerprint = None
        self.origin = None
        self.timeout = 60.0
        self.users = None
        self.denied = False


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(\w*)", text).groups()
    return int(number) * UNITS[unit]


def expand(template, header, path, user):
    """$http_NAME, $uri and $remote_user."""
    def value(match):
        name = match.group(1)
        if name == "uri":
            return path
        if name == "remote_user":
            return user or ""
        assert name.startswith("http_"), "unknown variable $" + name
        return header(name[5:].replace("_", "-")) or ""
    return re.sub(r"\$(\w+)", value, template)


def directive(location, name, words):
    value = " ".join(words)
    if name == "once":
        location.store = value
    elif name == "proxy_pass":
        host, _, port = value.removeprefix("http://").partition(":")
        location.origin = host, int(port)
    elif name == "proxy_read_timeout":
        location.timeout = seconds(value)
    elif name == "auth_basic_user_file":
        location.users = value
    elif name == "deny":
        location.denied = True
    elif name == "client_max_body_size":
        location.route["max_request"] = value
    elif name == "once_scope" and value != "off":
        assert "scope" not in location.route, "once_scope is duplicate"
        location.scope = value
    elif name == "once_key":
        match = re.fullmatch(r"\$http_(\w+)", value)
        if match:
            location.route["key"] = match.group(1).replace("_", "-")
        else:
            location.key = value
    elif name == "once_fingerprint" and len(words) == 1 and "$" in value:
        location.fingerprint = value
    elif name == "once_defined":    # the server knows it: --define
        location.route = value
    elif name == "once_hide_header":
        location.route["hide_header"] = (
            location.route.get("hide_header", "") + " " + value).strip()
    elif name.startswith("once_"):
        assert name[5:] not in location.route, "%s is duplicate" % name
        location.route[name[5:]] = value
    else:
        assert IGNORED.fullmatch(name), "unknown directive " + name


def read(path):
    """(what stands before the first location, stores, locations)."""
    top, stores, locations = {}, {}, []
    with open(path, encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if words[0] == "location":
                locations.append(Location(words[1]))
            elif words[0] == "once_store":
                stores[words[1]] = words[2:]
            elif locations:
                directive(locations[-1], words[0], words[1:])
            else:
                top[words[0]] = words[1]
    for location in locations:
        more = stores.get(location.store, [""])[1:]
        if more:
            location.route["timeout"] = more[0].removeprefix("timeout=")
    return top, stores, locations


def find(locations, path):
    """The longest path that this one begins with."""
    found = [x for x in locations if path.startswith(x.path)]
    return max(found, key=lambda x: len(x.path), default=None)


def as_json(path):
    first, _, locations = read(path)
    return json.dumps({"top": first, "locations": [vars(x) for x in locations]})


if __name__ == "__main__":
    print(as_json(sys.argv[1]))
