# shellcheck shell=bash
# What every script shares: progress, errors, and the Debian packages a script needs.
# Sourced, never run. Needs bash; sets no options of its own.

# Wherever a script is started from: tools speak and sort as is expected here, files can be read by
# the users that programs under test run as, tools of root are found, a socket's path has room
# behind TMPDIR, and no program takes itself for a service. tests/testkit does the same for tests.
export LC_ALL=C.UTF-8
umask 022
export PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin
tmpdir=${TMPDIR:-}
if [ ${#tmpdir} -gt 45 ] || [ ! -w "${TMPDIR:-/tmp}" ]; then unset TMPDIR; fi
unset RUST_LOG NOTIFY_SOCKET LISTEN_PID LISTEN_FDS LISTEN_FDNAMES STATE_DIRECTORY \
    RUNTIME_DIRECTORY JOURNAL_STREAM INVOCATION_ID

say() { printf '%s\n' "$*"; }

# The headline of a step.
step() { printf '\n==> %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Prints the head comment of the script that runs: what the script does, its usage and its options.
print_head() { sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$0"; }

# Ends with an error that repeats the usage line of the head comment.
usage_error() { fail "$*; $(print_head | grep -m 1 '^usage: ' || echo "see $0 --help")"; }

# Refuses arguments of a script that takes none.
no_arguments() { [ $# = 0 ] || usage_error "unknown argument '$1'"; }

is_root() { [ "$(id -u)" = 0 ]; }

# "sudo " for the lines we ask a user to run, if that is what they need in front of it.
sudo_word() {
    if ! is_root && command -v sudo >/dev/null; then printf 'sudo '; fi
}

# Seconds as "3 min 7 s".
duration() {
    [ "$1" -lt 60 ] || printf '%d min ' $(($1 / 60))
    printf '%d s' $(($1 % 60))
}

# The packages among the arguments that are not installed. Asks dpkg alone, so that nothing is
# downloaded where all are there.
missing_packages() {
    local package
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed \
            || printf '%s\n' "$package"
    done
}

# Installs packages; root only. Waits while another apt runs, as on a machine just booted.
install_packages() {
    local apt="apt-get -qq -o DPkg::Lock::Timeout=300" log
    log=$(mktemp)
    # Quiet unless it fails: unpacking writes several lines for each package.
    if ! { $apt update && DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        $apt install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install: $*"
    fi
    rm -f "$log"
}

# Makes sure that all of the packages are installed: as root by installing what is missing,
# otherwise by printing the line that does it, and stopping.
require_packages() {
    local missing
    command -v dpkg-query >/dev/null || fail "this needs Debian or a system derived from it"
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! is_root; then
        say "packages are missing; run this as root, then start again:" >&2
        say "  $(sudo_word)apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    step "installing packages: ${missing[*]}"
    install_packages "${missing[@]}"
}

# Every script that sources this file answers --help, whatever else its arguments are.
for argument in "$@"; do
    case $argument in
    -h | --help)
        print_head
        exit 0
        ;;
    esac
done
unset argument

# Runs an apt tool, $1, on the sources and lists that scripts/guest-image writes below $target.
# shellcheck disable=SC2154 # the caller's
own_apt() {
    local tool=$1
    shift
    "$tool" -o "Dir::Etc::SourceList=$target/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$target/apt/lists" -o "Dir::Cache=$target/apt/cache" \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o APT::Sandbox::User="$(id -un)" "$@"
}
