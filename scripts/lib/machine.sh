# A machine of its own for a demo: a small Debian whose first process is systemd, in namespaces.
#
# Sourced. The Debian is bootstrapped once, under target/; what a machine writes is laid over it in
# memory and goes with the machine. It has a network of its own, with nothing but lo, and sees
# nothing of the host's files, processes and control groups. From outside its files are $machine/…
#
# Callers set: run (scratch directory), target, and machine_debian, if it is not that under target/.
# With several machines at a time each has a machine_name, and a run of its own.
# shellcheck shell=bash disable=SC2154

# What the Debian has beside the smallest of all: what manages networks and filters them. Programs
# that look at it come from outside.
DEBIAN_PACKAGES=systemd,dbus,iproute2,iptables,nftables,dnsmasq-base,ifupdown,bridge-utils,iputils-ping
# And one that virtual machines run on.
# shellcheck disable=SC2034 # for callers
LIBVIRT_PACKAGES="libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86
iputils-ping"
# From nothing to all units started: 2 s on an idle machine.
MACHINE_SECONDS=60

machine=
machine_name=
machine_unshare=
machine_init=
machine_cgroup=

# What keeps this host from having such a machine, in words; nothing if it can.
machine_missing() {
    if ! is_root; then
        echo "only root can boot a machine in namespaces"
    elif ! unshare -mpuinC --fork true 2>/dev/null; then
        echo "no namespaces can be made here"
    elif ! findmnt -n -t cgroup2 >/dev/null; then
        echo "there is no cgroup2"
    elif ! grep -qw overlay /proc/filesystems && ! modprobe overlay 2>/dev/null; then
        echo "the kernel has no overlay file system"
    fi
}

# The mirror that this system's own packages come from: "SUITE ADDRESS".
debian_mirror() {
    local release
    # shellcheck source=/dev/null
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format "\$(RELEASE) \$(COMPONENT) \$(REPO_URI)" \
        'Created-By: Packages' | sed -n "s/^\($release\) main /\1 /p" | head -n 1
}

# bootstrap SCRATCH RESULT SUITE MIRROR PACKAGES: in memory, where dpkg need not wait for a disk.
# shellcheck disable=SC2016 # expanded there
BOOTSTRAP='set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
debootstrap --variant=minbase --include="$5" "$3" "$1/root" "$4"
rm -f "$1"/root/var/cache/apt/archives/*.deb
# Clocks that fetch packages, and the like.
rm -f "$1"/root/etc/systemd/system/*.wants/*.timer
ln -sf /lib/systemd/system/multi-user.target "$1/root/etc/systemd/system/default.target"
cp -a "$1/root" "$2"'

# Bootstraps the Debian, unless it is there or another process is about it.
build_debian() {
    local debian=$target/debian suite mirror stamp scratch log lock
    stamp=$(sha256sum <"${BASH_SOURCE[0]}")
    exec {lock}>"$debian.lock"
    flock "$lock"
    if [ "$(cat "$debian.stamp" 2>/dev/null)" = "$stamp" ]; then
        exec {lock}>&-
        return
    fi
    read -r suite mirror <<<"$(debian_mirror)"
    [ -n "$mirror" ] || fail "this system's sources name no mirror of its release"
    rm -rf "$debian" "$debian.stamp"
    scratch=$(mktemp -d "$target/debootstrap.XXXXXX")
    log=$debian.log
    unshare --mount bash -c "$BOOTSTRAP" bootstrap \
        "$scratch" "$debian" "$suite" "$mirror" "$DEBIAN_PACKAGES" >"$log" 2>&1 </dev/null || {
        tail -n 20 "$log" >&2
        fail "debootstrap could not make a Debian"
    }
    rmdir "$scratch"
    rm -f "$log"
    echo "$stamp" >"$debian.stamp"
    exec {lock}>&-
}

# add SCRATCH RESULT FROM PACKAGES: a Debian with more, in memory likewise.
# shellcheck disable=SC2016 # expanded there
ADD='set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
cp -a "$3" "$1/root"
cp /etc/resolv.conf "$1/root/etc/"
mount -t proc proc "$1/root/proc"
# Nothing is started there.
printf "#!/bin/sh\nexit 101\n" >"$1/root/usr/sbin/policy-rc.d"
chmod 755 "$1/root/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive
chroot "$1/root" apt-get -qq update
chroot "$1/root" apt-get -qq install --no-install-recommends $4
umount "$1/root/proc"
rm -rf "$1"/root/usr/sbin/policy-rc.d "$1"/root/var/cache/apt/archives/*.deb
cp -a "$1/root" "$2"'

# build_debian_with NAME PACKAGE…: another one, target/debian-NAME, with more packages.
build_debian_with() {
    local debian=$target/debian-$1 stamp scratch lock
    shift
    build_debian
    stamp=$(cat "$target/debian.stamp" && echo "$*")
    exec {lock}>"$debian.lock"
    flock "$lock"
    if [ "$(cat "$debian.stamp" 2>/dev/null)" != "$stamp" ]; then
        rm -rf "$debian" "$debian.stamp"
        scratch=$(mktemp -d "$target/debootstrap.XXXXXX")
        unshare --mount bash -c "$ADD" add "$scratch" "$debian" "$target/debian" "$*" \
            >"$debian.log" 2>&1 </dev/null || {
            tail -n 20 "$debian.log" >&2
            fail "apt-get could not add to a Debian: $*"
        }
        rmdir "$scratch"
        rm -f "$debian.log"
        echo "$stamp" >"$debian.stamp"
    fi
    exec {lock}>&-
}

# Run by the first process of the new namespaces: boot DEBIAN MEMORY.
# shellcheck disable=SC2016 # expanded there
BOOT='set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$2"
cd "$2"
mkdir upper work root
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" overlay root
cd root
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
# But for the settings of its own network.
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755,nosuid tmpfs dev
mkdir dev/pts dev/shm dev/net
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 net/tun:10:200; do
    IFS=: read -r name major minor <<<"$node"
    mknod -m 666 "dev/$name" c "$major" "$minor"
done
ln -s /proc/self/fd dev/fd
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
hostname vioswitch-demo
pivot_root . mnt
umount -l mnt
exec env -i container=vioswitch-demo PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --log-target=journal </dev/null'

# Boots a machine; it dies with this process.
boot_machine() {
    local at end
    # Of its own, so that it is root of what it sees, and leaves nothing in ours.
    at=$(findmnt -n -o TARGET -t cgroup2 | head -n 1)
    at+=$(sed -n 's/^0:://p' /proc/self/cgroup)
    machine_cgroup=${at%/}/vioswitch-demo.$$${machine_name:+.$machine_name}
    mkdir "$machine_cgroup" "$run/memory"
    (
        echo "$BASHPID" >"$machine_cgroup/cgroup.procs"
        exec setpriv --pdeathsig KILL unshare -mpuinC --fork --kill-child \
            bash -c "$BOOT" boot "${machine_debian:-$target/debian}" "$run/memory"
    ) >"$run/console" 2>&1 &
    machine_unshare=$!
    end=$((SECONDS + MACHINE_SECONDS))
    until on systemctl is-system-running >"$run/booted" 2>&1; do
        kill -0 $machine_unshare 2>/dev/null || fail "the machine did not boot: $(cat "$run/console")"
        if [ "$SECONDS" -gt "$end" ] || [ "$(cat "$run/booted")" = degraded ]; then
            on systemctl --failed --no-legend >&2 || true
            fail "the machine did not come up: $(cat "$run/booted" "$run/console")"
        fi
        sleep 0.1
        machine_init=$(cat "/proc/$machine_unshare/task/$machine_unshare/children" 2>/dev/null || true)
        machine_init=${machine_init%% *}
        # shellcheck disable=SC2034 # for callers
        machine=/proc/$machine_init/root
    done
}

# on COMMAND…: runs a command in the machine.
on() {
    [ -n "$machine_init" ] || return 1
    nsenter --target "$machine_init" --all "$@"
}

# Ends it, and with it every process that was started in it, from outside too.
stop_machine() {
    local tries=0
    [ -n "$machine_unshare" ] || return 0
    kill -KILL "$machine_unshare" 2>/dev/null || true
    # Those who wait outside for a process of the machine end with it, but not for another machine's.
    if [ -n "$machine_name" ]; then
        wait "$machine_unshare" 2>/dev/null || true
    else
        wait 2>/dev/null || true
    fi
    while [ -d "$machine_cgroup" ] && [ $tries -lt 50 ]; do
        find "$machine_cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        tries=$((tries + 1))
        sleep 0.1
    done
}
