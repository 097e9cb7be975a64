# Guests of the demos: QEMU on a vhost-user socket, and a way to run commands inside.
#
# Sourced. Commands travel over the guest's second serial port, which is QEMU's standard input and
# output (protocol in guest-init), so that a guest answers before any network works.
#
# Callers set: run (scratch directory), guest (directory of vmlinux and initrd.gz), accel; they may
# set qemu (another one), vm_enter (what stands before it), vm_reconnect (a chardev's option) and
# vm_more (more arguments).
# switch_log prints the end of the switch's log.
# shellcheck shell=bash disable=SC2154

GUEST_MB=192
# From power-on to the first command: 3 s under TCG on an idle machine, far more on a busy one.
BOOT_SECONDS=90
COMMAND_SECONDS=60

qemu=${qemu:-qemu-system-x86_64}
vm_enter=()
vm_reconnect=
vm_more=()
vm_pids=()
vm_in=()
vm_out=()

# start_vm NUMBER SOCKET: powers on guest NUMBER (MAC 52:54:00:99:00:0N, 10.99.0.N, fd00:99::N).
start_vm() {
    local number=$1 socket=$2 cpu=max vectors='' in=$run/vm$1.in out=$run/vm$1.out to from
    [ "$accel" = tcg ] || cpu=host
    # QEMU before 8 crashes by itself under TCG when a vhost-user-net device uses MSI-X.
    if [ "$accel" = tcg ] && [ "$(qemu_major)" -lt 8 ]; then vectors=,vectors=0; fi
    mkfifo "$in" "$out"
    # Opened for reading and writing: neither this open nor QEMU's waits for the other end.
    exec {to}<>"$in" {from}<>"$out"
    vm_in[number]=$to
    vm_out[number]=$from
    # maxcpus: see MAXCPUS in tests/guests/vm.rs.
    setpriv --pdeathsig KILL "${vm_enter[@]}" "$qemu" -accel "$accel" -cpu "$cpu" -m "$GUEST_MB" \
        -object "memory-backend-memfd,id=mem,size=${GUEST_MB}M,share=on" \
        -machine pc,memory-backend=mem -smp 1,maxcpus=2 -nodefaults -no-user-config \
        -display none -no-reboot \
        -serial "file:$run/vm$number.console" \
        -chardev stdio,id=commands,signal=off -serial chardev:commands \
        -chardev "socket,id=port,path=$socket${vm_reconnect:+,$vm_reconnect}" \
        -netdev vhost-user,id=net,chardev=port \
        -device "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:99:00:0$number$vectors" \
        "${vm_more[@]}" -kernel "$guest/vmlinux" -initrd "$guest/initrd.gz" \
        -append "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check \
ip4=10.99.0.$number/24 ip6=fd00:99::$number/64" <"$in" >"$out" 2>"$run/vm$number.qemu" &
    vm_pids[number]=$!
}

qemu_major() {
    "$qemu" --version | sed -n '1s/.*version \([0-9]*\)\..*/\1/p'
}

# read_guest NUMBER START SECONDS: reads on until a line begins with START and leaves it in
# `line`; lines before it go to `heard`. Fails when the time is over or QEMU gone.
read_guest() {
    local number=$1 start=$2 end=$((SECONDS + $3)) status begun=''
    heard=()
    while [ "$SECONDS" -le "$end" ]; do
        status=0
        IFS= read -r -t 1 -u "${vm_out[number]}" line || status=$?
        # After a timeout read has the begin of a line, which a busy host sends in pieces.
        line=$begun$line
        begun=$line
        if [ "$status" -eq 0 ]; then
            begun=''
            [[ $line != "$start"* ]] || return 0
            heard+=("$line")
        elif ! kill -0 "${vm_pids[number]}" 2>/dev/null; then
            return 1
        fi
    done
    return 1
}

# wait_vm NUMBER: until the guest takes commands.
wait_vm() {
    read_guest "$1" 'VS ready' "$BOOT_SECONDS" || guest_failed "$1" "vm$1 did not boot"
}

# in_guest NUMBER COMMAND…: runs a command that must succeed; its output is in `answer`.
in_guest() {
    local number=$1 text
    shift
    echo "1 $*" >&"${vm_in[number]}"
    read_guest "$number" 'VS 1 exit ' "$COMMAND_SECONDS" \
        || guest_failed "$number" "vm$number did not answer to: $*"
    answer=
    for text in "${heard[@]}"; do answer+=${text#VS 1 | }$'\n'; done
    [ "$line" = 'VS 1 exit 0' ] \
        || guest_failed "$number" "failed in vm$number: $*"$'\n'"$answer"
}

# Says what went wrong with all that could explain it.
guest_failed() {
    local number=$1
    {
        echo "--- vm$number, end of its console:"
        tail -n 20 "$run/vm$number.console"
        echo "--- vm$number, QEMU:"
        tail -n 10 "$run/vm$number.qemu"
        echo "--- vioswitchd, end of its log:"
        switch_log
    } >&2
    fail "$2"
}
