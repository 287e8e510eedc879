#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
tlsfront.py - TLS in front of a server that has none.

    tlsfront.py PORT TARGET-PORT CERTIFICATE KEY

What comes on 127.0.0.1:PORT goes on as plain bytes. The files are read for each
connection, so that a certificate can be exchanged.
"""
import contextlib
import socket
import ssl
import sys
import threading


def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def serve(conn, port, certificate, key):
    with contextlib.suppress(OSError), conn:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        with context.wrap_socket(conn, server_side=True) as inside, \
                socket.create_connection(("127.0.0.1", port), 10) as behind:
            behind.settimeout(None)
            back = threading.Thread(target=pump, args=(behind, inside))
            back.start()
            pump(inside, behind)
            back.join()


def main():
    port, behind, certificate, key = sys.argv[1:]
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        while True:
            conn, _ = listener.accept()
            threading.Thread(target=serve, daemon=True, args=(
                conn, int(behind), certificate, key)).start()


if __name__ == "__main__":
    main()
