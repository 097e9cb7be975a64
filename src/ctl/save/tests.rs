//! Files after edits, and edits that are not made.

use api::wire::Step;
use serde_json::{Value, json};

use super::change::{self, Change, Standing};
use super::edit::{self, Document};

fn read(change: Value) -> Option<Vec<Change>> {
    change::read(vec![serde_json::from_value(change).expect("a change")])
}

/// A change as the switch says it.
fn told(sign: &str, before: &[(&str, &[&str])], now: &[(&str, &[&str])], tied: &[&str]) -> Change {
    let keys = |all: &[(&str, &[&str])]| -> Vec<Value> {
        all.iter().map(|(key, values)| json!({"key": key, "values": values})).collect()
    };
    let change = json!({
        "sign": sign, "kind": "vm", "name": "vm1", "origin": "file",
        "before": keys(before), "now": keys(now), "addresses": tied,
    });
    read(change).expect("a change").remove(0)
}

/// A switch with fewer rights than who writes what it says gets no text of its own into a file.
#[test]
fn what_is_no_key_is_not_written() {
    let good = json!({
        "sign": "+", "kind": "vm", "name": "a", "origin": "runtime", "addresses": [],
        "before": [], "now": [{"key": "socket-mode", "values": ["0600"]}],
    });
    assert!(read(good.clone()).is_some());
    for (at, bad) in [
        ("/kind", "port]]\nx = 1\n[[tap"),
        ("/kind", "plug"),
        ("/now/0/key", "a = 1\nb"),
        ("/now/0/key", "Queues"),
    ] {
        let mut change = good.clone();
        *change.pointer_mut(at).expect(at) = bad.into();
        assert!(read(change).is_none(), "{at} {bad}");
    }
    let text = told("+", &[], &[("socket", &["/a\"\nb = 1"])], &["\"]\nx = 1"]);
    let entry = edit::entry(&text.told);
    assert_eq!(entry.lines().count(), 4, "{entry}");
    assert!(Document::read(&entry).is_ok(), "{entry}");
}

/// Returns the text after a change.
fn changed(text: &str, change: &Change) -> Result<String, String> {
    let document = Document::read(text)?;
    let table = document.find("port", "vm1").ok_or("no such table")?;
    let edits = match change.told.sign.as_str() {
        "-" => vec![table.remove()],
        _ => table.change(&change.told)?,
    };
    let after = edit::apply(text, &edits);
    Document::read(&after)?;
    Ok(after)
}

const FILE: &str = "\
# The machines.
workers = 2

[[port]] # of the shop
name = \"vm1\"
socket = \"/run/vm1.sock\"
mtu = 1500 # as the network
# Who may.
socket-group = \"kvm\"
mac = '52-54-00-00-00-0A'

# The other one.
[[port]]
name = \"vm2\"
socket = \"/run/vm2.sock\"
";

#[test]
fn only_what_was_changed_is_another() {
    for (before, now, tied, gone, come) in [
        (&[("mtu", &["1500"][..])][..], &[("mtu", &["9000"][..])][..], &[][..], "1500", "9000"),
        (&[("mtu", &["1500"])], &[], &[], "mtu = 1500 # as the network\n", ""),
        (&[("queues", &["1"])], &[("queues", &["4"])], &[], "00-0A'\n", "00-0A'\nqueues = 4\n"),
        (
            &[("flood", &["on"])],
            &[("flood", &["off"])],
            &["52:54:00:00:00:0b"],
            "'52-54-00-00-00-0A'\n",
            "[\"52:54:00:00:00:0a\", \"52:54:00:00:00:0b\"]\nflood = \"off\"\n",
        ),
        (&[("mac", &["52:54:00:00:00:0a"])], &[], &[], "mac = '52-54-00-00-00-0A'\n", ""),
        (
            &[("mac", &["52:54:00:00:00:0a"])],
            &[("mac", &["52:54:00:00:00:0c"])],
            &[],
            "'52-54-00-00-00-0A'",
            "\"52:54:00:00:00:0c\"",
        ),
        // What is there is not added again.
        (&[], &[], &["52:54:00:00:00:0a"], "", ""),
    ] {
        let after = changed(FILE, &told("~", before, now, tied)).unwrap();
        assert_eq!(after, FILE.replacen(gone, come, 1), "{before:?} {now:?} {tied:?}");
    }
}

#[test]
fn a_table_goes_with_its_keys_and_nothing_else() {
    let after = changed(FILE, &told("-", &[], &[], &[])).unwrap();
    assert_eq!(
        after,
        "# The machines.\nworkers = 2\n\n# The other one.\n[[port]]\nname = \"vm2\"\n\
         socket = \"/run/vm2.sock\"\n"
    );
    let last = "x = 1\n[[port]]\nname = 'vm1'\nmac = [\n  'a', # one\n  'b',\n]";
    assert_eq!(changed(last, &told("-", &[], &[], &[])).unwrap(), "x = 1\n");
    let first = "[[port]]\nname = 'vm1'\n\n[[tap]]\nname = 'vm1'\n";
    assert_eq!(changed(first, &told("-", &[], &[], &[])).unwrap(), "[[tap]]\nname = 'vm1'\n");
}

/// Where a place in the text cannot be told, or a comment would be lost, nothing is done.
#[test]
fn what_cannot_be_changed_without_loss_is_left() {
    let mac = told("~", &[], &[], &["52:54:00:00:00:0b"]);
    let comments = "[[port]]\nname = 'vm1'\nmac = [\n'52:54:00:00:00:0a', # the first\n]\n";
    assert_eq!(changed(comments, &mac), Err("there are comments among its addresses".to_owned()));
    for other in [
        "port = [{name = 'vm1', socket = '/a'}]\n",
        "socket-path = '/a'\n",
        "[[tap]]\nname='vm1'\n",
    ] {
        assert_eq!(changed(other, &mac), Err("no such table".to_owned()), "{other}");
    }
    assert!(changed("[[port]\n", &mac).is_err());
}

#[test]
fn an_entry_reads_as_a_person_writes_it() {
    let all: Vec<String> = (0..5).map(|n| format!("52:54:00:00:00:0{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let now: &[(&str, &[&str])] = &[
        ("socket", &["/run/a \"b\"\u{7f}"]),
        ("socket-mode", &["0600"]),
        ("socket-group", &["108"]),
        ("queues", &["4"]),
        ("mac", &all[..1]),
    ];
    let entry = edit::entry(&told("+", &[], now, &all[1..]).told);
    let macs: String = all.iter().map(|mac| format!("    \"{mac}\",\n")).collect();
    let wanted = format!(
        "[[port]]\nname = \"vm1\"\nsocket = \"/run/a \\\"b\\\"\\u007f\"\nsocket-mode = \"0600\"\n\
         socket-group = 108\nqueues = 4\nmac = [\n{macs}]\n"
    );
    assert_eq!(entry, wanted);
    assert!(Document::read(&entry).unwrap().find("port", "vm1").is_some());
    for (text, gap) in [("", ""), ("a = 1\n", "\n"), ("a = 1", "\n\n")] {
        assert_eq!(edit::append(text, "x").text, format!("{gap}x"));
    }
}

/// By what a reload would do: whether a file has it, does not have it yet, or has something else.
#[test]
fn what_a_file_has_is_told_by_the_difference() {
    use Standing::{AsBefore, Otherwise, Saved};
    let mtu = |sign: &str, changes: Value| {
        let mut step = json!({"kind": "vm", "name": "vm1", "changes": changes});
        step["sign"] = sign.into();
        step
    };
    let key = |key: &str, from: &str, to: Value| json!({"key": key, "from": from, "to": to});
    let set = || told("~", &[("mtu", &["1500"])], &[("mtu", &["9000"])], &[]);
    let tied = || told("~", &[], &[], &["b"]);
    let (added, deleted) = (|| told("+", &[], &[], &[]), || told("-", &[], &[], &[]));
    let none = Value::Null;
    for (n, (change, step, wanted)) in [
        (set(), none.clone(), Saved),
        (set(), mtu("~", json!([key("mtu", "9000", "1500".into())])), AsBefore),
        (set(), mtu("~", json!([key("mtu", "9000", "1400".into())])), Otherwise),
        (set(), mtu("~", json!([key("queues", "1", "4".into())])), Otherwise),
        (set(), mtu("~", json!([key("flood", "on", none.clone())])), Otherwise),
        (set(), mtu("-", json!([])), Otherwise),
        (tied(), none.clone(), AsBefore),
        (tied(), mtu("~", json!([key("mac", "a", "a b".into())])), Saved),
        (tied(), mtu("~", json!([key("mac", "a", "a c".into())])), Otherwise),
        (tied(), mtu("~", json!([key("mac", "a", "b".into())])), Otherwise),
        (added(), none.clone(), AsBefore),
        (added(), mtu("~", json!([])), Saved),
        (added(), mtu("~", json!([key("mtu", "9000", "1400".into())])), Otherwise),
        (deleted(), none, Saved),
        (deleted(), mtu("+", json!([])), AsBefore),
        (deleted(), mtu("~", json!([])), Otherwise),
    ]
    .into_iter()
    .enumerate()
    {
        let steps: Vec<Step> = match step.is_null() {
            true => Vec::new(),
            false => vec![serde_json::from_value(step).unwrap()],
        };
        assert_eq!(change.standing(&steps), wanted, "{n}: {change:?}");
    }
}
