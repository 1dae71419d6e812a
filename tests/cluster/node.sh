#!/bin/bash
# A compute node's init, PID 1 of its own PID namespace. It gives the node what it has of its own (name, address, /proc,
# /sys, /run, /tmp, /etc files, GPU device files) and hides what it lacks. Lists are separated by colons.
set -euo pipefail
root=$1 name=$2 address=$3 gpus=$4
IFS=: read -ra own <<<"$5"  # folders that are this node's own, and empty at first
IFS=: read -ra kept <<<"$6" # folders inside those that it shares with the login node all the same
folder=$root/nodes/$name

read -r pid _ </proc/self/stat # the number this process has outside: /proc is still the host's here
hostname "$name"
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up

mount -t tmpfs tmpfs /mnt # what the mounts below would cover waits here
mkdir /mnt/munge /mnt/cgroup
mount --bind /run/munge /mnt/munge
mount --rbind /sys/fs/cgroup /mnt/cgroup
for index in "${!kept[@]}"; do
    mkdir "/mnt/$index"
    mount --rbind "${kept[index]}" "/mnt/$index"
done

mount -t proc proc /proc
mount -t sysfs sysfs /sys # shows this network's interfaces
mount --move /mnt/cgroup /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/munge /run/sshd /run/slurm /run/gpu
mount --move /mnt/munge /run/munge
for covered in "${own[@]}"; do
    mount -t tmpfs -o mode=1777 tmpfs "$covered"
done
for index in "${!kept[@]}"; do
    mkdir -p "${kept[index]}"
    mount --move "/mnt/$index" "${kept[index]}"
done
umount /mnt

for ((gpu = 0; gpu < gpus; gpu++)); do
    mknod -m 666 "/run/gpu/nvidia$gpu" c 195 "$gpu"
done
# Every file in the node's etc folder takes the place of the one of that name in /etc.
while read -r file; do
    mount --bind "$folder/etc/$file" "/etc/$file"
done < <(cd "$folder/etc" && find . -type f)

echo "$pid" >"$folder/init.pid"
sleep infinity &
wait
