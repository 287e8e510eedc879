#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""systemd.py - the packages under a running systemd. test/packages/run boots a
Debian twice: `systemd.py first` installs, uses, upgrades; `systemd.py second`
finds everything again, and removes the packages."""
import glob
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__),
                                "../../debian/tests"))
from packaged import (CONF, EXECUTED, LOG, PORT, SERVICE, SITE, executed,
                      listening, new_then_replayed, post, run, serving, until)

DEBS = sorted(glob.glob("/debs/*.deb"))
SERVICES = "backup", "check", "console", "purge", "relay"
OUTSIDE = "192.0.2.1"
SHOP = "sqlite:/var/lib/once/shop/shop.db"
METRICS = "/run/once-relay-shop/metrics.prom"

# A service that breaks off: what became of the request is not known.
LOST = """
server {
    listen 127.0.0.1:8093;
    location / {
        once default;
        once_scope $http_authorization;
        proxy_pass http://127.0.0.1:8094;
    }
}
server { listen 127.0.0.1:8094; return 444; }
"""

# What the units forbid. Without a unit all of it is possible for any user.
PROBE = r'''
import ctypes, errno, json, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
said = {}

def see(what, try_it):
    try:
        rc = try_it()
        said[what] = "yes" if rc != -1 else errno.errorcode[ctypes.get_errno()]
    except OSError as e:
        said[what] = errno.errorcode[e.errno]

def send(address):
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.sendto(b"x", (address, 8095))

see("write /srv/open", lambda: open("/srv/open/x", "w").close())
see("write /var/open", lambda: open("/var/open/x", "w").close())
see("see /home/open", lambda: os.stat("/home/open"))
see("see /tmp/open", lambda: os.stat("/tmp/open"))
see("see process 1", lambda: os.stat("/proc/1"))
see("see /dev/console", lambda: os.stat("/dev/console"))
see("new user namespace", lambda: libc.unshare(0x10000000))
see("memory to write and execute",
    lambda: mmap.mmap(-1, 4096, prot=7).close())
see("packet socket", lambda: socket.socket(socket.AF_NETLINK, 3).close())
see("be less nice", lambda: os.sched_setscheduler(
    0, os.SCHED_BATCH, os.sched_param(0)))
see("set-user-id file", lambda: os.chmod(
    os.open(os.environ["OWN"] + "/probe", os.O_CREAT), 0o4700))
see("send to this host", lambda: send("127.0.0.1"))
see("send to another", lambda: send("192.0.2.1"))
see("write its own", lambda: open(os.environ["OWN"] + "/x", "w").close())
print(json.dumps(said))
'''

# How each is refused. The relay reaches brokers on other hosts, and what exec:
# runs may make code.
REFUSED = {
    "write /srv/open": "EROFS",
    "write /var/open": "EROFS",
    "see /home/open": "EACCES",
    "see /tmp/open": "ENOENT",
    "see process 1": "ENOENT",
    "see /dev/console": "ENOENT",
    "new user namespace": "EPERM",
    "memory to write and execute": "EPERM",
    "packet socket": "EAFNOSUPPORT",
    "be less nice": "EPERM",
    "set-user-id file": "EPERM",
    "send to another": "EPERM",
}
RELAY_MAY = "memory to write and execute", "send to another"


def systemctl(*arguments, ok=True):
    try:
        return run("systemctl", *arguments, ok=ok).strip()
    except AssertionError:
        print(run("journalctl", "--no-pager", "-o", "cat", "-n", "30"))
        raise


def show(unit, name):
    return systemctl("show", "--value", "-p", name, unit)


def active(unit):
    return show(unit, "ActiveState") == "active"


def pid_of(unit):
    return int(show(unit, "MainPID"))


def as_user(user, command, stdin=""):
    """A shell's line, by nobody else than this user."""
    groups = "--clear-groups" if user == "once-relay" else "--init-groups"
    return run("setpriv", "--reuid=" + user, "--regid=" + user, groups,
               "env", "ONCE_DATABASE=" + SHOP, "sh", "-c",
               "printf %s '" + stdin + "' | " + command)


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, mode)


def install(*debs):
    print(run("apt-get", "install", "-y", "--no-install-recommends",
              *debs).splitlines()[-1])


def another_version(package, version):
    """The package with nothing but another version."""
    folder = "/later/" + package
    [deb] = glob.glob("/debs/%s_*.deb" % package)
    os.makedirs("/later", exist_ok=True)
    run("dpkg-deb", "-R", deb, folder)
    run("sed", "-i", "s/^Version: .*/Version: %s/; s/(= [^)]*)/(= %s)/" % (
        version, version), folder + "/DEBIAN/control")
    run("dpkg-deb", "--root-owner-group", "-b", folder, folder + ".deb")
    return folder + ".deb"


# ---- What each unit may do ----


def probe(name):
    user = "once-relay" if name == "relay" else "www-data"
    own, out = "/var/lib/once/probe-" + name, "/run/probe-" + name
    run("install", "-d", "-o", user, "-g", user, own)
    unit = "once-%s@probe.service" % name
    write("/etc/systemd/system/%s.d/probe.conf" % unit, """[Service]
Type=oneshot
Restart=no
EnvironmentFile=
Environment=OWN=%s
ExecStart=
ExecStart=/usr/bin/python3 /probe.py
StandardOutput=file:%s
""" % (own, out))
    systemctl("daemon-reload")
    systemctl("start", unit)
    systemctl("stop", "once-console@probe.socket", ok=False)
    with open(out, encoding="ascii") as f:
        return json.load(f)


def hardening():
    write("/probe.py", PROBE)
    for folder in "/srv/open", "/var/open", "/home/open", "/tmp/open":
        os.mkdir(folder)
        os.chmod(folder, 0o777)
    run("ip", "address", "add", OUTSIDE + "/32", "dev", "lo")
    run("install", "-d", "-o", "www-data", "/var/lib/once/probe")
    free = json.loads(as_user(
        "www-data", "OWN=/var/lib/once/probe python3 /probe.py"))
    print("without a unit:", free)
    assert set(free.values()) == {"yes"}, free
    for name in SERVICES:
        said = probe(name)
        print("%s: %s" % (name, said))
        want = {what: REFUSED.get(what, "yes") for what in free}
        if name == "relay":
            want.update((what, "yes") for what in RELAY_MAY)
        assert said == want, (name, {
            what: (said[what], want[what]) for what in want
            if said[what] != want[what]})


# ---- Units, one by one ----


def ends_well(unit):
    systemctl("start", unit)
    assert show(unit, "Result") == "success", unit


def journal(unit):
    return run("journalctl", "--no-pager", "-o", "cat", "-u", unit)


def copies():
    return sorted(glob.glob("/var/backups/once/default/*.copy"))


def oneshots():
    for name in "check", "backup", "purge":
        ends_well("once-%s@default.service" % name)
    assert "well" in journal("once-check@default.service")
    [copy] = copies()
    print(run("once", "verify", copy))

    # The store of this name is not there: the unit fails, and says why.
    write("/etc/once/stores.d/away", "url = journal:/var/lib/once/away/x\n")
    systemctl("start", "once-check@away.service", ok=False)
    assert show("once-check@away.service", "Result") == "exit-code"
    print(journal("once-check@away.service"))
    systemctl("reset-failed")


def nightly():
    """The host was off for two nights: the copy is made when it is back. The
    only change is that it does not wait for half an hour at random."""
    old = "/var/backups/once/default/old.copy"
    run("touch", "-d", "9 days ago", old)
    run("rm", *copies()[:1])
    os.makedirs("/var/lib/systemd/timers", exist_ok=True)
    run("touch", "-d", "2 days ago",
        "/var/lib/systemd/timers/stamp-once-backup@default.timer")
    write("/etc/systemd/system/once-backup@default.timer.d/now.conf",
          "[Timer]\nRandomizedDelaySec=0\nAccuracySec=1\n")
    systemctl("daemon-reload")
    systemctl("enable", "--now", "once-backup@default.timer",
              "once-purge@default.timer")
    until(lambda: copies() and not os.path.exists(old),
          "a copy, and the old one goes", 150)
    until(lambda: show("once-backup@default.service", "ActiveState") ==
          "inactive", "the copy has ended")
    assert show("once-backup@default.service", "Result") == "success"


def console(method, path, body="", user="root"):
    """Over the socket, by a process of this user."""
    lines = ["%s /api/v1/%s HTTP/1.1" % (method, path), "Host: localhost",
             "Connection: close"]
    if body:
        lines += ["Once-Console: 1", "Sec-Fetch-Site: same-origin",
                  "Content-Type: application/json", "Idempotency-Key: decision-1",
                  "Content-Length: %d" % len(body)]
    write("/run/asked", "\r\n".join(lines) + "\r\n\r\n" + body)
    got = run("setpriv", "--reuid=" + user, "--regid=" + user,
              "--init-groups", "python3", "-c", """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect("/run/once/default.sock")
    s.sendall(open("/run/asked", "rb").read())
    while part := s.recv(65536):
        sys.stdout.buffer.write(part)
""", ok=False)
    if "PermissionError" in got:
        return None
    head, _, text = got.partition("\n\n")  # run() reads lines
    assert " 200 " in head.splitlines()[0], got
    return json.loads(text)


def consoles():
    """Members of once-operators come in, by the socket that systemd holds, and
    one of them decides."""
    unit = "once-console@default.service"
    run("useradd", "-m", "-G", "once-operators", "ann")
    run("useradd", "-m", "bob")
    with open(SITE, "a", encoding="ascii") as f:
        f.write(LOST)
    systemctl("reload", "nginx")
    until(lambda: serving(8093), "a lost outcome")

    systemctl("enable", "--now", "once-console@default.socket")
    assert not active(unit)
    assert console("GET", "session", user="bob") is None
    print(console("GET", "session", user="ann"))
    assert active(unit)
    [r] = console("GET", "stores/default/records?what=waiting",
                  user="ann")["records"]

    write("/etc/once/console-default.env", "ONCE_CONSOLE=--decide\n")
    write("/etc/once/operators", "ann decide\n")
    before = pid_of(unit)
    systemctl("restart", unit)
    assert pid_of(unit) != before
    said = console(
        "POST", "stores/default/records/%s/decision" % r["name"], json.dumps({
            "action": "success", "fence": r["fence"], "why": "ticket 12",
            "attempt": r["attempt"], "confirm": r["name"][:8], "status": 200,
            "headers": [], "body": "paid"}), "ann")
    assert said["verdict"] == "done", said
    assert post("is-there-anybody", "/", port=8093)[:2] == (200, "replayed")
    with open("/var/log/once/audit.jsonl", encoding="utf-8") as f:
        assert "ticket 12" in f.read()
    print(run("once", "audit", "verify"))


def carried(name):
    as_user("once-relay", "once messages emit --route orders --id " + name, "{}")
    until(lambda: any(name in key for key in executed()),
          "%s is carried" % name)


def relay():
    unit = "once-relay@shop.service"
    run("install", "-d", "-m", "0750", "-o", "once-relay", "-g", "once-relay",
        "/var/lib/once/shop")
    as_user("once-relay", "once messages init")
    write("/etc/once/relay-shop.orders", "http://127.0.0.1:%d/\n" % SERVICE,
          0o640)
    run("chgrp", "once-relay", "/etc/once/relay-shop.orders")
    write("/etc/once/relay-shop.env", "ONCE_DATABASE=%s\nONCE_RELAY=--to"
          " orders=@/etc/once/relay-shop.orders --metrics %s\n" % (
              SHOP, METRICS))
    systemctl("enable", "--now", unit)
    carried("first")
    until(lambda: os.path.exists(METRICS), "metrics")

    # Killed, it comes back; stopped, it ends by itself.
    before = pid_of(unit)
    os.kill(before, signal.SIGKILL)
    until(lambda: active(unit) and pid_of(unit) not in (0, before),
          "it is started again")
    carried("after-a-kill")
    systemctl("stop", unit)
    assert (show(unit, "Result"), show(unit, "ExecMainStatus")) == (
        "success", "0"), journal(unit)
    assert not os.path.exists(METRICS)
    systemctl("start", unit)
    carried("after-a-stop")


def upgrade():
    """What goes on running is the new program."""
    units = "once-relay@shop.service", "once-console@default.service"
    before = {unit: pid_of(unit) for unit in units}
    install(another_version("once", "9:9"),
            another_version("once-console", "9:9"))
    for unit in units:
        until(lambda unit=unit: active(unit) and
              pid_of(unit) not in (0, before[unit]), unit + " is another one")
        assert "(deleted)" not in os.readlink("/proc/%d/exe" % pid_of(unit))
    assert "no" == show("once-check@default.timer", "NeedDaemonReload")
    carried("after-an-upgrade")
    assert console("GET", "session", user="ann")


# ---- The two boots ----


def settled():
    said = run("systemctl", "is-system-running", "--wait", ok=False).strip()
    print("system:", said)
    assert said == "running", systemctl("--failed", "--no-pager")


def minute():
    """From one apt command to a guarded location, as docs/install.md says. The
    time is printed and not judged; downloads are not part of it."""
    began = time.monotonic()
    install(*glob.glob("/debs/once_*.deb"), "nginx",
            *glob.glob("/debs/libnginx-mod-http-once_*.deb"))
    installed = time.monotonic()
    write(SITE, CONF % (PORT, LOG, SERVICE, "", SERVICE, EXECUTED))
    print(run("nginx", "-t"))
    run("service", "nginx", "reload")
    until(serving, "nginx serves")
    new_then_replayed("k-first")
    print("apt install %.1f s, then until replayed %.1f s" % (
        installed - began, time.monotonic() - installed))


def first():
    settled()
    before = listening()
    minute()
    install(*[deb for deb in DEBS if "-dev_" not in deb and
              "-doc_" not in deb and "-dbgsym_" not in deb])
    assert {a.rpartition(":")[2] for _, a in listening() - before} <= {
        "80", str(PORT), str(SERVICE)}
    enabled = run("sh", "-c", "ls /etc/systemd/system/*.wants | grep once",
                  ok=False)
    assert enabled == "", enabled
    systemctl("enable", "--now", "once-check@default.timer")

    for part in hardening, oneshots, nightly, consoles, relay, upgrade:
        print("----", part.__name__, flush=True)
        part()
    print("---- the canary, each minute", flush=True)
    check = "once-check@default.service"
    until(lambda: journal(check).count("Finished") >= 3,
          "two checks by the timer", 300)
    settled()


def second():
    settled()
    assert post("k-first")[1] == "replayed"
    units = ["once-relay@shop.service", "once-console@default.socket"] + [
        "once-%s@default.timer" % name for name in ("check", "backup", "purge")]
    for unit in units:
        assert active(unit), unit
    ends_well("once-check@default.service")
    print(run("once", "--store", "default", "clock"))
    carried("after-a-boot")
    assert console("GET", "session", user="ann")
    assert console("GET", "session", user="bob") is None

    # Removed: nothing of it runs on.
    units.append("once-console@default.service")
    os.remove(SITE)
    print(run("apt-get", "remove", "-y", "once", "once-console",
              "libnginx-mod-http-once"))
    left = [unit for unit in units if active(unit)]
    assert not left, left
    systemctl("restart", "nginx")
    settled()


def main():
    os.environ.update(DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
    {"first": first, "second": second}[sys.argv[1]]()


if __name__ == "__main__":
    main()
