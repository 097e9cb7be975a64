# shellcheck shell=bash
# Finds the nightly toolchain, which fuzzing and the sanitizers need; nothing else here does.
# Sourced, never run; needs common.sh.

# Whether rustup has a nightly toolchain. Sets RUSTUP. Its own directory is looked at because root
# and cron often have a shorter PATH.
have_nightly() {
    RUSTUP=$(command -v rustup || true)
    [ -n "$RUSTUP" ] || RUSTUP=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/rustup
    [ -x "$RUSTUP" ] && nightly rustc --version >/dev/null 2>&1
}

# Makes sure of a nightly toolchain with the components of the arguments, or tells the line that
# gets them and stops.
require_nightly() {
    local component installed
    have_nightly || missing toolchain install nightly --profile minimal
    installed=$("$RUSTUP" component list --toolchain nightly --installed)
    for component in "$@"; do
        grep -q "^$component" <<<"$installed" || missing component add --toolchain nightly "$component"
    done
}

# Runs a command of the nightly toolchain.
nightly() { "$RUSTUP" run nightly "$@"; }

missing() {
    say "this needs a part of rustup's nightly toolchain; run this, then start again:" >&2
    say "  rustup $*" >&2
    exit 1
}
