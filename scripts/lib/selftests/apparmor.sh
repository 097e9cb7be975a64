#!/bin/bash
# AppArmor's profile of a domain, as libvirt makes it from its template, and sockets of the switch:
# the profile permits no socket without scripts/apparmor/vioswitch, those of ports with it, and no
# other file. Run in a guest by scripts/linux-selftests. The program under the profile stands in
# QEMU's place, where such a profile permits it to run.
set -u

UUID=6a3ae0c1-7f0c-4a54-9f5e-2d7b1c0de001
PROFILES=/etc/apparmor.d
QEMU=/usr/bin/qemu-system-x86_64
RUN=/run/vioswitch

# shellcheck source=check.sh
. ./check.sh

load_profile() {
    sed "s/LIBVIRT_TEMPLATE/libvirt-$UUID/" $PROFILES/libvirt/TEMPLATE.qemu \
        >"$PROFILES/libvirt/libvirt-$UUID"
    apparmor_parser -r -W "$PROFILES/libvirt/libvirt-$UUID"
}

# Without a domain's profile.
free() { "$QEMU" "$@"; }

confined() { aa-exec -p "libvirt-$UUID" -- "$QEMU" "$@"; }

# Whether AppArmor denies it: nothing else keeps root away.
denied() {
    ! confined "$@" 2>/tmp/denied && cat /tmp/denied && grep -q 'Permission denied' /tmp/denied
}

all_allowed() {
    "$1" open $RUN/vm1.sock && "$1" connect $RUN/vm1.sock && "$1" listen $RUN/plug/vm2
}

# Files beside the sockets of ports, and sockets beside the directories.
others_denied() {
    denied open $RUN/secret && denied open $RUN/plug/sub/vm3 && denied listen $RUN/vm4 \
        && denied listen /run/vm4.sock && denied open /etc/secret
}

mount -t securityfs none /sys/kernel/security
mkdir -p $RUN/plug/sub $PROFILES/local/abstractions
touch $RUN/secret $RUN/plug/sub/vm3 /etc/secret
# As libvirt's package makes it.
: >$PROFILES/local/abstractions/libvirt-qemu
vioswitchctl port add vm1 socket=$RUN/vm1.sock --wait=listening

check "all is allowed without a profile" all_allowed free
check "a domain's profile loads" load_profile
check "it closes a port's socket" denied open $RUN/vm1.sock
check "it closes the directory of ports by plug" denied listen $RUN/plug/vm2
echo 'include if exists <abstractions/vioswitch>' >>$PROFILES/local/abstractions/libvirt-qemu
check "the profile loads with the package's rules" load_profile
check "they open ports' sockets and the directory" all_allowed confined
check "they do not open the control socket" denied open $RUN/control.sock
check "they open nothing else" others_denied
exit $status
