"""PyTorch's TCPStore in a few lines: a client, and a server for when there is no other.

One TCP connection a client, requests strictly in order: one byte of operation, then integers and
u64-counted strings, all little endian. The numbers are those of torch/csrc/distributed/c10d.
"""
import os
import socket
import struct
import threading
import time

VALIDATE, SET, GET, ADD, CHECK, WAIT, MULTI_SET, PING = 0, 1, 3, 4, 5, 6, 11, 13
MAGIC = 0x3C85F7CE


def u64(number):
    return struct.pack("<Q", number)


def counted(data):
    return u64(len(data)) + data


def receive(sock, length):
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return data


def unpack(sock, form):
    return struct.unpack("<" + form, receive(sock, struct.calcsize("<" + form)))[0]


def receive_counted(sock):
    return receive(sock, unpack(sock, "Q"))


class Store:
    """A client of the store. Clients put a `/` in front of every key, as PyTorch's own do."""

    def __init__(self, host, port, patience=60):
        give_up = time.monotonic() + patience
        while True:
            try:
                self.sock = socket.create_connection((host, port), timeout=patience)
                break
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = os.getpid()
        self.sock.sendall(struct.pack("<BIBI", VALIDATE, MAGIC, PING, nonce))
        if unpack(self.sock, "I") != nonce:
            raise ConnectionError(f"{host}:{port} does not answer like a TCPStore")

    def _ask(self, op, *parts):
        self.sock.sendall(bytes([op]) + b"".join(parts))

    def set(self, key, value):
        self._ask(SET, counted(b"/" + key.encode()), counted(value))

    def get(self, key):
        """Waits until the key is set."""
        name = counted(b"/" + key.encode())
        self._ask(WAIT, u64(1), name)
        unpack(self.sock, "B")
        self._ask(GET, name)
        return receive_counted(self.sock)

    def add(self, key, amount):
        self._ask(ADD, counted(b"/" + key.encode()), struct.pack("<q", amount))
        return unpack(self.sock, "q")

    def has(self, key):
        self._ask(CHECK, u64(1), counted(b"/" + key.encode()))
        return unpack(self.sock, "B") == 0

    def overfill(self):
        """Sets 17 times 65536 keys; then how the other side ends it: `end`, or what went wrong."""
        try:
            for part in range(17):
                pairs = b"".join(counted(b"/fill %x %x" % (part, i)) + u64(0) for i in range(65536))
                self._ask(MULTI_SET, u64(65536), pairs)
            self._ask(WAIT, u64(1), counted(b"/never"))
            return "end" if self.sock.recv(1) == b"" else "an answer"
        except OSError as error:
            return str(error)


class StoreServer:
    """The few operations used above: rank 0 serves them when the launcher says that it does not."""

    def __init__(self, port):
        self.table, self.changed = {}, threading.Condition()
        listener = socket.create_server(("", port), backlog=512)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            threading.Thread(target=self._serve, args=(listener.accept()[0],), daemon=True).start()

    def _serve(self, sock):
        try:
            while True:
                op = receive(sock, 1)[0]
                if op == VALIDATE:
                    unpack(sock, "I")
                elif op == PING:
                    sock.sendall(receive(sock, 4))
                elif op == WAIT:
                    keys = [receive_counted(sock) for _ in range(unpack(sock, "Q"))]
                    with self.changed:
                        self.changed.wait_for(lambda: all(key in self.table for key in keys))
                    sock.sendall(b"\0")
                elif op in (SET, GET, ADD):
                    key = receive_counted(sock)
                    with self.changed:
                        if op == SET:
                            self.table[key] = receive_counted(sock)
                        elif op == GET:
                            sock.sendall(counted(self.table.get(key, b"")))
                        else:
                            total = int(self.table.get(key, b"0")) + unpack(sock, "q")
                            self.table[key] = b"%d" % total
                            sock.sendall(struct.pack("<q", total))
                        self.changed.notify_all()
                else:
                    return sock.close()
        except OSError:
            pass  # A worker that left.
