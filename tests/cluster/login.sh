#!/bin/bash
# The login node's init. It is PID 1 of its own PID namespace, so whatever runs on the login node or on a compute node,
# daemons included, ends with it: ending this one process takes the whole cluster down.
# Its standard input is the lifeline: it ends when the other end closes, unless it was told to "stay".
set -euo pipefail
root=$1 address=$2

hostname login
mount -t tmpfs -o mode=755 tmpfs /run # sockets of munge and Slurm, handles of the nodes' networks
mkdir /run/slurm
# The gswarm-tui that somebody runs on this machine, and its agents, are none of the login node's, nor the other way round.
for private in "/tmp/gswarm-tui-heads-$(id -u)" "/var/tmp/gswarm-tui-$(id -u)"; do
    install -d -m 700 "$private"
    mount -t tmpfs -o mode=700 tmpfs "$private"
done
# Every file in the node's etc folder takes the place of the one of that name in /etc.
while read -r file; do
    mount --bind "$root/login/etc/$file" "/etc/$file"
done < <(cd "$root/login/etc" && find . -type f)

ip link set lo up
ip link add bridge type bridge
ip address add "$address" dev bridge
ip link set bridge up

install -d -o munge -g munge /run/munge
install -d -o munge -g munge -m 700 /run/munge-own
head -c 128 /dev/urandom | install -o munge -g munge -m 400 /dev/stdin /run/munge-own/key
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file=/run/munge-own/key \
    --seed-file=/run/munge-own/seed >"$root/logs/login-munged.log" 2>&1 &

read -r pid _ </proc/self/stat # the number this process has outside: /proc is the host's here
echo "$pid" >"$root/login.pid"
read -r order && [ "$order" = stay ] || exit 0
sleep infinity &
wait
