# SPDX-License-Identifier: Apache-2.0
"""
Certificates for tests: a good one, and each way in which one can be bad.
"""

import subprocess
import time

from machine import find


class Authority:
    """
    A certificate authority made here. Certificates: `good` for 127.0.0.1 and
    localhost, `wronghost` for somebody else, `expired` last year, `stranger`
    good but signed by another authority (other-ca.crt).
    """

    HOSTS = {"good": "IP:127.0.0.1,DNS:localhost",
             "wronghost": "DNS:elsewhere.example",
             "expired": "IP:127.0.0.1,DNS:localhost",
             "stranger": "IP:127.0.0.1,DNS:localhost"}

    def __init__(self, world):
        self.world = world
        self.folder = world.folder / "tls"
        self.folder.mkdir(mode=0o755)
        for name in ("ca", "other-ca"):
            self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt",
                          "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                          "30", "-subj", "/CN=Once test %s" % name, "-keyout",
                          self.path(name + ".key"), "-out",
                          self.path(name + ".crt"))
        for which in self.HOSTS:
            self._issue(which)

    def path(self, name):
        return self.folder / name

    @staticmethod
    def _openssl(*words):
        done = subprocess.run([find("openssl"), *map(str, words)], text=True,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError("openssl: " + done.stderr[-500:])

    def _issue(self, which):
        ca = "other-ca" if which == "stranger" else "ca"
        request = self.path(which + ".csr")
        home = self.folder / (which + ".ca")
        home.mkdir()
        (home / "index.txt").write_text("")
        (home / "conf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=%s\nnew_certs_dir=%s\n"
            "default_md=sha256\npolicy=p\nrand_serial=yes\n"
            "x509_extensions=x\n[p]\ncommonName=supplied\n"
            "[x]\nsubjectAltName=%s\n"
            % (home / "index.txt", home, self.HOSTS[which]))
        self._openssl("req", "-newkey", "ec", "-pkeyopt",
                      "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                      "/CN=once-test-" + which, "-keyout",
                      self.path(which + ".key"), "-out", request)
        year = time.gmtime().tm_year
        first, last = (year - 2, year - 1) if which == "expired" else \
            (year - 1, year + 9)
        self._openssl("ca", "-batch", "-notext", "-config", home / "conf",
                      "-cert", self.path(ca + ".crt"), "-keyfile",
                      self.path(ca + ".key"), "-in", request, "-out",
                      self.path(which + ".crt"), "-startdate",
                      "%d0101000000Z" % first, "-enddate",
                      "%d0101000000Z" % last)

    def install(self, which, folder):
        """As tls.crt and tls.key, readable by the server alone."""
        for end in ("crt", "key"):
            new = folder / ("tls.%s.new" % end)
            new.write_bytes(self.path("%s.%s" % (which, end)).read_bytes())
            self.world.give(new)
            new.chmod(0o600)
            new.rename(folder / ("tls." + end))
