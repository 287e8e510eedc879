# SPDX-License-Identifier: Apache-2.0
"""
firefox.py - a real headless Firefox, by its own protocol (Marionette), since
Debian 12 has no geckodriver: open, run a script, click, type.
"""

import json
import os
import shutil
import socket
import subprocess
import time

import pytest

PREFS = """
user_pref("marionette.port", %d);
user_pref("app.update.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("toolkit.telemetry.reportingpolicy.firstRun", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "http://127.0.0.1:1/");
"""
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Firefox:
    def __init__(self, folder, port):
        folder.mkdir()
        (folder / "user.js").write_text(PREFS % port)
        self.process = subprocess.Popen(
            ["firefox-esr", "--headless", "--marionette", "--no-remote",
             "--profile", str(folder)], env=dict(os.environ, HOME=str(folder)),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.number = 0
        self.socket = self._connect(port)
        self._read()
        self.ask("WebDriver:NewSession", {})

    def _connect(self, port):
        end = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port), 60)
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None
                time.sleep(0.1)

    def _read(self):
        size = b""
        while not size.endswith(b":"):
            size += self.socket.recv(1)
        data = b""
        while len(data) < int(size[:-1]):
            data += self.socket.recv(65536)
        return json.loads(data)

    def ask(self, command, parameters):
        self.number += 1
        text = json.dumps([0, self.number, command, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(text), text))
        _, number, error, value = self._read()
        assert number == self.number and error is None, (command, error)
        return value

    def open(self, url):
        self.ask("WebDriver:Navigate", {"url": url})

    def run(self, script, *words):
        return self.ask("WebDriver:ExecuteScript", {
            "script": script, "args": list(words)})["value"]

    def element(self, how):
        return self.ask("WebDriver:FindElement", {
            "using": "css selector", "value": how})["value"][ELEMENT]

    def click(self, how):
        self.ask("WebDriver:ElementClick", {"id": self.element(how)})

    def type(self, how, text):
        self.ask("WebDriver:ElementSendKeys", {"id": self.element(how),
                                               "text": text})

    def size(self, width, height):
        self.ask("WebDriver:SetWindowRect", {"width": width, "height": height})

    def quit(self):
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(folder, port):
    if shutil.which("firefox-esr") is None:
        pytest.skip("no Firefox: apt-get install firefox-esr")
    return Firefox(folder, port)
