# shellcheck shell=bash
# Finds a cargo that is new enough; installs one where there is none, or tells the line that does.
# Sourced, never run; needs common.sh. Sets CARGO.
#
# Debian 12's cargo and rustc are too old for us. Its cargo-web and rustc-web, kept current for
# browsers, are not: they install /usr/bin/cargo and /usr/bin/rustc, in place of the old ones. They
# are new enough in the security updates alone, which a system of debootstrap lacks. A small system,
# such as a container, has no certificates, without which cargo downloads nothing.

TOOLCHAIN_PACKAGES="cargo-web rustc-web ca-certificates"
SECURITY_UPDATES="deb http://security.debian.org/debian-security bookworm-security main"

toolchain_manifest=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/Cargo.toml

# The oldest Rust that builds the crate, as Cargo.toml says.
rust_version() {
    sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$toolchain_manifest"
}

# Whether version $1 is at least version $2.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# The version number in "cargo 1.95.0 (f2d3ce0bd 2026-03-21)" and the like; empty if $1 fails.
version_of() { "$1" --version 2>/dev/null </dev/null | sed -n '1s/^[a-z]* \([0-9.]*\).*/\1/p'; }

# Finds cargo and its rustc, and puts them into PATH. Fails if either is missing or too old.
# rustup's own directory is looked at because root and cron often have a shorter PATH.
find_cargo() {
    local candidate directory wanted rustc rustup=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    wanted=$(rust_version)
    for candidate in "$(command -v cargo || true)" "$rustup/cargo"; do
        [ -x "$candidate" ] || continue
        directory=$(dirname "$candidate")
        rustc=$directory/rustc
        [ -x "$rustc" ] || rustc=$(command -v rustc || true)
        at_least "$(version_of "$candidate")" "$wanted" || continue
        at_least "$(version_of "$rustc")" "$wanted" || continue
        CARGO=$candidate
        case ":$PATH:" in
        *":$directory:"*) ;;
        *) export PATH="$directory:$PATH" ;;
        esac
        return 0
    done
    return 1
}

# The version apt would install of package $1; empty if it knows none.
apt_candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p'
}

# Whether there is any cargo or rustc, however old.
has_toolchain() {
    command -v cargo >/dev/null || command -v rustc >/dev/null \
        || [ -x "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin/cargo" ]
}

# Installs the toolchain of Debian's packages, as root and where it takes no place of another. Fails
# if it has not.
install_cargo() {
    if ! is_root || has_toolchain || ! command -v apt-get >/dev/null; then return 1; fi
    # A machine that never did this, or not since its sources changed, knows no package or old ones.
    at_least "$(apt_candidate rustc-web)" "$1" || apt-get -qq update >/dev/null 2>&1 || true
    at_least "$(apt_candidate rustc-web)" "$1" || return 1
    # shellcheck disable=SC2086 # a list of words
    require_packages $TOOLCHAIN_PACKAGES
    find_cargo
}

# Sets CARGO, or prints the line that gets one and stops. Scripts call it first: it may end them,
# and other packages take long to install.
require_cargo() {
    local wanted offered update=''
    wanted=$(rust_version)
    if find_cargo || install_cargo "$wanted"; then return 0; fi
    say "this needs Rust $wanted or newer, cargo and rustc; found: $(found_toolchain)" >&2
    offered=$(apt_candidate rustc-web)
    # A machine that never ran "apt-get update" knows no package at all.
    [ -n "$offered" ] || update="$(sudo_word)apt-get update && "
    if [ -n "$update" ] || at_least "$offered" "$wanted"; then
        say "run this as root, then start again:" >&2
        say "  ${update}$(sudo_word)apt-get install --no-install-recommends $TOOLCHAIN_PACKAGES" >&2
    else
        say "Debian 12 has it in its security updates; run this as root, then start again:" >&2
        say "  echo '$SECURITY_UPDATES' >/etc/apt/sources.list.d/security.list" >&2
        say "  apt-get update && apt-get install --no-install-recommends $TOOLCHAIN_PACKAGES" >&2
        say "elsewhere install it from https://rustup.rs, or update it: rustup update stable" >&2
    fi
    exit 1
}

# What is there, for the message about what is missing.
found_toolchain() {
    local version
    version=$(version_of rustc)
    if [ -n "$version" ]; then printf '%s' "$version"; else printf 'none'; fi
}

# Makes sure that "cargo fmt" and "cargo clippy" work with CARGO. Debian has them in packages of
# their own, rustup in components.
require_cargo_tools() {
    local package
    if "$CARGO" fmt --version >/dev/null 2>&1 && "$CARGO" clippy --version >/dev/null 2>&1; then
        return 0
    fi
    package=$(dpkg -S "$(readlink -f "$CARGO")" 2>/dev/null | cut -d: -f1 || true)
    case $package in
    cargo-web) require_packages rustfmt-web rust-web-clippy ;;
    cargo) require_packages rustfmt rust-clippy ;;
    *)
        say "cargo fmt or cargo clippy is missing; run this, then start again:" >&2
        say "  rustup component add rustfmt clippy" >&2
        exit 1
        ;;
    esac
}

# run_cargo ARGUMENT…: runs cargo in the repository. What cargo says goes to a log file. A terminal
# shows one line of progress meanwhile; if cargo fails, the end of the log is printed.
# Callers may set limit: what stands before cargo.
# shellcheck disable=SC2154
run_cargo() {
    local began=$SECONDS status=0 directory log printer='' bar=(CARGO_TERM_PROGRESS_WHEN=never)
    directory=${CARGO_TARGET_DIR:-$(dirname "$toolchain_manifest")/target}
    log=$directory/$(basename "$0")-build.log
    mkdir -p "$directory"
    : >"$log"
    if [ -t 1 ]; then
        bar=(CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=80)
        show_progress "$log" &
        printer=$!
    else
        say "    compiling; the log is $log"
    fi
    (cd "$(dirname "$toolchain_manifest")" && env "${bar[@]}" CARGO_TERM_COLOR=never \
        ${limit[@]+"${limit[@]}"} "$CARGO" "$@" </dev/null >"$log" 2>&1) || status=$?
    if [ -n "$printer" ]; then
        kill "$printer" 2>/dev/null || true
        wait "$printer" 2>/dev/null || true
        printf '\r\033[K'
    fi
    # The bars end at a carriage return; the lines that stay stand behind the last one.
    sed -i 's/.*\r\(\x1b\[K\)\{0,1\}//' "$log"
    if [ "$status" != 0 ]; then
        grep -vE '^ +(Compiling|Checking|Downloading|Downloaded|Updating|Locking) ' "$log" \
            | tail -n 60 >&2
        say "the whole log: $log" >&2
        return "$status"
    fi
    say "    compiled $(grep -cE '^ +Compiling ' "$log") crates in $(duration $((SECONDS - began)))"
}

# Shows how far cargo is, by the bar at the end of its log, until it is killed or the script is gone.
show_progress() {
    local began=$SECONDS at
    while kill -0 $$ 2>/dev/null; do
        at=$(tail -c 400 "$1" | tr '\r' '\n' | sed -nE 's|^ *Building .* ([0-9]+)/([0-9]+).*| \1 of \2|p' \
            | tail -n 1)
        printf '\r\033[K    compiling%s, %s' "$at" "$(duration $((SECONDS - began)))"
        sleep 0.5
    done
}
