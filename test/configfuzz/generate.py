# SPDX-License-Identifier: Apache-2.0
"""A case for each seed.

Every request of a client goes to /pay, which a guarded location answers. The
protocol of each role, the shape of the location and everything around it are
drawn; what nginx itself would refuse is not drawn, so that whatever `nginx -t`
says comes from the module.
"""

import os
import random

from case import Case

FILTER = "/usr/lib/nginx/modules/ngx_http_image_filter_module.so"
HAS_FILTER = os.path.exists(FILTER)

PREFIX = {"http": "proxy", "fastcgi": "fastcgi", "scgi": "scgi",
          "uwsgi": "uwsgi"}
SCHEME = {"http": "http://", "uwsgi": "uwsgi://", "fastcgi": "", "scgi": ""}

# What an application gets beside its method, whatever the location.
PARAMS = ("DOCUMENT_URI $document_uri", "CONTENT_LENGTH $content_length",
          "SERVER_PROTOCOL $server_protocol", "REQUEST_URI $request_uri")

STATUSES = (200, 201, 202, 204, 301, 400, 404, 409, 422, 500, 502, 503, 504)
FREEING = (401, 408, 421, 425, 429)
REPEATING = ("http_500", "http_502", "http_503", "http_504", "http_429",
             "http_403", "http_404", "invalid_header")


class Draw(random.Random):
    """Names for what is drawn all the time."""

    def chance(self, share):
        return self.random() < share

    def some(self, values, least, most):
        return self.sample(values, self.randint(least, min(most, len(values))))

    def weighted(self, table):
        values = list(table)
        return self.choices(values, [table[v] for v in values])[0]


class Maker:
    def __init__(self, seed):
        self.d = Draw(seed)
        d = self.d
        self.protocol = {"main": self.any_protocol()}
        for role in ("fallback", "target"):
            self.protocol[role] = (self.protocol["main"] if d.chance(0.5)
                                   else self.any_protocol())
        self.methods = d.weighted({
            ("POST", "PATCH"): 5, ("POST",): 2, ("POST", "PUT"): 3,
            ("POST", "PUT", "DELETE"): 2, ("PUT", "DELETE"): 1,
            ("DELETE",): 1})
        self.caching = d.chance(0.2)
        # Whether the cache shall keep guarded methods, which may be refused.
        self.keeps = self.caching and "POST" in self.methods and d.chance(0.6)
        self.accel = d.chance(0.3)
        self.needs = set()      # locations that something leads to
        self.variables = 0
        self.groups = {}
        # What the locations inherit from the server.
        self.timed = False
        self.inherit = d.chance(0.15)

    def any_protocol(self):
        return self.d.weighted({"http": 5, "fastcgi": 3, "scgi": 1,
                                "uwsgi": 1})

    # -- upstreams

    def group(self, role):
        """The name of an upstream block."""
        name = "c_" + role
        if name in self.groups:
            return name
        d = self.d
        protocol = self.protocol[role]
        peers = ["%s_%s_1" % (protocol, role)]
        if d.chance(0.7):
            peers.append("%s_%s_2" % (protocol, role))
        odd = d.weighted({None: 8, "dead": 2, "deaf": 1, "mute": 0.4})
        if odd:
            peers.insert(d.randint(0, len(peers)), odd)
        if odd == "dead" and d.chance(0.2):
            peers = ["dead"]
        lines = []
        for peer in peers:
            more = d.weighted({"": 4, " max_fails=0": 4})
            if len(lines) > 0 and d.chance(0.1):
                more += " backup"
            lines.append("server %s%s;" % (peer, more))
        if d.chance(0.2) and not any("backup" in line for line in lines):
            # Not `random`: the seed alone decides.
            lines.insert(0, d.choice(["least_conn;", "hash $uri;"]))
        if d.chance(0.25):
            lines.append("keepalive 4;")
        self.groups[name] = lines
        return name

    def destination(self, role):
        """What stands behind `*_pass`, and the lines that go before it."""
        d = self.d
        scheme = SCHEME[self.protocol[role]]
        if self.protocol[role] == "uwsgi" and d.chance(0.5):
            scheme = ""
        kind = d.weighted({"group": 4, "variable": 4, "address": 1,
                           "variable address": 1})
        name = (self.group(role) if "address" not in kind else
                "%s_%s_%d" % (self.protocol[role], role, d.randint(1, 2)))
        if "variable" not in kind:
            return [], scheme + name
        self.variables += 1
        b = "$b%d" % self.variables
        if self.protocol[role] == "http" and d.chance(0.15):
            return ["set %s $request_uri;" % b], scheme + name + b
        return ["set %s %s;" % (b, name)], scheme + b

    def passing(self, role):
        before, where = self.destination(role)
        return before + ["%s_pass %s;" % (PREFIX[self.protocol[role]], where)]

    # -- what stands in a proxied location

    def next_upstream(self, prefix):
        d = self.d
        if d.chance(0.3):
            return []
        if d.chance(0.08):
            return ["%s_next_upstream off;" % prefix]
        values = ["error", "timeout"] if d.chance(0.8) else ["error"]
        values += d.some([v for v in REPEATING
                          if prefix != "uwsgi" and prefix != "scgi"
                          or v not in ("http_502", "http_504")], 0, 3)
        if prefix == "fastcgi":
            values = [v for v in values if v not in ("http_502", "http_504")]
        if d.chance(0.65):
            values.append("non_idempotent")
        out = ["%s_next_upstream %s;" % (prefix, " ".join(values))]
        if d.chance(0.15):
            out.append("%s_next_upstream_tries %d;" % (prefix,
                                                       d.randint(0, 3)))
        return out

    def cache(self, prefix, keeps):
        d = self.d
        out = ["%s_cache cache_%s;" % (prefix, prefix)]
        if keeps:
            out.append("%s_cache_methods POST;" % prefix)
        if d.chance(0.8):
            out.append("%s_cache_use_stale %s;" % (prefix, " ".join(d.some(
                ["error", "timeout", "updating", "invalid_header", "http_500",
                 "http_503"], 1, 4))))
        if d.chance(0.4):
            out.append("%s_cache_background_update on;" % prefix)
        if d.chance(0.2):
            out.append("%s_cache_lock on;" % prefix)
        if d.chance(0.3):
            out.append("%s_cache_valid any 1s;" % prefix)
        if d.chance(0.1):
            out.append("%s_cache_bypass $http_origin;" % prefix)
        return out

    def settings(self, role, keeps=False, cached=False):
        """Directives of an upstream in a location of this role."""
        d = self.d
        prefix = PREFIX[self.protocol[role]]
        out = self.next_upstream(prefix)
        if cached:
            out += self.cache(prefix, keeps)
        for share, line in (
                (0.15, "intercept_errors on;"),
                (0.15, "buffering off;"),
                (0.1, "request_buffering off;"),
                (0.1, "ignore_client_abort %s;" % d.choice(["on", "off"])),
                (0.05, "ignore_headers X-Accel-Redirect;"),
                (0.05, "ignore_headers X-Accel-Expires Cache-Control;"),
                (0.04, "store FOLDER/www/stored;"),
                (0.05, "limit_rate 4m;"),
                (0.05, "max_temp_file_size 0;"),
                (0.04, "force_ranges on;")):
            if d.chance(share) and not (cached and "store" in line):
                out.append(prefix + "_" + line)
        if prefix == "proxy":
            if d.chance(0.5):
                out.append("proxy_http_version 1.1;")
                if d.chance(0.6):
                    out.append('proxy_set_header Connection "";')
            if d.chance(0.06):
                out += ["slice 42;", "proxy_set_header Range $slice_range;"]
        if prefix == "fastcgi" and d.chance(0.3):
            out.append("fastcgi_keep_conn on;")
        return out

    def error_page(self):
        d = self.d
        codes = " ".join(str(c) for c in sorted(d.some(
            [404, 409, 429, 500, 502, 503, 504], 1, 4)))
        to = d.weighted({"@fb": 6, "/page": 3, "/other": 1, "/files/x": 1})
        change = d.weighted({"": 5, "=": 2, "=200": 2, "=503": 0.5})
        self.needs.add(to.split("/x")[0])
        return "error_page %s %s%s;" % (codes, change + " " if change else "",
                                        to)

    def condition(self, hit=0.85):
        d = self.d
        if not d.chance(hit):
            return "if ($http_never)"
        return d.choice(["if ($http_origin)", "if ($http_origin)",
                         "if ($request_method = %s)" % self.methods[0],
                         "if ($uri ~ p)", 'if ($args = "")',
                         "if (!-f $request_filename)"])

    def if_block(self, role):
        d = self.d
        lines = []
        for share, make in (
                (0.45, lambda: ["add_header A b;"]),
                (0.35, lambda: ["set $x 1;"]),
                (0.25, lambda: self.passing(role)),
                (0.15, lambda: [self.error_page()]),
                (0.06, lambda: ["break;"]),
                (0 if role == "target" else 0.05,
                 lambda: ["rewrite ^ /other last;"]),
                (0.05, lambda: ["rewrite ^ /changed break;"]),
                (0.02, lambda: ["return 202;"])):
            if d.chance(share):
                made = make()
                lines += made
                if "rewrite ^ /other last;" in made:
                    self.needs.add("/other")
        return [self.condition(), lines or ["set $x 1;"]]

    def guard(self, share=1.0):
        d = self.d
        if not d.chance(share):
            return ["once off;"] if d.chance(0.3) else []
        if self.inherit and d.chance(0.6):
            return []
        out = ["once s;", d.choice(["once_scope off;",
                                    "once_scope $server_name;",
                                    "once_scope $server_name$scheme;"])]
        for chance, line in (
                (0.15, "once_two_phase on;"),
                (0.15, "once_in_flight wait=3s;"),
                (0.1, "once_max_response 1k;"),
                (0.05, "once_key_required on;"),
                (0.05, "once_repeat refuse;"),
                (0.05, "once_ttl 1h failure=30s;"),
                (0.05, "once_store_cookies on;")):
            if d.chance(chance):
                out.append(line)
        if d.chance(0.2) and self.protocol["fallback"] == "http":
            out.append("once_probe /asked;")
            self.needs.add("/asked")
        return out

    # -- locations

    def proxied(self, role, guarded, more=(), cached=False, keeps=False):
        d = self.d
        out = self.guard(1.0 if guarded else 0.35) + list(more)
        out += self.settings(role, keeps, cached)
        out += self.passing(role)
        if d.chance(0.45):
            for _ in range(d.randint(1, 2)):
                out.append(self.if_block(role))
        return out

    def entry(self):
        """The location that answers /pay."""
        d = self.d
        more = []
        for _ in range(d.weighted({0: 6, 1: 4, 2: 1})):
            more.append(self.error_page())
        if d.chance(0.12):
            to = d.weighted({"@fb": 4, "/other": 2, "=404": 1, "$uri": 1})
            more.append("try_files /none%s;" % (
                " " + to if to != "$uri" else " $uri @fb"))
            self.needs.add("@fb" if to == "$uri" else to)
        if d.chance(0.06):
            more.append("auth_request /auth;")
            self.needs.add("/auth")
        if d.chance(0.06):
            more.append("rewrite ^ %s;" % d.choice(
                ["/other last", "/changed break"]))
            if "/other" in more[-1]:
                self.needs.add("/other")
        if d.chance(0.06):
            more.append("ssi on;")
        lines = self.proxied("main", True, more, self.caching, self.keeps)
        if d.chance(0.1):
            inner = ["allow all;"]
            if self.protocol["main"] == "http" and d.chance(0.6):
                *before, inner = self.passing("main")
                lines += before
                inner = [inner]
            lines.append(["limit_except GET", inner])
        head = d.weighted({"/": 4, "/pay": 3, "= /pay": 1, "~ ^/p": 1,
                           "^~ /pay": 1})
        if head == "/" and d.chance(0.2):
            inner = self.proxied("main", True)
            if d.chance(0.5):
                inner = [n for n in inner if n != "once s;" and not
                         str(n).startswith("once_scope")]
            return ["location /", lines + [["location /pay", inner]]]
        return ["location " + head, lines]

    def location(self, name):
        d = self.d
        if name == "/auth":
            return ["location = /auth", ["return 204;"]]
        if name == "/files":
            lines = ["internal;"] if d.chance(0.7) else []
            if d.chance(0.1):
                lines.append("directio 1;")
            return ["location /files/", lines or ["expires off;"]]
        if name == "/asked":
            # What answers is a page: it says nothing of the record.
            return ["location = /asked", ["internal;", "once off;"] +
                    self.passing("fallback")]
        if name == "=404":
            return None
        role = "target" if name in ("@t", "/t") else "fallback"
        if name == "/other":
            return ["location /other", self.proxied("main", True)]
        cached = self.caching and d.chance(0.3)
        more = []
        if d.chance(0.2) and name not in ("/page",):
            more = [self.error_page()]
        if name in ("/t", "/page") and d.chance(0.5):
            more.append("internal;")
        lines = self.proxied(role, d.chance(0.4) and name != "/page", more,
                             cached, self.keeps)
        return ["location %s" % (name + "/" if name == "/t" else name), lines]

    def server(self):
        d = self.d
        entry = self.entry()
        if self.accel:
            self.needs.update(("@t", "/t", "/files"))
        out = []
        if self.inherit:
            out += ["once s;", "once_scope off;"]
        if d.chance(0.15):
            out += self.next_upstream(PREFIX[self.protocol["main"]])
        if self.methods != ("POST", "PATCH"):
            out.append("once_methods %s;" % " ".join(self.methods))
        if d.chance(0.2):
            out.append("once_final %s;" % d.choice(
                ["2xx", "2xx 4xx", "2xx 3xx 4xx", "2xx 5xx", "2xx 408 429"]))
        if d.chance(0.2):
            out.append("once_unknown %s;" % d.choice(
                ["off", "502", "500 503", "404 502 504"]))
        if d.chance(0.05):
            out.append("once_lost takeover;")
        if d.chance(0.3):
            out.append("once_key_space %s;" % d.choice(["realm", "path"]))
        self.timed = d.chance(0.05)
        if self.timed:
            out.append("once_key_time uuid7;")
        if d.chance(0.1):
            out.append("recursive_error_pages on;")
        if d.chance(0.15):
            out.append(self.error_page())
        if d.chance(0.05):
            out.append("%s_intercept_errors on;" %
                       PREFIX[self.protocol["main"]])
        if d.chance(0.08):
            out.append([self.condition(), ["set $y 1;"]])
        done = set()
        locations = [entry]
        while self.needs - done:
            name = sorted(self.needs - done)[0]
            done.add(name)
            made = self.location(name)
            if made:
                locations.append(made)
        heads = [loc[0] for loc in locations]
        assert len(heads) == len(set(heads)), heads
        return out + locations

    # -- what the upstreams do

    def answer(self, role, kind=None):
        d = self.d
        if kind is None:
            kind = d.weighted({
                "whole": 9, "drop": 3, "reset": 1, "cut": 2, "short": 1,
                "no-end": 0.7, "stall": 0.5, "hang": 0.7, "cut-head": 0.5,
                "garbage": 0.5})
        if kind in ("drop", "reset", "hang", "cut-head", "garbage"):
            return kind
        status = d.choice(STATUSES)
        if d.chance(0.45):
            status = 201
        elif d.chance(0.25):
            status = d.choice(FREEING)
        elif d.chance(0.02):
            status = 600
        words = [kind, str(status)]
        words += d.weighted({(): 5, ("chunked",): 2, ("close",): 2})
        for share, word in (
                (0.7 if self.caching else 0.02, "stale"), (0.12, "slow"),
                (0.05, "early"), (0.2, "keep"), (0.06, "big"),
                (0.03, "sse"), (0.02, "ndjson"), (0.03, "unbuffered"),
                (0.1, "part")):
            if d.chance(share):
                words.append(word)
        if self.accel and d.chance(0.7 if role == "main" else 0.05):
            words.append("accel=" + d.weighted(
                {"@t": 4, "/t/x": 4, "/files/x": 2, "/none": 0.3}))
        if d.chance(0.05):
            words.append("outcome=" + d.choice(
                ["applied", "not-applied", "no-store", "unknown"]))
        return " ".join(words)

    def scripts(self):
        d = self.d
        first = "whole" if self.caching and d.chance(0.8) else None
        main = [self.answer("main", first)]
        for _ in range(d.randint(0, 2)):
            main.append(self.answer("main", "drop" if self.keeps and
                                    d.chance(0.4) else None))
        return {"main": main,
                "fallback": [self.answer("fallback")
                             for _ in range(d.randint(0, 2))],
                "target": [self.answer("target")
                           for _ in range(d.randint(0, 2))]
                if self.accel else []}

    def plan(self):
        d = self.d
        method = d.choice(self.methods)
        origin = " origin" if d.chance(0.7) else ""
        big = " big" if d.chance(0.05) else ""
        keys = ["a"]
        if self.timed or d.chance(0.75 if self.caching else 0.25):
            keys.append("b")
        out = []
        for key in keys:
            how = d.weighted({"": 6, " twice": 1, " leave": 1.2, " reset": 0.3})
            if how == " twice" and big:
                how = ""
            out.append("%s %s%s%s%s" % (method, key, origin, big, how))
            if d.chance(0.3):
                out.append("%s %s%s%s" % (method, key, origin, big))
        for key in keys:
            for _ in range(d.randint(1, 2)):
                out.append("%s %s%s%s" % (method, key, origin, big))
        if d.chance(0.15):
            for _ in range(d.randint(1, 2)):
                out.insert(d.randint(0, len(out)), "%s a%s%s elsewhere" % (
                    method, origin, big))
        if d.chance(0.1):
            out.insert(d.randint(0, len(out)), "GET -" + origin)
        return out

    def make(self, name):
        server = self.server()
        conf = [["upstream " + n, lines] for n, lines in self.groups.items()]
        conf.append(["server", server])
        return Case(name, conf, self.plan(), self.scripts())

    def filter(self, case, d):
        """A filter below ours that makes its own response of any other. Drawn
        after all the rest, by dice of its own: so each seed stays what it
        was."""
        server = case.conf[-1][1]
        entry = next(n for n in server if n[0].startswith("location "))
        if d.chance(0.8):
            self.lead(case, entry[1], "error_page 415 %s@fb;" % d.choice(
                ["", "= ", "=200 "]), "@fb")
        entry[1][:0] = ["image_filter test;", "image_filter_buffer 40;"]


    # -- what is drawn later: by dice of its own, so each seed stays what it was

    def lead(self, case, place, line, name):
        """Puts an error_page that leads to `name` at the head of a block."""
        server = case.conf[-1][1]
        place.insert(0, line)
        if not any(n[0] == "location " + name for n in server
                   if isinstance(n, list)):
            server.append(self.location(name))
            case.conf[:-1] = [["upstream " + n, more]
                              for n, more in self.groups.items()]

    def refuse(self, case, d):
        """nginx refuses some of the requests before their claim."""
        server = case.conf[-1][1]
        entry = next(n for n in server if n[0].startswith("location "))[1]
        kind = d.weighted({"return": 4, "server": 2, "limit": 3, "auth": 3,
                           "length": 2, "choice": 1})
        if "/other last" in str(entry) and kind in ("return", "choice",
                                                    "server"):
            kind = "limit"      # a header that chooses the scope is no hole
        code = {"limit": 503, "length": 413, "choice": 418}.get(
            kind, d.choice((401, 403, 503)))
        place = entry
        if kind in ("return", "choice"):
            entry.insert(0, ["if ($http_x_down)", ["return %d;" % code]])
        elif kind == "server":
            place = server
            server.insert(0, ["if ($http_x_down)", ["return %d;" % code]])
        elif kind == "limit":
            entry.insert(0, "limit_req zone=slow;")
        elif kind == "auth":
            entry[:] = [n for n in entry if n != "auth_request /auth;"]
            entry.insert(0, "auth_request /down;")
            server.append(["location = /down", [
                ["if ($http_x_down)", ["return %d;" % min(code, 403)]],
                "return 204;"]])
            code = min(code, 403)
        else:
            entry.insert(0, "client_max_body_size 1k;")
        if d.chance(0.9):
            to = d.weighted({"@fb": 6, "/page": 3})
            self.lead(case, place, "error_page %d %s%s;" % (
                code, d.choice(["", "= ", "=200 "]), to), to)
        word = " big" if kind == "length" else " down"
        for i, line in enumerate(case.plan):
            if (i == 0 or d.chance(0.4)) and "twice" not in line and \
                    word not in line:
                case.plan[i] += word
        if kind == "length":        # a key means one body
            case.plan[:] = [x.replace(" big", "") + " big" for x in case.plan]

    def rewrite_method(self, case, d):
        """What nginx asks for with GET becomes a POST on the wire."""
        blocks = [n for n in case.conf[-1][1] if isinstance(n, list)]
        for head, lines in blocks:
            if head not in ("location @fb", "location @t", "location /t/",
                            "location /page") or not d.chance(0.6):
                continue
            for prefix in PREFIX.values():
                if any(isinstance(n, str) and n.startswith(prefix + "_pass ")
                       for n in lines):
                    lines += ["proxy_method $http_x_method;"] \
                        if prefix == "proxy" else \
                        ["%s_param %s;" % (prefix, p) for p in
                         ("REQUEST_METHOD $http_x_method",) + PARAMS]

    def intercept(self, case, d):
        """A whole answer is intercepted, and its page has a name."""
        server = case.conf[-1][1]
        entry = next(n for n in server if n[0].startswith("location "))[1]
        status = d.choice((402, 409, 429, 500, 503))
        self.lead(case, entry, "error_page %d %s%s;" % (
            status, d.choice(["", "= ", "=200 "]),
            d.weighted({"@fb": 3, "/page": 2})), "@fb")
        if "/page" in entry[0]:
            self.lead(case, entry, entry.pop(0), "/page")
        for prefix in PREFIX.values():
            if any(isinstance(n, str) and n.startswith(prefix + "_pass ")
                   for n in entry) and not any(
                       str(n).startswith(prefix + "_intercept") for n in entry):
                entry.append(prefix + "_intercept_errors on;")
        case.scripts["main"][0] = "whole %d%s" % (
            status, d.choice(["", " chunked", " slow"]))

    def leave_late(self, case, d):
        """A whole answer is shown by a page that breaks off, or never comes,
        and the client leaves meanwhile."""
        server = case.conf[-1][1]
        entry = next(n for n in server if n[0].startswith("location "))[1]
        status = d.choice((402, 409, 500))
        self.lead(case, entry, "error_page %d %s/page;" % (
            status, d.choice(["", "= ", "=200 "])), "/page")
        for prefix in PREFIX.values():
            if any(isinstance(n, str) and n.startswith(prefix + "_pass ")
                   for n in entry):
                entry[:] = [n for n in entry
                            if not str(n).startswith(prefix + "_intercept")]
                entry.append(prefix + "_intercept_errors on;")
        case.scripts["main"][0] = "whole %d" % status
        case.scripts["fallback"] = [d.choice(
            ["hang", "stall 200", "drop slow", "cut 200 slow"])]
        words = case.plan[0].split()
        case.plan.insert(0, " ".join(
            words[:2] + [w for w in words if w in ("origin", "big")] +
            ["h2"] * d.chance(0.8) + [d.choice(["leave", "reset"]), "late"]))

    @staticmethod
    def speak_json(case, d):
        """The same JSON in other bytes is the same request."""
        case.conf[-1][1].insert(0, "once_fingerprint %s but=/at%s;" % (
            d.choice(["json", "json query type"]),
            d.choice(["", " but=/none/0"])))
        case.plan[:] = [line + " json" for line in case.plan]

    @staticmethod
    def put_keys_in_bodies(case, _):
        """The key is in the body, and the header has another one."""
        case.conf[-1][1].insert(0, "once_key_json /id;")
        case.plan[:] = [line if line.startswith(("GET", "LOOK")) else
                        line + " inbody" for line in case.plan]

    def mix_methods(self, case, d):
        """The same key comes with another guarded method."""
        if d.chance(0.5):
            case.conf[-1][1].insert(0, "once_key_space path;")
        for i, line in enumerate(case.plan):
            method, rest = line.split(" ", 1)
            if method != "GET" and "leave" not in line and d.chance(0.5):
                case.plan[i] = "%s %s" % (d.choice(self.methods), rest)

    @staticmethod
    def come_and_ask(case, d):
        """Clients ask what became of their requests, and repeats in flight
        are told where. A lookup needs a scope."""
        server = case.conf[-1][1]
        accepts = d.chance(0.6)

        def change(lines):
            for i, line in enumerate(lines):
                if isinstance(line, list):
                    change(line[1])
                elif line.startswith("once_scope "):
                    lines[i] = "once_scope $server_name;"
                elif line == "once_in_flight wait=3s;" and accepts:
                    lines[i] = "once_in_flight wait=3s accept=/status;"

        change(server)
        if "once_key_space path;" in server:
            server.remove("once_key_space path;")
        if accepts:
            server.insert(0, "once_in_flight accept=/status;")
        server.append(["location = /status", [
            "once_lookup s%s;" % d.choice(["", " wait=1s"]),
            "once_scope $server_name;"]])
        for key in sorted({x.split()[1] for x in case.plan} - {"-"}):
            for _ in range(d.randint(1, 2)):
                case.plan.insert(d.randint(0, len(case.plan)), "LOOK " + key)

    @staticmethod
    def over_http_2(case, d):
        """The clients speak HTTP/2, and some of them leave late."""
        for i, line in enumerate(case.plan):
            if d.chance(0.8) and "GET" not in line:
                line += " h2"
            if "leave" in line or "reset" in line:
                line += d.choice(["", " late"])
            elif d.chance(0.15) and "twice" not in line:
                line += d.choice([" leave late", " reset late"])
            case.plan[i] = line
        case.plan.append(" ".join(case.plan[-1].split()[:2]) + "".join(
            " " + w for w in ("origin", "big") if w in case.plan[-1].split()))


def make(seed):
    maker = Maker(seed)
    case = maker.make("seed %d" % seed)
    d = Draw("filter %d" % seed)
    if HAS_FILTER and d.chance(0.05):
        maker.filter(case, d)
    d = Draw("later %d" % seed)
    for share, change in ((0.12, maker.intercept), (0.2, maker.refuse),
                          (0.1, maker.rewrite_method),
                          (0.2, maker.over_http_2), (0.05, maker.leave_late),
                          (0.1, maker.speak_json), (0.15, maker.mix_methods),
                          (0.25, maker.come_and_ask),
                          (0.1, maker.put_keys_in_bodies)):
        if d.chance(share):
            change(case, d)
    if "once_probe /asked;" in case.config() and \
            "location = /asked " not in case.config():
        case.conf[-1][1].append(maker.location("/asked"))  # of a later change
        declared = [block[0] for block in case.conf]
        case.conf[:0] = [["upstream " + n, lines]
                         for n, lines in maker.groups.items()
                         if "upstream " + n not in declared]
    return case
