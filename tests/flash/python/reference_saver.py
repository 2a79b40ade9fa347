"""A saver in Python that keeps states in memory: a peer for tests of the client, with replies that no saver gives.

    with ReferenceSaver() as saver:                 # in a thread; `saver.address` is for DLROVER_CKPT_SOCK
        saver.faults["begin"] = "close"             # what happens instead of the next reply to `begin`

    python3 reference_saver.py @name                # until it is killed

It writes nothing to disk: what is committed for the disk counts as written when `saver.disk_is_busy` is false.
"""

import array
import json
import os
import select
import socket
import sys
import threading
import time

PROTOCOL = 1

# Faults: what is sent instead of the right reply, as (bytes, count of descriptors or None, whether the end follows).
FAULTS = {
    "close": lambda line: (b"", None, True),
    "truncated": lambda line: (line[: len(line) // 2], None, True),
    "no line feed": lambda line: (line[:-1], None, True),
    "garbage": lambda line: (b"\x00\xff{[\n", None, False),
    "not an object": lambda line: (b"[1,2]\n", None, False),
    "deep": lambda line: (b"[" * 100000 + b"\n", None, False),
    "other reply": lambda line: (b'{"type":"status"}\n', None, False),
    "two lines": lambda line: (line + line, None, False),
    "no descriptors": lambda line: (line, 0, False),
    "too many descriptors": lambda line: (line, 9, False),
    "far too many descriptors": lambda line: (line, 200, True),
    "long line": lambda line: (b'{"type":"' + b"x" * (3 << 20) + b'"}\n', None, True),
    "error": lambda line: (b'{"type":"error","code":"invalid","text":"a fault of the test"}\n', None, False),
    "error without text": lambda line: (b'{"type":"error"}\n', None, False),
}


# A refusal once, with a reason that a client may take for one to write by itself.
_NO_MEMORY = {"no memory": lambda line: (b'{"type":"error","code":"no_memory","text":"too large"}\n', 0, False)}


class Slot:
    def __init__(self, number, size):
        self.number, self.size = number, size
        self.descriptor = os.memfd_create("slot", getattr(os, "MFD_CLOEXEC", 1))
        os.posix_fallocate(self.descriptor, 0, size)
        self.step, self.state = None, "empty"
        # Processes that read from it.
        self.readers = set()


class Shard:
    def __init__(self):
        self.slots, self.layout_id = [], None
        # Steps that were committed, with their wishes.
        self.commits = []

    def newest(self):
        whole = [slot for slot in self.slots if slot.state in ("whole", "queued", "persisting")]
        return max(whole, key=lambda slot: slot.step, default=None)


class ReferenceSaver:
    def __init__(self, address=None, slots=3, allowance=8 << 30):
        self.address = address or "@dlrover-test-%d-%d" % (os.getpid(), time.monotonic_ns())
        self.slots, self.allowance = slots, allowance
        # Type of a request: the fault of the next reply to it, or "hang", or "die".
        self.faults = {}
        # Type of a request: (code, further fields) of the error with which it is always answered.
        self.errors = {}
        self.disk_is_busy = False
        # Whether every path of a whole state may be loaded, or what `load` says instead.
        self.load_answer = None
        self.shards = {}
        self.requests = []
        self.hellos = []
        # Steps that clients have written by themselves.
        self.written_alone = []
        self._lock = threading.RLock()
        self._count = 0
        self._connections = set()
        self._closing = False
        self._released = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)
        self._listener.listen(64)

    def __enter__(self):
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def serve(self):
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def stop(self):
        """As when the process is killed: connections end, memory stays while clients map it."""
        self._closing = True
        for each in [self._listener] + list(self._connections):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()
        self.forget()

    def release(self):
        """Sends the reply that hangs."""
        self._released.set()

    def forget(self):
        """Gives all memory back, as when all shards are gone."""
        with self._lock:
            for shard in self.shards.values():
                for slot in shard.slots:
                    os.close(slot.descriptor)
            self.shards = {}

    def _serve(self, connection):
        # The identity that hello gave: (shard, process).
        client, left = {}, b""
        _, uid, _ = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        assert uid == os.getuid()
        client["process"] = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        try:
            while True:
                while b"\n" not in left:
                    data = connection.recv(1 << 16)
                    if not data:
                        return
                    left += data
                line, left = left.split(b"\n", 1)
                request = json.loads(line.decode())
                with self._lock:
                    self.requests.append(request)
                    reply, descriptors = self._answer(request, client)
                self._reply(connection, request["type"], reply, descriptors)
        except (OSError, ValueError):
            # It was closed, at the other end or here.
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _reply(self, connection, kind, reply, descriptors):
        line = json.dumps(reply).encode() + b"\n"
        fault = self.faults.pop(kind, None)
        if fault == "hang":
            # Until the client gives up, or the test says so.
            while not self._released.wait(0.01):
                if select.select([connection], [], [], 0)[0]:
                    return
            self._released.clear()
            fault = None
        if fault == "die":
            # Its launcher starts no other one.
            return self.stop()
        close, sent = False, descriptors
        if fault is not None:
            line, count, close = dict(FAULTS, **_NO_MEMORY)[fault](line)
            if count is not None:
                sent = (descriptors + [2] * count)[:count]
        if line:
            first, rest = line[:1], line[1:]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))] if sent else []
            connection.sendmsg([first], rights)
            connection.sendall(rest)
        if kind == "load":
            for descriptor in descriptors:
                os.close(descriptor)
        if close:
            connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, request, client):
        kind = request["type"]
        if kind in self.errors:
            code, fields = self.errors[kind]
            return dict(fields, type="error", code=code, text="the test says so"), []
        if kind == "hello":
            assert request["v"] == PROTOCOL
            self.hellos.append(request)
            shard = self.shards.setdefault((request["dir"], request["shard"]), Shard())
            client.update(shard=shard, hello=request)
            newest = shard.newest()
            return {
                "type": "welcome",
                "v": PROTOCOL,
                "epoch": 7,
                "slots": len(shard.slots),
                "memory_step": newest.step if newest else None,
                "disk_step": None,
            }, []
        if kind == "written_alone":
            assert request["v"] == PROTOCOL
            self.written_alone.append((request["dir"], request["step"], request["round"]))
            return {"type": "done", "queued": False}, []
        if "shard" not in client:
            return {"type": "error", "code": "out_of_order", "text": "say hello first"}, []
        return getattr(self, "_" + kind)(request, client["shard"], client)

    def _alloc(self, request, shard, client):
        size = request["bytes"]
        if size * self.slots > self.allowance:
            need, have = size * self.slots, self.allowance
            return {"type": "error", "code": "no_memory", "text": "too large", "need": need, "have": have}, []
        if shard.layout_id != request["layout_id"] or not shard.slots:
            # As the saver does, which keeps the newest whole slot until a commit of the new layout.
            kept = shard.newest()
            for slot in shard.slots:
                if slot is not kept:
                    os.close(slot.descriptor)
            shard.slots = [slot for slot in shard.slots if slot is kept]
            for _ in range(self.slots):
                self._count += 1
                shard.slots.append(Slot(self._count, size))
            shard.layout_id = request["layout_id"]
        offered = [slot for slot in shard.slots if slot.size == size][-self.slots :]
        offers = [{"id": slot.number, "bytes": slot.size} for slot in offered]
        return {"type": "allocated", "slots": offers}, [slot.descriptor for slot in offered]

    def _begin(self, request, shard, client):
        if shard.layout_id != request["layout_id"]:
            return {"type": "error", "code": "out_of_order", "text": "alloc first"}, []
        offered, newest = shard.slots[-self.slots :], shard.newest()
        free = [slot for slot in offered if slot.state != "persisting" and slot is not newest]
        # The third has no memory of its own until a write to disk begins.
        third = offered[2:]
        free.sort(key=lambda slot: (bool(slot.readers), slot.state == "queued", slot in third, slot.step or 0))
        if not free or free[0].readers - {client["process"]}:
            return {"type": "error", "code": "busy", "text": "no slot", "persisting": 1}, []
        slot = free[0]
        superseded = [slot.step] if slot.state == "queued" else []
        slot.state = "writing"
        pinned = client["process"] in slot.readers
        return {"type": "begun", "slot": slot.number, "superseded": superseded, "pinned": pinned}, []

    def _slot(self, shard, number):
        return next((slot for slot in shard.slots if slot.number == number), None)

    def _commit(self, request, shard, client):
        slot = self._slot(shard, request["slot"])
        if slot is None or slot.state != "writing":
            return {"type": "error", "code": "not_yours", "text": "not begun"}, []
        slot.step = request["step"]
        is_queued = request["storage"] == "disk" and request["writes_disk"] and self.disk_is_busy
        slot.state = "queued" if is_queued else "whole"
        shard.commits.append(request)
        return {"type": "done", "queued": request["storage"] == "disk" and request["writes_disk"]}, []

    def _abort(self, request, shard, client):
        self._slot(shard, request["slot"]).state = "empty"
        return {"type": "done", "queued": False}, []

    def _load(self, request, shard, client):
        nothing = {"slot": None, "bytes": None, "path": None, "step": None}
        if self.load_answer is not None:
            return dict(nothing, type="loaded", **self.load_answer), []
        slot = shard.newest()
        if slot is None:
            return dict(nothing, type="loaded", source="none", reason="nothing was saved"), []
        slot.readers.add(client["process"])
        reply = {"source": "memory", "step": slot.step, "slot": slot.number, "bytes": slot.size, "reason": "it is here"}
        only_read = os.open("/proc/self/fd/%d" % slot.descriptor, os.O_RDONLY | os.O_CLOEXEC)
        return dict(nothing, type="loaded", **reply), [only_read]

    def _loaded_done(self, request, shard, client):
        slot = self._slot(shard, request["slot"])
        if slot is None or client["process"] not in slot.readers:
            return {"type": "error", "code": "not_yours", "text": "not loaded"}, []
        slot.readers.discard(client["process"])
        return {"type": "done", "queued": False}, []

    def _wait(self, request, shard, client):
        wishes = [commit["step"] for commit in shard.commits if commit["storage"] == "disk"]
        step = request["step"] if request["step"] is not None else (wishes[-1] if wishes else None)
        state = "timeout" if self.disk_is_busy and wishes else "on_disk"
        return {"type": "waited", "state": state, "step": step, "error": None}, []

    def _status(self, request, shard, client):
        return {"type": "status", "round": None, "shards": []}, []


if __name__ == "__main__":
    ReferenceSaver(sys.argv[1]).serve()
