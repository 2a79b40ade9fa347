#!/bin/bash
# One dlrover-run on each host, by ssh; waits for all of them. Ctrl-C ends all of them.
#
#   NPROC=8 examples/ssh/run.sh "node-0 node-1" train.py --lr 0.1
#
# The hosts have the same files at the same paths, and dlrover-run on the PATH of a shell that is not a login shell.
# The first host serves the job master at PORT (29400), so the others must reach it by that name. Variables of this
# shell do not reach the hosts: put them before the script (env NAME=value) with --no-python, or into ~/.ssh/environment.
set -u
if [ $# -lt 2 ]; then
    echo "usage: $0 \"HOST HOST ...\" SCRIPT [ARGUMENT ...]" >&2
    exit 2
fi
read -ra hosts <<<"$1"
shift
launch=(
    dlrover-run --nnodes="${#hosts[@]}" --nproc-per-node="${NPROC:-auto}"
    --rdzv-backend=c10d --rdzv-endpoint="${hosts[0]}:${PORT:-29400}" --rdzv-id="ssh-$(date +%s)-$$"
    --max-restarts=3
)

pids=()
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM HUP
for rank in "${!hosts[@]}"; do
    host=${hosts[rank]}
    remote="cd $(printf %q "$PWD") && exec $(printf '%q ' "${launch[@]}" --node-rank="$rank" "$@")"
    # With a terminal (-tt) the launcher gets SIGHUP when this end is gone, and ends its workers.
    ssh -tt -o BatchMode=yes "$host" "$remote" </dev/null > >(sed -u "s/\r\$//; s/^/$host: /") 2>&1 &
    pids+=($!)
done

code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=$?
done
# A signal interrupts the wait above, and the connections end a moment later.
wait
exit "$code"
