# shellcheck shell=bash
# What test programs said, out of the logs of "cargo test".
# Sourced, never run.

# results LOG…: what became of each test program, in lines of words that tabs part: "passed N",
# "failed N" and "ignored N", "test PROGRAM NAME" for each test that failed, and "crashed PROGRAM" for
# a program that ended without a result.
results() {
    awk '
    BEGIN { OFS = "\t" }
    function finish(  i) {
        if (program == "") return
        if (!ended) print "crashed", program
        print "passed", passed + 0
        print "failed", failed + 0
        print "ignored", ignored + 0
        for (i = 0; i < kept; i++) print "test", program, names[i]
        program = ""
    }
    function start(what) {
        finish()
        program = what
        ended = passed = failed = ignored = listed = kept = 0
    }
    FNR == 1 { finish() }
    /^ +Running .*\(.*\)$/ { sub(/.*\(/, ""); sub(/\)$/, ""); start($0); next }
    /^ +Doc-tests / { start("doc-tests"); next }
    # Comes twice: what failed tests printed, and their names.
    /^failures:$/ { listed = 0; next }
    /^    [^ ]/ { list[listed++] = substr($0, 5); next }
    /^test result: / {
        # A test may run a test program, and print all of it as it fails: the last result is its own.
        # Doc tests have several.
        if (program != "doc-tests") passed = failed = ignored = kept = 0
        for (i = 2; i <= NF; i++) {
            if ($i == "passed;") passed += $(i - 1)
            if ($i == "failed;") failed += $(i - 1)
            if ($i == "ignored;") ignored += $(i - 1)
        }
        for (i = 0; i < listed && failed > 0; i++) names[kept++] = list[i]
        listed = 0
        ended = 1
    }
    END { finish() }' "$@"
}

# count WORD LOG…: the sum of what the programs passed, failed or ignored.
count() {
    local word=$1
    shift
    results "$@" | awk -v word="$word" '$1 == word { sum += $2 } END { print sum + 0 }'
}

# test_name PROGRAM TEST: "forwarding::stream::offloads_are_finished", of target/…/forwarding-0123abcd.
test_name() {
    local program=${1##*/}
    printf '%s::%s' "${program%-*}" "$2"
}
