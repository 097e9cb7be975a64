#!/bin/bash
# What the selftests of this directory share: each sources this file in a guest, runs its steps with
# `check`, and ends with `$status`.
# shellcheck disable=SC2034 # the tests read status

# Not the commands that stand for vioswitchd here.
PATH=/bin
status=0

# check WHAT COMMAND…
check() {
    local what=$1
    shift
    if "$@" >/tmp/said 2>&1; then
        printf 'TEST: %-60s[ OK ]\n' "$what"
    else
        printf 'TEST: %-60s[FAIL]\n' "$what"
        cat /tmp/said
        status=1
    fi
}
