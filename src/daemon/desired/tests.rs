//! Tests the configuration, added ports and overrides beside each other.

use super::*;
use api::config::Value;

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn settings(name: &str, keys: &[(&str, &str)]) -> Settings {
    let word = |(key, word): &(&str, &str)| (key.to_string(), Value::Word(word.to_string()));
    let socket = format!("/run/{name}");
    let has_socket = keys.iter().any(|(key, _)| *key == "socket");
    let own = [("name", name), ("socket", socket.as_str())];
    let own = own.iter().filter(|(key, _)| *key == "name" || !has_socket);
    Settings::parse(Kind::Port, own.chain(keys).map(word).collect()).unwrap()
}

fn entry(name: &str, keys: &[(&str, &str)], origin: Origin) -> Entry {
    Entry::new(settings(name, keys), origin)
}

/// Returns the ports that a reload of this configuration wants.
fn configured(desired: &Desired, all: &[(&str, &[(&str, &str)])]) -> Desired {
    let entries =
        all.iter().map(|(name, keys)| ((*name).to_owned(), entry(name, keys, Origin::Config)));
    let mut desired = Desired { configured: entries.collect(), ..desired.clone() };
    desired.build();
    desired
}

fn mtu(desired: &Desired, name: &str) -> Option<u16> {
    desired.get(name).and_then(|entry| entry.settings.mtu)
}

fn names(desired: &Desired) -> Vec<&str> {
    desired.entries().keys().map(String::as_str).collect()
}

fn why(desired: &Desired) -> Vec<String> {
    desired.unused().map(|unused| format!("{}: {}", unused.name, unused.why)).collect()
}

#[test]
fn an_address_is_one_ports_and_among_its_settings() {
    let mut desired = configured(&Desired::default(), &[("a", &[]), ("b", &[])]);
    desired.assign(mac(1), "a").unwrap();
    desired.assign(mac(1), "a").unwrap();
    assert!(desired.assign(mac(1), "b").is_err() && desired.assign(mac(3), "c").is_err());
    assert!(desired.check(&entry("b", &[("mac", "02:00:00:00:00:01")], Origin::Config)).is_err());
    assert_eq!(
        (desired.owners(mac(1)), desired.overridden("a")),
        (vec!["a"], vec!["mac".to_owned()])
    );
    assert!(desired.unassign(mac(1), "a") && !desired.unassign(mac(1), "a"));
    desired.forget_the_configured();
    assert_eq!((desired.owners(mac(1)), desired.kept()), (vec![], Kept::default()));
    (0..MAX_STATIC_MACS).for_each(|n| desired.assign(mac(n as u8), "a").unwrap());
    assert!(matches!(desired.assign(mac(200), "a"), Err(NotAssigned::Many(_))));
}

/// A setting that a client changes at a port of the configuration stays through other
/// configurations; the port's other settings are the new configuration's.
#[test]
fn an_override_stays_until_it_is_reset() {
    let mut desired = configured(&Desired::default(), &[("a", &[("mtu", "1500")]), ("b", &[])]);
    desired.set(settings("a", &[("mtu", "1400")])).unwrap();
    desired.set(settings("a", &[("mtu", "1400"), ("label", "x")])).unwrap();
    desired.set(settings("a", &[("mtu", "1400")])).unwrap();
    let mut after = configured(&desired, &[("a", &[("mtu", "9000"), ("queues", "2")])]);
    assert_eq!((mtu(&after, "a"), after.get("a").unwrap().settings.queues), (Some(1400), 2));
    assert_eq!(after.back_to(&desired).get("a"), desired.get("a"));
    assert!(after.reset("a") && !after.reset("a"));
    assert_eq!((mtu(&after, "a"), after.kept()), (Some(9000), Kept::default()));
    // Without its port the override has no effect, and is not lost.
    let gone = configured(&desired, &[("b", &[])]);
    assert_eq!(why(&gone), ["a: the configuration has no port 'a'"]);
    let again = configured(&gone, &[("a", &[]), ("b", &[])]);
    assert_eq!((mtu(&again, "a"), why(&again)), (Some(1400), vec![]));
    // An override beside a key that it does not go with has no effect either, and is not lost.
    desired.set(settings("a", &[("mtu", "1500"), ("vlan", "10")])).unwrap();
    let trunk = configured(&desired, &[("a", &[("trunk", "20")])]);
    assert!(why(&trunk)[0].starts_with("a: vlan does not go with trunk"), "{:?}", why(&trunk));
    assert_eq!(trunk.overridden("a"), Vec::<String>::new());
}

/// A port of the configuration that a client deletes stays away; a port of that name that the
/// client adds is the client's.
#[test]
fn a_deletion_stays_until_it_is_reset() {
    let desired = configured(&Desired::default(), &[("a", &[]), ("b", &[])]);
    let mut deleted = desired.clone();
    deleted.delete("a").unwrap();
    let after = configured(&deleted, &[("a", &[("mtu", "1400")]), ("b", &[])]);
    assert_eq!((names(&after), why(&after)), (vec!["b"], vec![]));
    let mut added = after.clone();
    added.add(entry("a", &[("mtu", "1300")], Origin::Kept)).unwrap();
    let mut added = configured(&added, &[("a", &[]), ("b", &[])]);
    assert_eq!((mtu(&added, "a"), added.origin("a")), (Some(1300), Origin::Kept));
    added.delete("a").unwrap();
    assert_eq!(added.kept(), deleted.kept());
    assert!(added.reset("a"));
    assert_eq!((added.origin("a"), added.kept()), (Origin::Config, Kept::default()));
    // A socket of the name may come and go.
    let mut plugged = deleted.clone();
    plugged.add(entry("a", &[("mode", "client")], Origin::Plug(7))).unwrap();
    assert_eq!(plugged.kept(), deleted.kept());
    plugged.delete("a").unwrap();
    assert_eq!(plugged.kept(), deleted.kept());
}

#[test]
fn the_configuration_wins_over_what_was_added() {
    let mut desired = configured(&Desired::default(), &[("f", &[])]);
    for (name, keys) in
        [("x", &[("socket", "/run/x1")][..]), ("y", &[("mac", "02:00:00:00:00:01")])]
    {
        desired.add(entry(name, keys, Origin::Kept)).unwrap();
    }
    desired.add(entry("z", &[], Origin::Transient)).unwrap();
    desired.add(entry("p", &[("mode", "client")], Origin::Plug(7))).unwrap();
    let kept = desired.kept();
    let all = [
        ("f", &[("socket", "/run/x1")][..]),
        ("g", &[("mac", "02:00:00:00:00:01")]),
        ("p", &[]),
        ("z", &[("mtu", "1400")]),
    ];
    let mut after = configured(&desired, &all);
    assert_eq!(names(&after), ["f", "g", "p", "z"]);
    assert!(after.entries().values().all(|entry| entry.origin == Origin::Config));
    assert_eq!(
        why(&after),
        [
            "x: socket /run/x1 is already used by f: see vioswitchctl port show f",
            "y: mac 02:00:00:00:00:01 is already used by g: see vioswitchctl port show g",
        ]
    );
    // A reload refuses an entry that would disconnect a port by its socket or address.
    assert_eq!(
        after.refusals(&desired),
        [
            "port f: socket /run/x1 is already used by x: see vioswitchctl port show x",
            "port g: mac 02:00:00:00:00:01 is already used by y: see vioswitchctl port show y",
        ]
    );
    assert_eq!(after.kept(), kept, "nothing of it is lost");
    let back = after.back_to(&desired);
    assert_eq!(names(&back), ["f", "x", "y", "z"], "a socket of the plug directory is found again");
    assert!(after.reset("x") && after.reset("z"), "also what goes with the process");
    assert_eq!((names(&after), after.kept().added.len()), (vec!["f", "g", "p", "z"], 1));
    assert!(!desired.reset("y"), "what is in force is deleted, and not reset");
    assert_eq!(desired.kept(), kept);
}

/// A reload that would end a change of a client, such as `admin=down`, is refused.
#[test]
fn a_reload_does_not_end_a_change_in_silence() {
    let mac = ("mac", "02:00:00:00:00:01");
    let mut desired = configured(&Desired::default(), &[("a", &[]), ("b", &[])]);
    desired.set(settings("a", &[mac, ("admin", "down")])).unwrap();
    let after = configured(&desired, &[("a", &[]), ("b", &[mac])]);
    assert_eq!(
        after.refusals(&desired),
        ["port b: mac 02:00:00:00:00:01 is already used by a: see vioswitchctl port show a"]
    );
    let none = Vec::<String>::new();
    assert_eq!(configured(&desired, &[("b", &[mac])]).refusals(&desired), none, "a is gone");
    assert_eq!(
        configured(&after, &[("a", &[]), ("b", &[mac])]).refusals(&after),
        none,
        "as before"
    );
}

/// Settings that the configuration has with equal values are not kept beside it.
#[test]
fn what_the_configuration_has_is_not_kept_beside_it() {
    let mut desired = configured(&Desired::default(), &[("a", &[]), ("b", &[]), ("c", &[])]);
    desired.set(settings("a", &[("mtu", "1400"), ("label", "x")])).unwrap();
    desired.delete("c").unwrap();
    desired.add(entry("r", &[("mtu", "1300")], Origin::Kept)).unwrap();
    let all = [("a", &[("mtu", "1400")][..]), ("b", &[]), ("r", &[("mtu", "1300")])];
    let mut after = configured(&desired, &all);
    assert_eq!(why(&after), ["c: the configuration has no port 'c'"]);
    assert_eq!(after.origin("r"), Origin::Config);
    after.forget_the_configured();
    let Kept { added, overrides, .. } = after.kept();
    assert!(added.is_empty());
    let label = [("label".to_owned(), vec!["x".to_owned()])];
    let expected = [("a", Override::Keys(label.into())), ("c", Override::Deleted)];
    assert_eq!(overrides, expected.map(|(name, change)| (name.to_owned(), change)).into());
    let again = configured(&after, &[("c", &[])]);
    assert_eq!((names(&again), why(&again).len()), (vec![], 1), "a deleted port stays away");
}

const M: &str = "02:00:00:00:00:01";

/// A change takes what a change at a port of a later name frees.
#[test]
fn the_names_of_changed_ports_have_no_order() {
    let all = [("a", &[][..]), ("b", &[]), ("z", &[("mac", M)])];
    let mut desired = configured(&Desired::default(), &all);
    desired.set(settings("z", &[])).unwrap();
    desired.set(settings("a", &[("mac", M), ("admin", "down")])).unwrap();
    let mut after = configured(&desired, &all);
    assert_eq!((why(&after), after.get("a")), (vec![], desired.get("a")));
    assert!(after.reset("z"));
    assert_eq!(why(&after).len(), 1, "{:?}", why(&after));
}

/// A change of one key leaves keys in the file that have no effect, or that an unconfirmed
/// configuration has too.
#[test]
fn a_change_leaves_the_keys_of_earlier_changes() {
    let before = [("a", &[("mtu", "1500")][..])];
    let mut desired = configured(&Desired::default(), &before);
    desired.set(settings("a", &[("mtu", "1400")])).unwrap();
    let mut unconfirmed = configured(&desired, &[("a", &[("mtu", "1400")])]);
    unconfirmed.set(settings("a", &[("mtu", "1400"), ("label", "x")])).unwrap();
    assert_eq!(mtu(&configured(&unconfirmed, &before), "a"), Some(1400));
    desired.set(settings("a", &[("mtu", "1400"), ("vlan", "10")])).unwrap();
    let mut trunk = configured(&desired, &[("a", &[("trunk", "20")])]);
    trunk.set(settings("a", &[("trunk", "20"), ("label", "x")])).unwrap();
    assert_eq!(why(&trunk).len(), 1, "{:?}", why(&trunk));
    let after = configured(&trunk, &before);
    let expected = settings("a", &[("mtu", "1400"), ("vlan", "10"), ("label", "x")]);
    assert_eq!(after.get("a").map(|entry| &entry.settings), Some(&expected));
}

fn with_file(text: &str) -> Desired {
    let Kept { added, overrides, unread } = Kept::read(text).unwrap();
    let entry = |settings| Entry::new(settings, Origin::Kept);
    let added = added.into_iter().map(|(name, settings)| (name, entry(settings))).collect();
    Desired { added, overrides, unread, ..Desired::default() }
}

/// A table of a later version that is about no port may have the name of one.
#[test]
fn what_happens_to_a_port_leaves_an_unknown_table() {
    let mut desired = with_file("[[gauge]]\nname = \"a\"\n\n[[tap]]\nname = \"a\"\nmode = 1\n");
    assert_eq!(desired.unread().len(), 2);
    desired.add(entry("a", &[], Origin::Kept)).unwrap();
    assert_eq!(desired.unread().len(), 1, "the name is one port's");
    desired.delete("a").unwrap();
    assert_eq!(desired.unread().len(), 1);
    let mut desired = configured(&desired, &[("a", &[])]);
    desired.set(settings("a", &[("mtu", "1400")])).unwrap();
    assert!(desired.reset("a"));
    assert_eq!(desired.unread().len(), 1);
    // If there is nothing else of the name the table is meant.
    assert!(desired.reset("a") && !desired.reset("a"));
    assert_eq!(desired.unread(), []);
}

#[test]
fn keys_of_a_later_version_keep_their_table() {
    let text = "[[port]]\nname = \"a\"\nsocket = \"/run/a\"\nspeed = 1\n\n\
                [[override]]\nname = \"b\"\nmtu = 1400\nspeed = 2\n\n\
                [[override]]\nname = \"c\"\nspeed = 3\n\n[[override]]\nname = \"d\"\nmtu = 1300\n";
    let all = [("a", &[][..]), ("b", &[("mtu", "1400")]), ("c", &[]), ("d", &[("mtu", "1300")])];
    let mut desired = configured(&with_file(text), &all);
    desired.forget_the_configured();
    let text = desired.kept().text();
    assert_eq!(Kept::read(&text).unwrap().unread, desired.unread(), "{text}");
    assert_eq!((desired.unread().len(), text.contains("\"d\"")), (3, false), "{text}");
}

/// The configuration's settings of a port take what another port has by now.
#[test]
fn a_reset_that_displaces_another_port_is_found() {
    let all = [("f", &[("mac", M)][..]), ("g", &[])];
    let mut desired = configured(&Desired::default(), &all);
    desired.set(settings("f", &[])).unwrap();
    let lost = |desired: &Desired| {
        let mut after = desired.clone();
        assert!(after.reset("f"));
        desired.check_others(&after, "f").map_err(|why| why.to_string())
    };
    assert_eq!(lost(&desired), Ok(()));
    let (mut by_port, mut by_change) = (desired.clone(), desired);
    by_port.add(entry("k1", &[("mac", M)], Origin::Kept)).unwrap();
    by_change.set(settings("g", &[("mac", M)])).unwrap();
    let text =
        |name| format!("mac {M} is already used by {name}: see vioswitchctl port show {name}");
    assert_eq!((lost(&by_port), lost(&by_change)), (Err(text("k1")), Err(text("g"))));
    // One that has no effect anyway is no reason.
    by_port.delete("k1").unwrap();
    by_port.add(entry("k2", &[("mtu", "1400")], Origin::Kept)).unwrap();
    let named = configured(&by_port, &[all[0], all[1], ("k2", &[])]);
    assert_eq!((why(&named).len(), lost(&named)), (1, Ok(())));
}
