# What is typed on a machine and in its guests, shown with what it says and held to it.
#
# Sourced, after machine.sh and guest.sh. What a command said is in `said`.
# shellcheck shell=bash disable=SC2154

# For what takes a moment to take effect.
SOON_SECONDS=20

said=

# A line as it is typed, and what it was answered.
typed() { printf '\n    %s\n' "$1"; }
answered() {
    said=$1
    [ -z "$said" ] || sed 's/^/    /;s/ *$//' <<<"$said"
}

# refused STATUS COMMAND…: runs a command in the machine that must end with this status.
refused() {
    local wanted=$1 status=0 text
    shift
    typed "# $*"
    text=$(on "$@" 2>&1 </dev/null) || status=$?
    answered "$text"
    [ "$wanted" = 0 ] || say "    (status $status)"
    [ "$status" = "$wanted" ] || fail "\"$*\" ended with status $status, not $wanted"
}

# shown COMMAND…: runs a command in the machine that must succeed.
shown() { refused 0 "$@"; }

# told PATTERN: one of the lines said last is like that.
told() { grep -qE -- "$1" <<<"$said" || fail "it does not say \"$1\""; }

# eventually PATTERN COMMAND…: shows the command once it says that, and fails if it never does.
eventually() {
    local wanted=$1 text end=$((SECONDS + SOON_SECONDS))
    shift
    until text=$(on "$@" 2>&1 </dev/null) && grep -qE -- "$wanted" <<<"$text"; do
        if [ "$SECONDS" -gt "$end" ]; then break; fi
        sleep 0.1
    done
    typed "# $*"
    answered "$text"
    told "$wanted"
}

# installed MODE SOURCE DESTINATION: puts a file of ours into the machine.
installed() {
    say "    # install -D -m $1 $(basename "$2") $3"
    install -D -m "$1" "$2" "$machine$3"
}

# written FILE TEXT: writes a file of the machine.
written() {
    typed "# cat >$1"
    mkdir -p "$(dirname "$machine$1")"
    printf '%s\n' "$2" >"$machine$1"
    answered "$2"
}

# in_vm NUMBER COMMAND…: runs a command in a guest that must succeed.
in_vm() {
    local number=$1
    shift
    typed "vm$number# $*"
    in_guest "$number" "$@"
    answered "${answer%$'\n'}"
}

# queried QUERY PATTERN: a query that Prometheus answers so, sooner or later.
queried() {
    local text end=$((SECONDS + SOON_SECONDS))
    until text=$(nsenter --target "$machine_init" --net \
        promtool query instant http://127.0.0.1:9090 "$1" 2>&1) && grep -qE -- "$2" <<<"$text"; do
        if [ "$SECONDS" -gt "$end" ]; then break; fi
        sleep 0.2
    done
    typed "# promtool query instant http://127.0.0.1:9090 '$1'"
    answered "$text"
    told "$2"
}

# screen PATTERN COMMAND…: what a terminal of 80 by 24 shows of a program, as soon as it shows that.
screen() {
    local wanted=$1 text end=$((SECONDS + SOON_SECONDS))
    shift
    typed "# $*"
    tmux -u -S "$run/tmux" -f /dev/null new-session -d -x 80 -y 24 \
        "exec nsenter --target $machine_init --all $*"
    until text=$(tmux -S "$run/tmux" capture-pane -p) && grep -qE -- "$wanted" <<<"$text"; do
        if [ "$SECONDS" -gt "$end" ]; then break; fi
        sleep 0.2
    done
    answered "$text"
    told "$wanted"
    tmux -S "$run/tmux" kill-server
}

# --- pings -------------------------------------------------------------------------------------

# Twenty a second from vm1 to vm2; each answer is written down with the time it came at. What the
# guest's shell says of their end must not get into what another command says.
# shellcheck disable=SC2016 # expanded in the guest
PINGS='(ping -i 0.05 10.99.0.2 | while read -r line; do read -r up idle </proc/uptime;
 echo "$up $line"; done) >/tmp/pings 2>/dev/null & sleep 0.5'
# Ends them and tells how many were answered, and the longest silence, the last one included.
# shellcheck disable=SC2016
PINGS_END='sleep 1; read -r now idle </proc/uptime; killall ping; awk -v now="$now" "
/bytes from/ { if (last && \$1 - last > most) most = \$1 - last; last = \$1; answers++ }
END { if (now - last > most) most = now - last; print answers + 0, most + 0 }" /tmp/pings'

# within SECONDS COMMAND…: vm1 pings vm2 while the command runs, and is without an answer for so
# long at most. A busy host may take longer once: the best of three tries counts.
within() {
    local limit=$1 try answers silence
    shift
    for try in 1 2 3; do
        in_guest 1 "${PINGS//$'\n'/}"
        "$@"
        in_guest 1 "${PINGS_END//$'\n'/ }"
        read -r answers silence <<<"$answer"
        [ "$answers" -gt 0 ] || fail "no ping was answered"
        say ""
        note "pings, 20 a second, answered" "$answers"
        note "longest silence" "$silence s"
        if awk "BEGIN { exit !($silence <= $limit) }"; then return; fi
        note "more than $limit s: try" "$((try + 1))"
    done
    fail "pings were unanswered for more than $limit s in each of three tries"
}
