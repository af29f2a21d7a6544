"""A websocket client and an echo server, with what Python brings. The server runs inside a space."""

import base64
import hashlib
import os
import socket
import ssl
import struct

from lab import Failed

# Answers every message with itself; what it was asked with is on its first line.
SERVER = r"""
import base64, hashlib, socket, threading
def whole(c, n):
    b = b""
    while len(b) < n:
        p = c.recv(n - len(b))
        if not p: raise EOFError
        b += p
    return b
def serve(c):
    head = b""
    while b"\r\n\r\n" not in head: head += c.recv(4096)
    key = [l.split(b":", 1)[1].strip() for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key:")][0]
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    try:
        while True:
            first, second = whole(c, 2)
            mask, body = whole(c, 4), bytearray(whole(c, second & 127))
            for i in range(len(body)): body[i] ^= mask[i % 4]
            c.sendall(bytes([first, len(body)]) + bytes(body))
    except EOFError:
        c.close()
s = socket.create_server(("127.0.0.1", 8080))
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


class WebSocket:
    def __init__(self, address, host, authority, path="/"):
        context = ssl.create_default_context(cadata=authority)
        raw = socket.create_connection((address, 443), timeout=30)
        self.stream = context.wrap_socket(raw, server_hostname=host)
        key = base64.b64encode(os.urandom(16))
        self.stream.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key.decode()}\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.stream.recv(1)
            if not piece:
                raise Failed(f"{host} closed before it answered: {head!r}")
            head += piece
        wanted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        if not head.startswith(b"HTTP/1.1 101") or wanted not in head:
            raise Failed(f"{host} opened no websocket: {head.decode()}")

    def names(self):
        """Whom the certificate is for."""
        return self.stream.getpeercert()["subjectAltName"]

    def echo(self, text):
        body, mask = text.encode(), os.urandom(4)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))
        self.stream.sendall(struct.pack("!BB", 0x81, 0x80 | len(body)) + mask + masked)
        answer = b""
        while len(answer) < 2 + len(body):
            piece = self.stream.recv(4096)
            if not piece:
                raise Failed("the websocket ended")
            answer += piece
        if answer[2:] != body:
            raise Failed(f"the websocket said {answer!r}")

    def end(self):
        """The code it was closed with; None when it still lives."""
        self.stream.settimeout(2)
        try:
            head = self.stream.recv(2)
            if not head:
                return 0
            if head[0] != 0x88:
                raise Failed(f"the websocket said {head!r}")
            code = self.stream.recv(head[1] & 127)
            return int.from_bytes(code[:2], "big")
        except TimeoutError:
            self.stream.settimeout(30)
            self.echo("after")
            return None

    def close(self):
        self.stream.close()
