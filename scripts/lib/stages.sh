# Stages of a demo: a headline and a time for each, and the times at the end.
#
# Sourced, after common.sh.
# shellcheck shell=bash

times=()

# note WHAT RESULT: shows one result.
note() { printf '    %-36s %s\n' "$1" "$2"; }

# stage WHAT COMMAND…: runs a part of the demo under its headline and keeps its time.
stage() {
    local what=$1 start
    shift
    start=$(now_ms)
    step "$what"
    "$@"
    times+=("$(printf '%-36s %s' "$what" "$(since "$start")")")
}

# Milliseconds since the epoch, as a time with its tenths since $1: "12.3 s".
now_ms() { date +%s%3N; }
since() {
    local ms=$(($(now_ms) - $1))
    printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# summary SHOWN-FROM SET-UP: the times, set-up apart.
summary() {
    local row
    step "demo passed in $(since "$1"), after $2 of downloading and compiling"
    for row in "${times[@]}"; do say "    $row"; done
}
