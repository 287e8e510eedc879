#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
service_lua.py - an nginx whose content handlers are guarded by the middleware
for Lua, for the scenarios of test/gateway (ONCE_TARGET=lua).

    service_lua.py FILE SOCKET  serves the routes of the file (routes.py); the
                                servers of its stores listen at SOCKET.NAME

It writes an nginx.conf beside the file, and becomes nginx. What the handlers do
stands in service.lua.
"""

import json
import os
import pathlib
import shutil
import sys

import routes

HERE = pathlib.Path(__file__).resolve().parent
MODULES = pathlib.Path("/usr/lib/nginx/modules")

CONF = """
load_module %(modules)s/ndk_http_module.so;
load_module %(modules)s/ngx_http_lua_module.so;
user root;
worker_processes 1;
pid nginx.pid;
lock_file nginx.lock;
error_log %(error_log)s info;
daemon off;
events { worker_connections 4096; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    access_log off;
    default_type text/plain;
    keepalive_requests 100000;
    lingering_close off;
    client_max_body_size 0;
    lua_package_path "%(here)s/?.lua;%(here)s/../../middleware/lua/?.lua;;";
    lua_transform_underscores_in_response_headers off;
    init_by_lua_block { require("service").load("%(file)s") }
    server {
        listen %(listen)s;
        server_name _;
        %(locations)s
    }
}
"""


def location_text(location):
    lines = ["location %s {" % location.path]
    if location.users:
        lines += ['auth_basic "shop";',
                  "auth_basic_user_file %s;" % location.users]
    if location.denied:
        lines.append("deny all;")
    lines.append('content_by_lua_block { require("service").serve("%s") }'
                 % location.path)
    return "\n            ".join(lines) + "\n        }"


def for_lua(location, sock):
    """What service.lua has to know of a location."""
    host, port = location.origin or ("127.0.0.1", 1)
    told = {"path": location.path, "host": host, "port": port,
            "timeout_ms": int(location.timeout * 1000),
            "serve": location.store and "unix:%s.%s" % (sock, location.store),
            "route": location.route, "scope": location.scope,
            "key": location.key, "fingerprint": location.fingerprint}
    return {name: value for name, value in told.items() if value is not None}


def main(file, sock):
    folder = pathlib.Path(file).resolve().parent
    top, _, locations = routes.read(file)
    (folder / "routes.json").write_text(
        json.dumps([for_lua(x, sock) for x in locations]))
    (folder / "nginx.conf").write_text(CONF % {
        "modules": MODULES, "here": HERE, "file": folder / "routes.json",
        "error_log": top["error_log"], "listen": top["listen"],
        "locations": "\n        ".join(map(location_text, locations))})
    nginx = shutil.which(os.environ.get("ONCE_NGINX_BIN", "nginx"))
    os.execv(nginx, [nginx, "-p", str(folder), "-e", "error.log", "-c",
                     str(folder / "nginx.conf")])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
