"""Drives a running TCPStore server with real torch clients.

    store_functional.py HOST PORT
    store_functional.py --own-server        # the same against torch's server: is this script to be trusted?
    store_functional.py --serve BINARY      # starts `store`'s example `serve`, and changes its generation too

Ends with "all passed" and 0, or with a traceback.
"""

import argparse
import datetime
import os
import subprocess
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SECONDS = datetime.timedelta(seconds=1)


def client(host, port, timeout=30):
    return dist.TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timeout * SECONDS
    )


def raises(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{call} did not raise {kind}")


def keys_and_values(host, port):
    a, b = client(host, port), client(host, port)
    a.set("k", "v1")
    assert b.get("k") == b"v1"
    assert b.add("n", 2) == 2 and a.add("n", -5) == -3
    assert a.get("n") == b"-3"
    assert a.check(["k", "n"]) and not a.check(["k", "none"])
    assert a.compare_set("k", "v1", "v2") == b"v2"
    assert a.compare_set("k", "v1", "v3") == b"v2"
    assert a.compare_set("fresh", "", "x") == b"x"
    assert a.compare_set("absent", "expected", "x") == b"expected"
    assert not a.check(["absent"])
    a.append("log", "ab")
    a.append("log", "cd")
    # Neither an append nor a push has a reply: only what the same client asks next is surely answered after it.
    assert a.get("log") == b"abcd" and b.get("log") == b"abcd"
    b.multi_set(["m1", "m2"], ["x", "yy"])
    assert a.multi_get(["m2", "m1"]) == [b"yy", b"x"]
    keys = {"k", "n", "fresh", "log", "m1", "m2"}
    listed = {key for key in a.list_keys() if key in keys}
    assert listed == keys, listed
    count = a.num_keys()
    assert a.delete_key("m1") and not a.delete_key("m1")
    assert a.num_keys() == count - 1
    large = os.urandom(8 << 20)
    a.set("large", large)
    assert b.get("large") == large
    raises(Exception, lambda: client(host, port).set("too large", b"x" * ((8 << 20) + 1)) or a.get("too large"))
    assert b.get("k") == b"v2", "one client's fault is not another's"


def many_keys(host, port):
    store = client(host, port)
    names = [f"many/{number}" for number in range(20_000)]
    store.multi_set(names, [str(number) for number in range(20_000)])
    assert store.check(names)
    store.wait(names)
    assert store.multi_get(names)[-1] == b"19999"
    for name in names:
        assert store.delete_key(name)


def waits(host, port):
    waiting, other = client(host, port), client(host, port)
    began = time.monotonic()
    raises(dist.DistStoreError, lambda: waiting.wait(["never"], 0.3 * SECONDS))
    assert 0.2 < time.monotonic() - began < 5
    other.set("still usable", "1")
    assert waiting.get("still usable") == b"1"
    got = []
    thread = threading.Thread(target=lambda: got.append(waiting.get("later")))
    thread.start()
    other.set("later", "now")
    thread.join(30)
    assert got == [b"now"]
    thread = threading.Thread(target=lambda: waiting.wait(["w1", "w2", "w3"]) or got.append("all"))
    thread.start()
    other.set("w1", "")
    other.add("w2", 1)
    other.append("w3", "x")
    thread.join(30)
    assert got[-1] == "all"


def queues(host, port):
    a, b = client(host, port), client(host, port)
    a.queue_push("q", "1")
    a.queue_push("q", "2")
    assert a.queue_len("q") == 2 and b.queue_len("q") == 2
    assert b.check(["q"])
    assert b.queue_pop("q") == b"1" and b.queue_pop("q") == b"2"
    raises(Exception, lambda: b.queue_pop("q", False))
    assert b.queue_len("q") == 0
    got = []
    thread = threading.Thread(target=lambda: got.append(b.queue_pop("q")))
    thread.start()
    a.queue_push("q", "3")
    thread.join(30)
    assert got == [b"3"]


def barriers(host, port):
    stores = [client(host, port) for _ in range(4)]
    stores[0].barrier("alone", 1)
    threads = [threading.Thread(target=store.barrier, args=("all", 4)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    raises(dist.DistStoreError, lambda: stores[0].barrier("too few", 2, 0.3 * SECONDS))
    stores[0].set("after the barrier", "1")


def wrappers(host, port):
    store = client(host, port)
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("k", "in p")
    assert store.get("p/k") == b"in p"
    clone = prefixed.clone()
    assert clone.get("k") == b"in p"
    assert clone.compare_set("k", "in p", "changed") == b"changed"
    assert store.clone().get("p/k") == b"changed"


def rank_main(rank, world_size, host, port, outcomes):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=60 * SECONDS)
    total = torch.ones(4) * (rank + 1)
    dist.all_reduce(total)
    dist.barrier()
    outcomes.put((rank, total[0].item()))
    dist.destroy_process_group()


def process_group(host, port, world_size=2):
    spawn = multiprocessing.get_context("spawn")
    outcomes = spawn.SimpleQueue()
    ranks = [
        spawn.Process(target=rank_main, args=(rank, world_size, host, port, outcomes), daemon=True)
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0, f"a rank ended with {process.exitcode}"
    total = world_size * (world_size + 1) / 2
    assert sorted(outcomes.get() for _ in ranks) == [(rank, total) for rank in range(world_size)]


TESTS = [keys_and_values, many_keys, waits, queues, barriers, wrappers, process_group]


def run_all(host, port):
    for test in TESTS:
        began = time.monotonic()
        test(host, port)
        print(f"  {test.__name__}: {time.monotonic() - began:.2f} s", flush=True)


def run_serving(binary):
    with subprocess.Popen(
        [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        port = int(server.stdout.readline())
        run_all("127.0.0.1", port)
        old = client("127.0.0.1", port)
        old.set("of the old generation", "1")
        server.stdin.write("\n")
        server.stdin.flush()
        print(" ", server.stdout.readline().strip())
        raises(Exception, lambda: old.get("of the old generation"))
        new = client("127.0.0.1", port)
        assert new.num_keys() == 0
        process_group("127.0.0.1", port)
        print("  process_group again, on the same port: passed")
        server.stdin.close()
        assert server.wait(10) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("host", nargs="?")
    parser.add_argument("port", nargs="?", type=int)
    parser.add_argument("--own-server", action="store_true")
    parser.add_argument("--serve", metavar="BINARY")
    args = parser.parse_args()
    print(f"torch {torch.__version__}")
    if args.own_server:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        run_all("127.0.0.1", server.port)
    elif args.serve:
        run_serving(args.serve)
    elif args.port:
        run_all(args.host, args.port)
    else:
        parser.error("HOST PORT, --own-server or --serve")
    print("all passed")


if __name__ == "__main__":
    main()
