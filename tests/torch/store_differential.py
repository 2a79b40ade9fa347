"""Asks our store's server and torch's own the same random questions, byte for byte.

    store_differential.py BINARY [SEED [STEPS [-v]]]      # BINARY: `store`'s example `serve`

Left out are the few places where ours differs on purpose (see store/src/table): a COMPARE_SET that stores
nothing wakes no wait, a client may wait twice, a barrier does not count clients that have left it, and a WAIT on a queue
that has something and a key that is missing waits for the key alone, and a wait that is over leaves nothing behind.
"""

import random
import socket
import struct
import subprocess
import sys

import torch.distributed as dist

KEYS = [b"/a", b"/b", b"/c", b"/d", b"init/"]
QUEUES = [b"/q", b"/r"]
BARRIERS = [b"/x", b"/y"]
TEXTS = [b"", b"1", b"-7", b"22x", b"word", b"v" * 5000]


def u64(number):
    return struct.pack("<Q", number)


def i64(number):
    return struct.pack("<q", number)


def field(text):
    return u64(len(text)) + text


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"\x00\xce\xf7\x85\x3c")

    def ask(self, request, nonce):
        """What comes back for the request and for whatever else was due, or None: the server closed."""
        self.socket.sendall(request + b"\x0d" + nonce)
        got = b""
        while not got.endswith(nonce):
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionError:
                return None
            if not more:
                return None
            got += more
        return got[: -len(nonce)]


def random_request(dice, waiting):
    """The request, whether its client may have to wait, and how to compare replies."""
    key, text, other = dice.choice(KEYS), dice.choice(TEXTS), dice.choice(TEXTS)
    queue = dice.choice(QUEUES)
    some = [dice.choice(KEYS + QUEUES) for _ in range(dice.randrange(4))]
    listed = u64(len(some)) + b"".join(map(field, some))
    keys = [key for key in some if key in KEYS]
    if waiting and dice.random() < 0.3:
        return "cancel", b"\x0c"
    # A wait more while one is outstanding is a place where ours differs.
    waits = [] if waiting else [
        ("wait", b"\x06" + u64(len(keys)) + b"".join(map(field, keys))),
        ("wait", b"\x06" + u64(1) + field(queue)),
        ("barrier", b"\x12" + field(dice.choice(BARRIERS)) + i64(dice.randrange(-1, 4))),
    ]
    return dice.choice(waits * 3 + [
        ("set", b"\x01" + field(key) + field(text)),
        ("set", b"\x01" + field(key) + field(text)),
        ("compare_set", b"\x02" + field(key) + field(other) + field(text)),
        ("get", b"\x03" + field(key)),
        ("add", b"\x04" + field(key) + i64(dice.choice([1, -3, 2**63 - 1]))),
        ("check", b"\x05" + listed),
        ("num_keys", b"\x07"),
        ("delete", b"\x08" + field(key)),
        ("delete", b"\x08" + field(key)),
        ("append", b"\x09" + field(key) + field(text)),
        ("multi_get", b"\x0a" + listed),
        ("multi_set", b"\x0b" + u64(2) + field(key) + field(text) + field(dice.choice(KEYS)) + field(other)),
        ("push", b"\x0e" + field(queue) + field(text)),
        ("pop", b"\x0f" + field(queue)),
        ("queue_len", b"\x10" + field(queue)),
        ("list_keys", b"\x11"),
    ])


def comparable(name, reply):
    """LIST_KEYS has no order."""
    if name != "list_keys" or reply is None or len(reply) < 8:
        return reply
    keys, at = [], 8
    while at < len(reply):
        (length,) = struct.unpack_from("<Q", reply, at)
        keys.append(reply[at + 8 : at + 8 + length])
        at += 8 + length
    return reply[:8], sorted(keys)


def stores_nothing(server, request):
    """Whether a COMPARE_SET would store nothing on a missing key: the place where torch wakes waits for nothing."""
    key_length = struct.unpack_from("<Q", request, 1)[0]
    key = request[9 : 9 + key_length]
    expected_length = struct.unpack_from("<Q", request, 9 + key_length)[0]
    checker = server
    absent = checker.ask(b"\x05" + u64(1) + field(key), b"\xaa\xbb\xcc\xdd") == b"\x01"
    current = checker.ask(b"\x03" + field(key), b"\xaa\xbb\xcc\xdd")[8:]
    expected = request[17 + key_length : 17 + key_length + expected_length]
    return (absent and expected) or (not absent and current != expected)


def run(ports, seed, steps):
    dice = random.Random(seed)
    count = 4
    clients = [[Client(port) for _ in range(count)] for port in ports]
    checker = Client(ports[0])
    waiting = [None] * count
    seen = {}

    def reconnect(client):
        """Torch's server keeps a canceled or pushed-to wait under its key, where it ends the client's next one."""
        for server, port in zip(clients, ports):
            server[client] = Client(port)
        waiting[client] = None

    for step in range(steps):
        client = dice.randrange(count)
        name, request = random_request(dice, waiting[client])
        if name == "cancel" and waiting[client] == "barrier":
            continue
        if name == "compare_set" and stores_nothing(checker, request) and any(waiting):
            continue
        nonce = dice.randbytes(4)
        replies = [comparable(name, server[client].ask(request, nonce)) for server in clients]
        where = f"seed {seed} step {step}: client {client} {name} {request[:80]}"
        assert replies[0] == replies[1], f"{where}: ours {replies[0]}, torch {replies[1]}"
        seen[name] = seen.get(name, 0) + 1
        if "-v" in sys.argv:
            print(step, client, name, request[:60], str(replies[0])[:100])
        if replies[0] is None or name == "cancel":
            reconnect(client)
        elif name in ("wait", "barrier"):
            waiting[client] = name if replies[0] == b"" else None
        for peer in range(count):
            if waiting[peer]:
                nonce = dice.randbytes(4)
                woken = [server[peer].ask(b"", nonce) for server in clients]
                assert woken[0] == woken[1], f"{where}: client {peer} got {woken[0]}, from torch {woken[1]}"
                if woken[0]:
                    waiting[peer] = None
                    if name == "push":
                        reconnect(peer)
                    seen["woken"] = seen.get("woken", 0) + 1
    return seen


def main():
    binary = sys.argv[1]
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 1500
    total = {}
    for seed in range(first, first + 5):
        theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours:
            for name, times in run([int(ours.stdout.readline()), theirs.port], seed, steps).items():
                total[name] = total.get(name, 0) + times
    print("the same replies:", dict(sorted(total.items())))


if __name__ == "__main__":
    main()
