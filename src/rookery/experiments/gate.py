"""A gate between Flower's SuperLink and other machines: it passes on calls of SuperNodes, and refuses all others.

    python -m rookery.experiments.gate --host HOST --port 9091 --to 9090 \\
      --certificate server.pem --key server.key --authority ca.pem

One port of a SuperLink (Flower 1.41) serves the Fleet API, which SuperNodes call, and the Control API, which accepts
code from anybody and runs it on the server and at every site. Flower authenticates SuperNodes by their keys, but its
free distribution cannot authenticate users of the Control API. So the SuperLink listens on 127.0.0.1, and sites reach
it through this gate. Imports only errors.
"""

from __future__ import annotations

import argparse
import http.client
import re
import ssl
import sys
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rookery.errors import InputError

FLEET = re.compile(r"/v1/fleet/[a-z-]+")  # paths that SuperNodes call
LARGEST = 2**26  # bytes of a request; Flower sends arrays in parts of 5 MiB
IDLE = 120.0  # seconds after which a silent connection is closed
OF_CONNECTION = ("connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")


class Gate(ThreadingHTTPServer):
    """Serves the Fleet API of a SuperLink to other machines.

    Args:
      address: Host and port to listen on.
      to: Port of the SuperLink on 127.0.0.1.
      certificate, key: Files of the server's certificate and its key; None: without TLS.
      authority: File of the certificate by which the SuperLink's own is checked.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        to: int,
        certificate: Path | None = None,
        key: Path | None = None,
        authority: Path | None = None,
    ):
        self.to = to
        self.inside: ssl.SSLContext | None = None
        super().__init__(address, _Handler)
        if certificate is not None:
            self.inside = ssl.create_default_context(cafile=authority)
            outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            outside.load_cert_chain(certificate, key)
            # The handshake happens in the thread of its connection: a client that stalls in it delays nobody else.
            self.socket = outside.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing of connections that broke off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE
    server: Gate

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if FLEET.fullmatch(self.path) is None:
            return self._refuse(403, "This gate serves SuperNodes alone.")
        if "Transfer-Encoding" in self.headers or re.fullmatch(r"[0-9]{1,12}", length) is None:
            return self._refuse(411, "The length of the request is needed.")
        if int(length) > LARGEST:
            return self._refuse(413, f"At most {LARGEST} bytes are taken.")
        body = self.rfile.read(int(length))
        try:
            status, headers, reply = self._passed_on(body)
        except (OSError, http.client.HTTPException):
            return self._refuse(502, "The SuperLink does not answer.")
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the SuperLink answers: status, headers and body."""
        to, inside = self.server.to, self.server.inside
        if inside is None:
            connection = http.client.HTTPConnection("127.0.0.1", to, timeout=IDLE)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", to, timeout=IDLE, context=inside)
        try:
            connection.request("POST", self.path, body, dict(_of_message(self.headers.items())))
            reply = connection.getresponse()
            return reply.status, _of_message(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def _refuse(self, status: int, sentence: str) -> None:
        self.close_connection = True
        self.send_response_only(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(sentence)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(sentence.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Writes no log: what it would hold comes from strangers."""


def _of_message(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers without those of one connection."""
    return [(name, value) for name, value in headers if name.lower() not in OF_CONNECTION]


def main(arguments: list[str] | None = None) -> int:
    """Runs a gate until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m rookery.experiments.gate", description="Passes calls of SuperNodes on to a SuperLink"
    )
    parser.add_argument("--host", required=True, help="address that sites reach")
    parser.add_argument("--port", type=int, required=True, help="port that sites reach")
    parser.add_argument("--to", type=int, required=True, help="port of the SuperLink on 127.0.0.1")
    parser.add_argument("--certificate", type=Path, help="the server's certificate")
    parser.add_argument("--key", type=Path, help="the key of the certificate")
    parser.add_argument("--authority", type=Path, help="certificate that the SuperLink's own is signed with")
    given = parser.parse_args(arguments)
    files = (given.certificate, given.key, given.authority)
    if any(files) and not all(files):
        parser.error("--certificate, --key and --authority are needed together")
    try:
        with Gate((given.host, given.port), given.to, *files) as gate:
            gate.serve_forever()
    except KeyboardInterrupt:
        return 0
    except OSError as error:  # also of TLS
        raise InputError(f"gate: it cannot listen on {given.host}:{given.port}: {error.strerror or error}") from None
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"rookery: {error}")
