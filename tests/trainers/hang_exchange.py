"""Sums over the ranks of a job, by plain sockets: around a ring, or at rank 0. The standard library only."""
import json
import os
import socket
import struct

import tcp_store

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ROUND = os.environ.get("DLROVER_ROUND", "0")
PATIENCE = 600


def receive(sock, length):
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            raise ConnectionError("a peer is gone")
        data += part
    return data


class Exchange:
    """What ranks call together. `by` is ring or star; `is_imported`: messages are read by a function of another file;
    `waits_in_poll`: sockets have a timeout, so that Python waits in poll, and not in recv."""

    def __init__(self, store, by, is_imported, waits_in_poll):
        self.store, self.by = store, by
        self.receive = tcp_store.receive if is_imported else receive
        self.peers, self.barriers, self.loses = {}, 0, False
        if WORLD == 1:
            return
        listener = socket.create_server((store.sock.getsockname()[0], 0), backlog=64)
        store.set(f"exchange/{ROUND}/{RANK}", json.dumps(listener.getsockname()[:2]).encode())
        for peer in self._called():
            address = json.loads(store.get(f"exchange/{ROUND}/{peer}"))
            sock = socket.create_connection(address, timeout=PATIENCE)
            sock.sendall(struct.pack("<q", RANK))
            self.peers[peer, "to"] = sock
        for _ in range(self._callers()):
            sock = listener.accept()[0]
            self.peers[struct.unpack("<q", receive(sock, 8))[0], "from"] = sock
        for sock in self.peers.values():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(PATIENCE if waits_in_poll else None)

    def _called(self):
        if self.by == "ring":
            return [(RANK + 1) % WORLD]
        return [0] if RANK != 0 else []

    def _callers(self):
        return 1 if self.by == "ring" else (WORLD - 1 if RANK == 0 else 0)

    def _send(self, sock, number):
        """A network that loses packets for good is one of which a part of a message arrives."""
        message = struct.pack("<q", number)
        sock.sendall(message[:4] if self.loses else message)

    def _get(self, sock):
        return struct.unpack("<q", self.receive(sock, 8))[0]

    def _sum(self, number):
        if WORLD == 1:
            return number
        if self.by == "ring":
            after, before = self.peers[(RANK + 1) % WORLD, "to"], self.peers[(RANK - 1) % WORLD, "from"]
            total = passed = number
            for _ in range(WORLD - 1):
                self._send(after, passed)
                passed = self._get(before)
                total += passed
            return total
        if RANK != 0:
            self._send(self.peers[0, "to"], number)
            return self._get(self.peers[0, "to"])
        total = number + sum(self._get(sock) for sock in self.peers.values())
        for sock in self.peers.values():
            self._send(sock, total)
        return total

    def all_reduce(self, number):
        return self._sum(number)

    def exchange_gradients(self, number):
        return self._sum(number)

    def barrier(self):
        """Over the store, so that a rank that has exited is waited for, and breaks no connection."""
        self.barriers += 1
        name = f"barrier/{ROUND}/{self.barriers}"
        if self.store.add(name, 1) == WORLD:
            self.store.set(name + "/all", b"")
        self.store.get(name + "/all")

    def send_to(self, peer, what):
        self.store.set(f"{what}/{ROUND}/{RANK}/{peer}", b"x")

    def receive_from(self, peer, what):
        return self.store.get(f"{what}/{ROUND}/{peer}/{RANK}")
