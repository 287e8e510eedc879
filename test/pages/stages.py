# SPDX-License-Identifier: Apache-2.0
"""
stages.py - what the reader of a page has before he begins, and how a block of
each language is run.
"""

import os
import pathlib
import re
import subprocess

import pages
import servers
from reader import Missing, Wrong

NAME = "6f1c2a9be04d7735"  # what pages call a record
STAGES = {}


def stage(*names):
    def register(function):
        for name in names:
            STAGES[name] = function
        return function
    return register


def prepare(page, reader):
    """A page's stage begins when something of it is typed, not before."""
    STAGES.get(page, lambda reader: None)(reader)


# ---- Things that stages have ----------------------------------------------


def seed(reader, url, *words):
    reader.run("once", "--store", reader.text(url), "init")
    return reader.run(reader.build / "test/cli_seed", reader.text(url), *words)


def gateway(reader):
    """What `make run` starts, with its state where pages have it."""
    process, log = reader.stay(
        "run", "env", "-u", "ONCE_AUDIT", "ONCE_PORT=%d" % reader.port,
        "ONCE_STATE=" + reader.at("/tmp/once"),
        "ONCE_BUILD=%s" % reader.build, "tools/run")
    servers.eventually(lambda: process.poll() is not None or
                       "Ctrl-C stops" in log.read_text(), "the gateway is up")
    found = re.search(r"the service itself on http://(\S+)\.$",
                      log.read_text(), re.M)
    if found is None:
        raise Wrong(log.read_text())
    reader.places["127.0.0.1:PORT"] = found.group(1)


def postgres(reader):
    """A database, which psql finds by itself."""
    server = servers.Postgres(reader.world).init()
    server.start()
    server.furnish()
    reader.env.update(PGHOST=str(server.address), PGPORT=str(server.port),
                      PGUSER="once", PGDATABASE="once",
                      PGCLIENTENCODING="UTF8")
    return server


# ---- Languages ----------------------------------------------------------------


def play_console(reader, block):
    commands = list(pages.session(block.text))
    strict = any(told for _, told in commands)
    for command, told in commands:
        if block.mark == "soon":
            reader.wait(command, told)
        else:
            reader.check(command, told, strict, block.mark == "stays")


def play_sh(reader, block):
    reader.check("set -e\n" + block.text, (), False)


def play_sql(reader, block):
    text = re.sub(r"^=> ", "", block.text, flags=re.M)
    (reader.folder / "block.sql").write_text(reader.text(text))
    reader.run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f",
               reader.folder / "block.sql")


def play_c(reader, block):
    """A piece of a function."""
    (reader.folder / "block.c").write_text(C_BEFORE + block.text + C_AFTER)
    reader.run("cc", "-std=c17", "-Wall", "-Wextra", "-Werror",
               "-fsyntax-only", "-I" + os.path.join(pages.ROOT, "include"),
               reader.folder / "block.c")


C_BEFORE = """#include <once/call.h>
static int charge(once_task *task, void *user)
{
    (void)task;
    return user == 0;
}
int page(once_engine *engine);
int page(once_engine *engine)
{
    once_result result = ONCE_RESULT_INIT;
    once_error err = {0, ""};
    long cents = 1250;
    int rc;
"""
C_AFTER = "\n    once_result_clear(&result);\n    return rc;\n}\n"


def play_python(reader, block):
    del reader
    try:
        compile(block.text, block.page, "exec")
    except SyntaxError as error:
        raise Wrong(str(error)) from error


# ---- nginx ----------------------------------------------------------------


def statements(text):
    """The statements of a configuration, with their blocks."""
    found, depth, begin = [], 0, 0
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    for at, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if depth == 0 and c in ";}":
            found.append(text[begin:at + 1].strip())
            begin = at + 1
    return found


MAIN = ("load_module", "http", "worker_", "user", "env")


def whole(reader, text):
    """A configuration with what the page takes for granted."""
    parts = {"main": [], "http": [], "server": []}
    for s in statements(reader.text(text)):
        where = "main" if s.startswith(MAIN) else "server" \
            if s.startswith(("location", "once_status", "listen")) else "http"
        parts[where].append(s)
    main = "\n".join(parts["main"])
    given = []
    for name in ("pay", "default"):  # of the README; of the package's snippet
        if not re.search(r"once_store\s+%s\b" % name, text) and \
                re.search(r"once(_lookup)?\s+%s\b" % name, text):
            given.append("once_store %s journal:%s;" % (
                name, reader.at("/var/lib/once/x")))
    for name in set(re.findall(r"proxy_pass\s+http://(\w+);", text)):
        if not re.search(r"upstream\s+%s\b" % name, text):
            given.append("upstream %s { server 127.0.0.1:9; }" % name)
    if "$tenant" in text and "auth_request_set $tenant" not in text:
        given.append('map $remote_addr $tenant { default "a"; }')
    module = str(reader.build / "ngx_http_once_module.so")
    if "ngx_http_once_module" not in main:
        main = "load_module %s;\n%s" % (module, main)
    main = re.sub(r"load_module \S*once_module\.so;",
                  "load_module %s;" % module, main)
    if "by_lua" in text:
        main = "".join("load_module /usr/lib/nginx/modules/%s.so;\n" % name for
                       name in ("ndk_http_module", "ngx_http_lua_module")) + main
        given.append('lua_package_path "%s/middleware/lua/?.lua;;";' % pages.ROOT)
    http = "\n".join(given + parts["http"])
    if parts["server"]:
        http += "\nserver { listen 127.0.0.1:%d; server_name a.test;\n%s\n}" % (
            reader.port, "\n".join(parts["server"]))
    if re.search(r"^http\b", main, re.M):
        main = re.sub(r"(?m)^http\s*\{", lambda _: "http {\n" + http, main)
        http = None
    return "%s\nuser root;\npid %s;\nevents {}\n%s" % (
        main, reader.folder / "nginx.pid",
        "" if http is None else "http {\n%s\n}" % http)


def nginx():
    return os.environ.get("ONCE_NGINX_BIN") or servers.find("nginx")


def play_nginx(reader, block):
    """It is accepted without a warning; some go on and serve."""
    conf = pathlib.Path(reader.at("/etc/nginx/nginx.conf"))
    conf.write_text(whole(reader, block.text))
    # Stores of this host are there, as their pages say how.
    for url in re.findall(r"once_store\s+\w+\s+((?:journal|sqlite):/[^\s;?]+)",
                          conf.read_text()):
        if not os.path.exists(url.partition(":")[2]):
            reader.run("once", "--store", url, "init")
    done = subprocess.run(
        [nginx(), "-t", "-p", reader.folder, "-e", "stderr", "-c", conf],
        env=reader.env, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "[warn]" in done.stderr:
        raise Wrong("%s\n%s" % (done.stderr, conf.read_text()))


PLAY = {"console": play_console, "sh": play_sh, "nginx": play_nginx,
        "sql": play_sql, "c": play_c, "python": play_python}


# ---- Pages ------------------------------------------------------------------


@stage("README.md")
def readme(reader):
    gateway(reader)
    reader.write("receipt.json", '{"charge":1}\n')
    seed(reader, "journal:/var/lib/once/pay", "lost", NAME + "0" * 48, "0")


@stage("examples/transaction/README.md")
def transaction(reader):
    reader.places["postgres://app@localhost/shop"] = postgres(reader).url()


@stage("docs/client.md", "examples/agent/README.md")
def with_gateway(reader):
    gateway(reader)


@stage("docs/postgres.md")
def database(reader):
    server = postgres(reader)
    reader.env["PGUSER"] = "postgres"
    secret = pathlib.Path(reader.at("/etc/once/pgpass"))
    secret.touch(0o600)
    reader.places["db.example"] = "%s:%d" % (server.address, server.port)


@stage("docs/messages.md")
def shop(reader):
    server = postgres(reader)
    reader.places["postgres://owner@db/shop"] = server.url()
    for text in ("CREATE ROLE app", "CREATE TABLE orders(id int, cents int)",
                 "CREATE TABLE transfers(id text, cents int)",
                 "CREATE TABLE charges(id text, cents int)",
                 "GRANT ALL ON ALL TABLES IN SCHEMA public TO once"):
        server.sql(text, "once")


@stage("docs/start-messages.md")
def queues(reader):
    """A shop's database, a broker, and what drivers there are."""
    server = postgres(reader)
    for text in "CREATE ROLE shop LOGIN", "CREATE DATABASE shop OWNER shop":
        server.sql(text, "once")
    reader.places["localhost/shop"] = "%s:%d/shop" % (server.address,
                                                      server.port)
    broker = servers.RabbitMQ(reader.world).start()
    reader.places["amqp://guest:guest@localhost/%2f"] = broker.url()
    reader.env["NODE_PATH"] = "%s/drivers/node_modules:/usr/share/nodejs" % \
        reader.build


@stage("docs/stores.md")
def two_databases(reader):
    server = postgres(reader)
    for name in "db-eu", "db-us":
        reader.places[name] = "%s:%d" % (server.address, server.port)
    server.sql("CREATE ROLE gate SUPERUSER LOGIN", "once")
    reader.run("once", "--store", server.url("gate"), "init")


@stage("docs/install.md")
def installed(reader):
    """What the packages have made, and a service."""
    if os.geteuid() != 0:
        raise Missing("only root can give files to www-data")
    top = pathlib.Path(pages.ROOT)
    for name, to in (("nginx/snippets/once.conf", "/etc/nginx/snippets"),
                     ("debian/stores.d/default", "/etc/once/stores.d")):
        pathlib.Path(reader.at(to)).mkdir(parents=True)
        path = pathlib.Path(reader.at(to), pathlib.Path(name).name)
        path.write_text(reader.text((top / name).read_text()))
    reader.run("once", "--store", "default", "init")
    reader.places["/usr/local/lib/nginx/modules/"] = "%s/" % reader.build


@stage("docs/start-nginx.md")
def fresh(reader):
    """A host with the packages, and Debian's nginx."""
    installed(reader)
    service = servers.free_port()
    reader.places["127.0.0.1:3000"] = "127.0.0.1:%d" % service
    reader.places['"127.0.0.1", 3000'] = '"127.0.0.1", %d' % service
    pathlib.Path(reader.at("/etc/nginx/sites-enabled")).mkdir()
    conf = pathlib.Path(reader.at("/etc/nginx/nginx.conf"))
    conf.write_text(whole(reader, "http { include sites-enabled/*; }"))
    words = "%s -p %s -e stderr -c %s" % (nginx(), reader.folder, conf)
    reader.program("nginx", 'exec %s "$@"' % words)
    process, _ = reader.stay("nginx", *words.split(), "-g", "daemon off;")
    reader.program("service", "kill -HUP %d" % process.pid)


@stage("docs/backup.md")
def copied(reader):
    url = "journal:/var/lib/once/pay"
    for name in "a", "b":
        seed(reader, url, "done", name * 64, "success", "answer")
    stores = pathlib.Path(reader.at("/etc/once/stores.d"))
    stores.mkdir()
    (stores / "pay").write_text("url = %s\n" % reader.text(url))


RECORD = "a1b2c3d4e5f60718" * 4


@stage("docs/console.md")
def looked_at(reader):
    url = "journal:/var/lib/once/pay"
    seed(reader, url, "lost", RECORD, "0")
    socket_path = reader.folder / "console.sock"
    reader.places["/run/once/console.sock"] = str(socket_path)
    reader.stay("console", reader.build / "once-console", "--store",
                "pay=" + reader.text(url), "--listen", "unix:%s" % socket_path,
                "--decide")
    servers.eventually(socket_path.exists, "the console listens")


@stage("docs/operate.md")
def operated(reader):
    gateway(reader)
    operators = pathlib.Path(reader.at("/etc/once/operators"))
    operators.write_text("alice     view,body\n")
