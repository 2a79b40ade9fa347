"""The hardware checks: each takes the bench, returns what it saw, and raises `Wrong` when that does not hold."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import sys
import time

from bench import HERE, TREE, Skipped, must


def smi(bench, fields):
    text, code = bench.run(["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader,nounits"])
    must(code == 0, "nvidia-smi: " + text)
    return [line.split(", ") for line in text.strip().splitlines()]


def inventory(bench):
    table, _ = bench.diag("gpus")
    text, code = bench.diag("gpus", "--json")
    must(code == 0, "exit code %d: %s" % (code, table))
    gpus = json.loads(text)["gpus"]
    rows = smi(bench, "uuid,name,memory.total,driver_version,pci.bus_id")
    must(len(gpus) == len(rows), "%d GPUs, nvidia-smi has %d" % (len(gpus), len(rows)))
    must(int(rows[0][2]) == gpus[0]["memory_total_bytes"] >> 20, "memory: %s, %s" % (rows[0], gpus[0]))
    for value in (rows[0][0], rows[0][1], rows[0][3]):
        must(value in text, "%s of nvidia-smi is not in %s" % (value, text))
    return "%s; as nvidia-smi has it" % table.splitlines()[0]


def topology(bench):
    text, code = bench.diag("topo")
    best, _ = bench.diag("topo", "-k", "1", "--json")
    must(code in (0, 1), text)
    return "exit code %d: %s | %s" % (code, text.strip().splitlines()[-1], best.strip())


LOCAL = {"Local": {"accelerators": True, "places": {}}}


def described(end):
    """The time of a self-test and what it ran."""
    local = end["End"]["Local"]
    must(local["fault"] is None, "fault: %s" % local["fault"])
    return timed(local["compute"])


def timed(compute):
    time_of = compute["time"]
    return "%.2f ms for %s" % (time_of["secs"] * 1e3 + time_of["nanos"] / 1e6, json.dumps(compute["kind"]))


FIND_CUBLAS = """
import nvidia, os
for place in nvidia.__path__:
    for directory, _, names in os.walk(place):
        if any(name.startswith("libcublas.so") for name in names):
            print(directory)
"""


def cublas_folder(bench):
    """Where the wheel of torch has it."""
    text, code = bench.run([bench.options.python, "-c", FIND_CUBLAS])
    lines = text.split()
    return lines[0] if code == 0 and lines else None


def local_check(bench):
    return described(bench.probe(LOCAL))


def local_cublas(bench):
    folder = cublas_folder(bench)
    if folder is None:
        raise Skipped("no cuBLAS in a wheel")
    found = described(bench.probe(LOCAL, LD_LIBRARY_PATH=folder + ":" + os.environ.get("LD_LIBRARY_PATH", "")))
    must("Cublas" in found, found)
    return found


def local_kernel(bench):
    junk = bench.folder / "junk"
    junk.mkdir()
    for name in ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"):
        (junk / name).touch()
    found = described(bench.probe(LOCAL, LD_LIBRARY_PATH="%s:%s" % (junk, os.environ.get("LD_LIBRARY_PATH", ""))))
    must("OwnKernel" in found, found)
    return found


def samples(bench):
    end = bench.probe({"Compute": {"times": 20, "accelerators": True}})
    return "; ".join(timed(compute) for compute in end["End"]["Compute"])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def two_nodes(bench):
    port = free_port()
    words = [bench.program("dlrover-run"), "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=two",
             "--rdzv-endpoint=127.0.0.1:%d" % port, "--network-check", "-v", TREE / "tests/trainers/ring_sgd.py"]
    both = [bench.start(words), bench.start(words)]
    ends = [bench.end(process) for process in both]
    must([code for _, code in ends] == [0, 0], "exit codes %s: %s" % ([code for _, code in ends], ends[0][0][-500:]))
    return "both end with 0; " + last_line(ends[0][0], "check")


def last_line(text, word):
    lines = [line for line in text.splitlines() if word in line]
    return lines[-1].strip() if lines else ""


def check_command(bench):
    command = "%s %s" % (bench.options.python, TREE / "examples/checks/torch_check.py")
    text, code = bench.launch("--standalone", "--nproc-per-node=1", "--network-check", "--check-command", command, "-v",
                              TREE / "tests/trainers/ring_sgd.py")
    must(code == 0 and "the check command passed" in text, "exit code %d: %s" % (code, text[-500:]))
    return last_line(text, "check command")


def busy(bench):
    total = int(smi(bench, "memory.total")[0][0])
    holder = bench.start([sys.executable, HERE / "driver.py", "hold", total * 4 // 10, 60])
    try:
        deadline = time.monotonic() + 30
        while int(smi(bench, "memory.used")[0][0]) < total * 3 // 10:
            must(time.monotonic() < deadline, "the memory was not taken")
            time.sleep(0.2)
        table, _ = bench.diag("gpus")
        text, code = bench.launch("--standalone", "--nproc-per-node=1", "--network-check",
                                  TREE / "tests/trainers/ring_sgd.py")
        chosen, _ = bench.launch("--standalone", "--nproc-per-node=1", "--gpu-select=topology",
                                 TREE / "tests/trainers/ring_sgd.py")
    finally:
        holder.kill()
        bench.end(holder)
    must(code == 201 and "gpu-busy" in text, "exit code %d: %s" % (code, text[-500:]))
    must("left out: GPU 0 busy" in chosen, chosen[-500:])
    return "201: %s | %s | %s" % (last_line(text, "gpu-busy"), table.splitlines()[-1], last_line(chosen, "gpu-select"))


def absent(bench):
    text, code = bench.launch("--standalone", "--nproc-per-node=1", "--network-check",
                              TREE / "tests/trainers/ring_sgd.py",
                              CUDA_VISIBLE_DEVICES="GPU-00000000-0000-0000-0000-000000000000")
    must(code == 201 and "gpu-permission" in text, "exit code %d: %s" % (code, text[-500:]))
    return "201: " + last_line(text, "gpu-permission")


def switchbox(bench):
    words = ["switchbox", "--box-pairs", "0:0", "--probe-loopback", "--switchbox-probe=cuda"]
    text, code = bench.diag(*words)
    document, _ = bench.diag(*words, "--json")
    must(code == 0, "exit code %d: %s" % (code, text))
    return text.strip().replace("\n", " | ")[-500:]


def switchbox_default(bench):
    text, code = bench.launch("--standalone", "--nproc-per-node=1", "--network-check", "--switchbox-check",
                              TREE / "tests/trainers/ring_sgd.py")
    must(code == 1 and "this host has 1 accelerator" in text, "exit code %d: %s" % (code, text[-500:]))
    return "1: " + last_line(text, "this host has")


def xid(bench):
    text, code = bench.launch("--standalone", "--nproc-per-node=1", HERE / "driver.py", "fault", "5")
    must("Xid" in text, "no Xid is reported: exit code %d: %s" % (code, text[-500:]))
    return last_line(text, "Xid")


def selected(bench):
    seen, uuid = [], smi(bench, "uuid")[0][0]
    for choice in ("topology", "0", uuid):
        text, code = bench.launch("--standalone", "--nproc-per-node=1", "--gpu-select=%s" % choice, HERE / "train.py",
                                  "--steps=2")
        must(code == 0, "--gpu-select=%s: exit code %d: %s" % (choice, code, text[-500:]))
        must(uuid in (bench.facts(0)["visible"] or ""), "%s: %s" % (choice, bench.facts(0)))
        seen.append(last_line(text, "gpu-select"))
    first = bench.start([bench.program("dlrover-run"), "--standalone", "--nproc-per-node=1", "--gpu-select=0",
                         HERE / "train.py", "--steps=100", "--pause=0.1"])
    time.sleep(3)
    text, code = bench.launch("--standalone", "--nproc-per-node=1", "--gpu-select=0", HERE / "train.py", "--steps=2")
    bench.end(first, 1, stop=signal.SIGTERM)
    must(code == 1, "a second launcher took the same GPU: %s" % text[-500:])
    return "%s | locked: %s" % (seen[0], text.strip().splitlines()[-1])


def shares(bench):
    share = dict(ALIYUN_COM_GPU_MEM_IDX=0, ALIYUN_COM_GPU_MEM_CONTAINER=2, ALIYUN_COM_GPU_MEM_DEV=80,
                 NVIDIA_VISIBLE_DEVICES="all")
    text, code = bench.launch("--standalone", "--nproc-per-node=1", HERE / "driver.py", "hold", "4096", "6", **share)
    enforced, stopped = bench.launch("--standalone", "--nproc-per-node=1", "--gpu-mem-enforce", HERE / "driver.py",
                                     "hold", "4096", "30", **share)
    must(code == 0 and "its share" in text, "exit code %d, not reported: %s" % (code, text[-500:]))
    must(stopped != 0 and "killing it" in enforced, "exit code %d, not killed: %s" % (stopped, enforced[-500:]))
    return "%s | enforced: %s" % (last_line(text, "uses"), last_line(enforced, "killing it"))


def ddp(bench):
    text, code = bench.launch("--standalone", "--nproc-per-node=1", "--max-restarts=1",
                              TREE / "tests/trainers/torch_ddp.py", "--die-at=60", "--die-rank=0")
    must(code == 0 and "attempt 1" in text, "exit code %d: %s" % (code, text[-500:]))
    return last_line(text, "final loss")


def devices_of(launcher):
    """Processes of a launcher with a device of NVIDIA open, and all its processes with torch in memory."""
    parents, opened, with_torch = {}, set(), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(pid)] = int(pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
            if "libtorch" in pathlib.Path("/proc", pid, "maps").read_text():
                with_torch.add(int(pid))
            for descriptor in os.listdir("/proc/%s/fd" % pid):
                with contextlib.suppress(OSError):
                    if "/dev/nvidia" in os.readlink("/proc/%s/fd/%s" % (pid, descriptor)):
                        opened.add(int(pid))

    def is_ours(pid):
        while pid not in (0, launcher) and pid in parents:
            pid = parents[pid]
        return pid == launcher

    return {pid for pid in opened if is_ours(pid)}, {pid for pid in with_torch if is_ours(pid)}


def warm(mode):
    def check(bench):
        launcher = bench.start([bench.program("dlrover-run"), "--standalone", "--nproc-per-node=1",
                                "--max-restarts=1", "-v", "--warm=" + mode,
                                HERE / "train.py", "--kind=die", "--at=400", "--steps=420"])
        opened, with_torch = set(), set()
        while launcher.poll() is None and time.monotonic() < launcher.began + 90:
            now_opened, now_with_torch = devices_of(launcher.pid)
            opened, with_torch = opened | now_opened, with_torch | now_with_torch
            time.sleep(0.1)
        text, code = bench.end(launcher, 1)
        must(code == 0, "exit code %d: %s" % (code, text[-500:]))
        workers = {json.loads(path.read_text())["pid"] for path in bench.folder.glob("attempt.*.rank.?")}
        bench.note("workers %s, with torch %s, with a device %s" % (workers, with_torch, opened))
        must(workers <= opened, "workers %s, with a device %s" % (workers, opened))
        must(len(with_torch - workers) == 1, "with torch %s, workers %s" % (with_torch, workers))
        must(not (with_torch - workers) & opened, "the template has opened a device")
        killed = json.loads((bench.folder / "killed").read_text())["at"]
        seconds = bench.facts(1)["at"] - killed
        ready = last_line(text, "template")
        must("the template of warm workers is ready" in text, "no template: %s" % ready)
        return "SIGKILL -> next step %.2f s; first step %.2f s; the template never opened a device; %s" % (
            seconds, bench.facts(0)["at"] - launcher.began, ready)

    return check


def hang(kind, ranks):
    def check(bench):
        dumps = bench.folder / "dumps"
        dumps.mkdir()
        text, code = bench.launch("--standalone", "--nproc-per-node=%d" % ranks, "--hang-timeout=5",
                                  "--hang-grace=60", "--on-hang=exit", "--max-restarts=0",
                                  HERE / "train.py", "--kind=" + kind, "--steps=10000",
                                  XPU_TIMER_TIMELINE_PATH=dumps, TORCH_FR_BUFFER_SIZE=2000, HOME=bench.folder,
                                  TORCH_NCCL_DEBUG_INFO_PIPE_FILE=bench.folder / "nccl-pipe", seconds=90)
        for path in sorted(dumps.glob("*stack*")) + sorted(dumps.glob("hang.json")):
            if path.suffix != ".svg":
                bench.note("--- %s\n%s" % (path.name, path.read_text(errors="replace")[:6000]))
        if kind == "nccl":
            stacks = "".join(path.read_text(errors="replace") for path in dumps.glob("*.stacktrace"))
            must("NCCL flight recorder: written to" in stacks, "no word of the flight recorder in %s" % dumps)
            must((bench.folder / ".cache/torch/comm_lib_trace_rank_0").is_file(), "the recorder wrote no file")
        bench.note("files: %s" % sorted(str(path.relative_to(bench.folder)) for path in bench.folder.rglob("*")))
        must("hang: " in text, "no hang is declared: exit code %d: %s" % (code, text[-500:]))
        left = bench.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"])[0].split()
        must(not left, "processes on the GPU afterwards: %s" % left)
        return "%d, no process left on the GPU: %s" % (code, last_line(text, "hang: "))

    return check


def flash(mib, turns, **variables):
    def check(bench):
        result = bench.folder / "flash.json"
        text, code = bench.launch("--standalone", "--nproc-per-node=1", "--max-restarts=1", HERE / "flash.py", mib,
                                  turns, bench.folder / "checkpoints", result, seconds=200, **variables)
        figures = json.loads(result.read_text()) if result.exists() else {}
        must(code == 0 and figures.get("equal"), "exit code %d, %s: %s" % (code, figures, text[-1500:]))
        must("cannot be pinned" not in text, text[-500:])
        return json.dumps({name: short(value) for name, value in figures.items()})

    return check


def short(value):
    if isinstance(value, list):
        return [short(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


CHECKS = {
    "inventory": inventory,
    "topology": topology,
    "local-check": local_check,
    "local-cublas": local_cublas,
    "local-kernel": local_kernel,
    "compute-samples": samples,
    "switchbox-loopback": switchbox,
    "switchbox-default-pairs": switchbox_default,
    "two-nodes": two_nodes,
    "absent-gpu": absent,
    "xid": xid,
    "busy": busy,
    "check-command": check_command,
    "select": selected,
    "shares": shares,
    "ddp": ddp,
    "warm-restart": warm("restart"),
    "warm-start": warm("start"),
    "hang-kernel": hang("kernel", 2),
    "hang-skip": hang("skip", 2),
    "hang-nccl": hang("nccl", 1),
    "flash": flash(2048, 4, HARDWARE_DCP=1),
    "flash-10-gib": flash(10240, 4),
}
