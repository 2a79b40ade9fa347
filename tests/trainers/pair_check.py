#!/usr/bin/env python3
"""A --check-command: the ranks of a group meet at MASTER_ADDR:MASTER_PORT and tell each other the seed.

Says what it measured as one line of JSON. PAIR_CHECK_BROKEN makes it fail with these words.
"""
import json
import os
import socket
import sys
import time

PATIENCE = 5


def exactly(peer, count):
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        if not more:
            sys.exit("the peer has gone")
        data += more
    return data


def dial(address):
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(address, timeout=PATIENCE)
        except ConnectionRefusedError:  # It has not come so far.
            if time.monotonic() > give_up:
                sys.exit(f"no listener at {address}")
            time.sleep(0.01)


def main():
    if os.environ.get("PAIR_CHECK_BROKEN"):
        print(os.environ["PAIR_CHECK_BROKEN"], file=sys.stderr)
        sys.exit(3)
    request = json.load(sys.stdin)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    assert (request["version"], request["rank"], request["world_size"]) == (1, rank, size), request
    assert (request["master_addr"], request["master_port"]) == address, request
    assert os.environ["DLROVER_CHECK"] == "1" and os.environ["DLROVER_CHECK_SEED"] == str(request["seed"])
    ours = request["seed"].to_bytes(8, "big")
    began = time.monotonic()
    if rank == 0:
        with socket.create_server(address) as server:
            server.settimeout(PATIENCE)
            peers = [server.accept()[0] for _ in range(size - 1)]
    else:
        peers = [dial(address)]
    for peer in peers:
        peer.settimeout(PATIENCE)
        peer.sendall(ours)
    is_right = all(exactly(peer, 8) == ours for peer in peers)
    milliseconds = (time.monotonic() - began) * 1000
    print(json.dumps({"progress": {"bytes": 8, "total": 8}}))
    print(json.dumps({
        "version": 1, "comm_ms": milliseconds, "latency_us": 10, "bytes_per_second": 123.4e6, "checksum_ok": is_right,
    }))


if __name__ == "__main__":
    main()
