//! The demo's table of counters: from a log in which some reasons for a drop never came up.

use std::process::Command;

#[test]
fn what_was_never_counted_is_zero() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/demo");
    let script = r#"
        eval "$(sed -n '/^count_table()/,/^}/p' "$1")"
        printf '%s\n' "[x] port vm1 addresses 1" \
            "[x] port vm1 queue 0 in frames 1200 bytes 70000 copies 1200" \
            "[x] port vm2 queue 0 out frames 1200 bytes 70000 copies 0" | count_table"#;
    let output = Command::new("bash").args(["-c", script, "bash", demo]).output().expect("bash");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        table.ends_with("    1,200 copies asked for = 1,200 delivered + 0 dropped\n"),
        "{table}"
    );
    let row: Vec<&str> = table.lines().nth(1).unwrap_or("").split_whitespace().collect();
    assert_eq!(row, ["vm1", "1,200", "70,000", "0", "0", "0"], "{table}");
}

/// A busy host writes the line of a guest's serial port in pieces, with more than a second between.
#[test]
fn a_line_that_a_guest_sends_in_pieces_is_read_whole() {
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/lib/guest.sh");
    let script = r#"
        set -euo pipefail
        . "$1"
        exec {from}< <(printf 'VS up 1\nVS re'; sleep 1.5; printf 'ady 2\n')
        vm_out[1]=$from vm_pids[1]=$$
        read_guest 1 'VS ready' 5
        printf '%s|%s\n' "$line" "${heard[@]}""#;
    let output = Command::new("bash").args(["-c", script, "bash", library]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "VS ready 2|VS up 1\n", "{output:?}");
}
