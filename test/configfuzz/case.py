# SPDX-License-Identifier: Apache-2.0
"""A case: a configuration, what the upstreams do, and what the client sends.

Its text is what a failure prints and what a file of the corpus is:

    # what it shows
    send POST a origin       one request; the words are those of FLAGS
    up drop                  what the n-th guarded request at an upstream of
    fallback whole 201       this role meets; the last one repeats
    target whole 429
    upstream c_main {        the rest is nginx's; c_main is this case's own,
        server http_main_1;  http_main_1 an address of the driver
    }
    server {
        location / {
            ...
        }
    }

Roles are those of the addresses (PROTOCOL_ROLE_N): a guarded request belongs
to `main`; `fallback` is where an error_page leads, `target` where an
X-Accel-Redirect leads.
"""

import re

ROLES = ("main", "fallback", "target")
SCRIPTS = {"up": "main", "fallback": "fallback", "target": "target"}

# What a request may have beside its method and its key.
FLAGS = {
    "origin": "with an Origin header",
    "leave": "the client closes when the upstream has the request",
    "reset": "likewise, and resets the connection",
    "late": "leaves when the page for its answer is under way",
    "h2": "over HTTP/2; to leave is to reset the stream",
    "down": "with an X-Down header, for which nginx may refuse it",
    "twice": "two at the same moment",
    "big": "a body that goes to a file",
    "json": "a body of JSON, each time in other bytes",
    "inbody": "with the key in a JSON body, and another one in the header",
    "elsewhere": "to another path with the same key",
}

# Never taken away when a case is made smaller: without them nothing is
# guarded, and everything would count as a failure.
KEPT = re.compile(r"once(_scope|_methods)? ")


def parse_tree(lines):
    """Nodes: a directive as text, or [head, nodes] for a block."""
    top = []
    stack = [top]
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line == "}":
            stack.pop()
        elif line.endswith("{"):
            block = [line[:-1].strip(), []]
            stack[-1].append(block)
            stack.append(block[1])
        else:
            stack[-1].append(line)
    assert len(stack) == 1, "braces do not match"
    return top


def print_tree(nodes, indent=0):
    out = []
    for node in nodes:
        if isinstance(node, str):
            out.append("    " * indent + node)
        else:
            out.append("    " * indent + node[0] + " {")
            out += print_tree(node[1], indent + 1)
            out.append("    " * indent + "}")
    return out


def copy_tree(nodes):
    return [n if isinstance(n, str) else [n[0], copy_tree(n[1])]
            for n in nodes]


class Case:
    def __init__(self, name, conf, plan, scripts):
        self.name = name
        self.conf = conf
        self.plan = plan        # lines behind "send"
        self.scripts = scripts  # role -> lines

    @classmethod
    def parse(cls, name, text):
        plan, conf = [], []
        scripts = {role: [] for role in ROLES}
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if not line.strip() or line.startswith("#"):
                continue
            if word == "send" and not conf:
                plan.append(rest.strip())
            elif word in SCRIPTS and not conf:
                scripts[SCRIPTS[word]].append(rest.strip())
            else:
                conf.append(line)
        return cls(name, parse_tree(conf), plan, scripts)

    def copy(self):
        return Case(self.name, copy_tree(self.conf), list(self.plan),
                    {r: list(s) for r, s in self.scripts.items()})

    def text(self):
        out = ["send " + line for line in self.plan]
        for word, role in SCRIPTS.items():
            out += ["%s %s" % (word, line) for line in self.scripts[role]]
        return "\n".join(out + print_tree(self.conf)) + "\n"

    def config(self):
        """The configuration's text alone."""
        return "\n".join(print_tree(self.conf))

    def words(self, directive):
        """The arguments of a directive that stands there once, or None."""
        found = re.search(r"(?m)^\s*%s ([^;]*);" % directive, self.config())
        return found.group(1).split() if found else None

    # -- whose the keys are (docs/http.md, 1)

    def of_path(self):
        """Whether the same key on another path is another record."""
        return self.words("once_key_space") == ["path"]

    # -- what the contract makes of a status (docs/http.md, 3)

    def frees(self, status):
        """Whether a whole answer with this status lets the key run again."""
        final = self.words("once_final")
        release = self.words("once_release")
        if release is None:
            release = ["401", "408", "421", "425", "429"]
        if final is not None and str(status) in final:
            return False
        if self.lost(status):
            return False
        if str(status) in release or "%dxx" % (status // 100) in release:
            return True
        return final is not None and "%dxx" % (status // 100) not in final

    def lost(self, status):
        """Whether it says, by itself, that a gateway has lost the service."""
        unknown = self.words("once_unknown")
        if unknown is None:
            named = (self.words("once_final") or []) + \
                (self.words("once_release") or [])
            unknown = [x for x in ("502", "504") if x not in named]
        return str(status) in unknown

    def takes_over(self):
        return self.words("once_lost") == ["takeover"]
