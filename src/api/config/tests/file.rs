//! Each error of a file is refused with its line.

use super::*;
use base::limits;

/// Returns the errors of a bad file as `LINE: message`; each error must begin with the file's path.
fn file_errors(content: impl AsRef<[u8]>) -> Vec<String> {
    let file = Scratch::new(content);
    let error = run(&["--config", file.path()]).expect_err("a bad file");
    let prefix = format!("{}:", file.path());
    let strip = |line: &String| line.strip_prefix(&prefix).expect(line).to_owned();
    error.lines.iter().map(strip).collect()
}

/// Expects one error, in the given line, that begins with `expected`.
fn assert_file_error(content: &str, expected: &str) {
    let errors = file_errors(content);
    assert_eq!(errors.len(), 1, "{content}: {errors:?}");
    assert!(errors[0].starts_with(expected), "{content}: {errors:?}");
}

#[test]
fn filters_and_groups_that_are_named_exist_and_fit() {
    let told = |content: &str| {
        let error = with_file(content, &[]).expect_err(content);
        assert_eq!(error.lines.len(), 1, "{error:?}");
        error.lines[0].clone()
    };
    let port = "[[port]]\nname = 'a'\nsocket = '/a'\nfilter = 'web,base'\n";
    let web = "[[filter]]\nname = 'web'\nrules = ['in accept tcp from group:dns']\n";
    let text = told(&format!("{port}{web}[[group]]\nname = 'dns'\n"));
    assert!(text.contains("there is no filter 'base'"), "{text}");
    let text = told(web);
    assert!(text.contains("there is no group 'dns'"), "{text}");
    let text = told("plug = '/run'\n[template.plug]\nfilter = 'base'\n");
    assert!(text.contains("there is no filter 'base'"), "{text}");
    let rules = "'in accept tcp',".repeat(limits::MAX_FILTER_RULES);
    let filter = |n: usize| format!("[[filter]]\nname = 'f{n}'\nrules = [{rules}]\n");
    let all = (0..5).map(filter).collect::<String>();
    let port =
        |names: &str| format!("{all}[[port]]\nname = 'a'\nsocket = '/a'\nfilter = '{names}'\n");
    let text = told(&port("f0,f1,f2,f3,f4"));
    assert!(text.contains("filter 'f0,f1,f2,f3,f4': too many rules"), "{text}");
    good_file(&port("f0,f1,f2,f3"), &[]);
}

#[test]
fn each_error_of_a_file_has_its_line() {
    let content = "\
workers = 999
poll = 'yes'
age = 0
foo = 1

[[port]]
name = 'a'
socket = '/x'
mode = 'sever'
socket-mode = '0999'
socket-group = 'no such'
queues = 17
mac = ['01:00:00:00:00:00',
  '52:54:00:00:00:01',
  'zz']

[[port]]
name = 'a'
socket = '/./x'
mac = '52:54:00:00:00:01'
bogus = 1

[[port]]

[[tap]]
name = 'up'
ifname = 'way-too-long-name'
";
    let expected = [
        "1: workers must be auto or a number from 1 to 256, not 999",
        "2: poll must be true or false, not a string",
        "3: age must be a number from 1 to 1000000, not 0",
        "4: unknown key 'foo'",
        "9: mode must be server or client, not 'sever'",
        "10: socket-mode must be octal",
        "11: socket-group 'no such' does not exist",
        "12: queues must be a number from 1 to 16, not 17",
        "13: mac '01:00:00:00:00:00' is a group address",
        "15: mac 'zz': not a MAC address",
        "18: name 'a' is already used in line 7 of the file",
        "19: socket '/./x' is already used in line 8 of the file",
        "20: mac '52:54:00:00:00:01' is already used in line 14 of the file",
        "21: unknown key 'bogus'",
        "23: name is missing",
        "23: socket is missing",
        "27: ifname 'way-too-long-name' must have 1 to 15 bytes",
    ];
    let errors = file_errors(content);
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error} instead of {expected}");
    }
}

#[test]
fn wrong_types_in_a_file() {
    let port = "[[port]]\nname='a'\nsocket='/a'\n";
    let cases = [
        ("workers='2'\n", "1: workers must be auto or a number from 1 to 256, not a string"),
        ("workers=1.5\n", "1: workers must be auto or a number from 1 to 256, not a float"),
        ("workers=-1\n", "1: workers must be auto or a number from 1 to 256, not -1"),
        (
            "workers=99999999999999999999\n",
            "1: workers must be auto or a number from 1 to 256, not an integer",
        ),
        (
            "latency=true\n",
            "1: latency must be normal, low or microseconds from 1 to 1000, not a boolean",
        ),
        ("age=1979-05-27\n", "1: age must be a number from 1 to 1000000, not a date"),
        ("cpus=true\n", "1: cpus must be a string, not a boolean"),
        ("cpus=[0, 1]\n", "1: cpus must be a string: write cpus = \"0,2-3\""),
        ("cpus=-2\n", "1: cpus must be CPU numbers and ranges"),
        ("cpus='0,1'\n", "1: cpus '0,1': CPU 1 is not one this process may use"),
        ("poll=1\n", "1: poll must be true or false, not a number"),
        ("control=true\n", "1: control must be a string, not a boolean"),
        ("[control]\n", "1: control must be a string, not a table"),
        ("\nport='x'\n", "2: 'port' is a list of tables, each begun with [[port]]"),
        ("[port]\nname='a'\n", "1: 'port' is a list of tables, each begun with [[port]]"),
        ("tap=[1]\n", "1: 'tap' is a list of tables, each begun with [[tap]]"),
        ("[[port]]\nname=1\nsocket='/a'\n", "2: name must be a string, not a number"),
        ("[[port]]\nname='a'\nsocket=['/a']\n", "3: socket must be a string, not a list"),
        ("[[port]]\nname='a'\nsocket=\"/a\\u0000\"\n", "3: socket '/a\\u{0}' has unprintable"),
        ("fd=1000000\n", "1: fd 1000000 is not an open socket"),
        ("fd='3'\n", "1: fd must be a number from 0 to 2147483647, not a string"),
    ];
    for (content, expected) in cases {
        assert_file_error(content, expected);
    }
    let cases = [
        ("mac=1", "4: mac must be a string, not a number"),
        ("mac=[\n'52:54:00:00:00:01',\n7]", "6: mac must be a string, not a number"),
        ("socket-mode=660", "4: socket-mode must be octal digits in a string"),
        ("socket-group=true", "4: socket-group must be a string, not a boolean"),
        ("queues='1'", "4: queues must be a number from 1 to 16, not a string"),
        ("mtu='1500'", "4: mtu must be a number from 68 to 65535, not a string"),
        ("mtu=67", "4: mtu must be a number from 68 to 65535, not 67"),
        ("offload=false", "4: offload is not true or false: write offload = \"off\""),
        ("offload=true", "4: offload is not true or false: write offload = \"on\""),
        ("offload='tso'", "4: offload must be on, send, csum or off, not 'tso'"),
        ("mode='client'\nsocket-group=0", "5: socket-group does not go with mode=client"),
        ("socket_mode='0660'", "4: unknown key 'socket_mode': write socket-mode = \"0660\""),
    ];
    for (line, expected) in cases {
        assert_file_error(&format!("{port}{line}\n"), expected);
    }
}

/// Each common mistake has a message with the right text.
#[test]
fn errors_say_what_to_write_instead() {
    let port = "[[port]]\nname='a'\nsocket='/a'\n";
    let cases = [
        (
            format!("{port}socket_group='kvm'"),
            "4: unknown key 'socket_group': ",
            "write socket-group = \"kvm\"",
        ),
        (format!("{port}Macs='x'"), "4: unknown key 'Macs': ", "write mac = \"x\""),
        ("[[ports]]\nname='a'".to_owned(), "1: unknown key 'ports'", ": write [[port]]"),
        ("[[taps]]\nname='up'".to_owned(), "1: unknown key 'taps'", ": write [[tap]]"),
        (
            format!("{port}socket-mode=0660 # who may"),
            "4: a number does not begin with 0, and permissions are a string",
            ": write socket-mode = \"0660\"",
        ),
        ("\nworkers = 1,\n".to_owned(), "2: a line ends without a comma", ": leave it out"),
        (format!("{port}mac = \"x\",\n"), "4: a line ends without a comma", ": leave it out"),
        ("workers =\n".to_owned(), "1: 'workers' has no value: ", ", or leave the line out"),
        ("\nage = # later\n".to_owned(), "2: 'age' has no value: write age = VALUE", "line out"),
        ("workers\n".to_owned(), "1: no = behind 'workers': ", "write workers = VALUE"),
        ("workers: 2\n".to_owned(), "1: no = behind 'workers': ", "write workers = VALUE"),
        (
            format!("{port}socket-group = kvm\n"),
            "4: a string stands between quotes: ",
            "write socket-group = \"kvm\"",
        ),
        ("[[port]\nname='a'\n".to_owned(), "1: a table begins with [[port]]", ": write that"),
        ("[[ports]]\nname='a'\n".to_owned(), "1: unknown key 'ports'", ": write [[port]]"),
        (format!("{port}tag = 10\n"), "4: unknown key 'tag', did you mean vlan = 10? ", "keys"),
        ("{\"port\": [\n{\"name\": \"a\"}]}\n".to_owned(), "1: this is JSON", "vm1.sock\""),
        (
            "[[port]]\nname='a'\nsocket='~vm/vm1.sock'".to_owned(),
            "3: socket '~vm/vm1.sock': ~ is not expanded",
            "write the whole path, from / on",
        ),
    ];
    for (content, start, end) in cases {
        let errors = file_errors(&content);
        assert_eq!(errors.len(), 1, "{content}: {errors:?}");
        assert!(errors[0].starts_with(start) && errors[0].ends_with(end), "{content}: {errors:?}");
    }
}

#[test]
fn what_is_said_of_a_line_does_not_hide_what_the_parser_says_of_others() {
    let errors = file_errors("workers = 1,\nage = 07\nname = 'a\n");
    assert_eq!(errors.len(), 3, "{errors:?}");
    for (error, start) in errors.iter().zip(["1: a line ends", "2: a number does", "3: "]) {
        assert!(error.starts_with(start), "{errors:?}");
    }
}

#[test]
fn syntax_errors_have_lines_too() {
    let cases = [
        ("workers = 1\nworkers = 2\n", "2: "),
        ("\n\n= 3\n", "3: "),
        ("[[port]]\nname = 'a\nsocket = '/a'\n", "2: "),
    ];
    for (content, expected) in cases {
        let errors = file_errors(content);
        assert!(errors[0].starts_with(expected), "{content}: {errors:?}");
    }
    let several = file_errors("a = \nb = \"x\n[[port]\nname='a'\n");
    let lines: Vec<&str> = several.iter().filter_map(|e| e.split(':').next()).collect();
    assert_eq!(lines, ["1", "2", "3"], "{several:?}");
}

#[test]
fn files_that_cannot_be_read() {
    assert!(complaint(&["--config=/no/such"]).starts_with("--config '/no/such': No such file"));
    for path in ["/dev/null", "/", "/dev/zero"] {
        let line = complaint(&["--config", path]);
        assert_eq!(line, format!("--config '{path}': not a regular file"));
    }
    assert_eq!(file_errors(b"age = 1\n\xff\n"), ["2: not UTF-8"]);
    let long = Scratch::new("#".repeat(limits::MAX_CONFIG_BYTES as usize + 1));
    assert!(complaint(&["--config", long.path()]).ends_with("longer than 1048576 bytes"));
}

#[test]
fn a_flood_of_errors_is_cut_and_counted() {
    let content: String = (0..10_000).map(|i| format!("bogus{i:05} = 1\n")).collect();
    let file = Scratch::new(content);
    let error = run(&["--config", file.path()]).unwrap_err();
    assert_eq!(error.lines.len(), limits::MAX_CONFIG_ERRORS + 1);
    let last = &error.lines[limits::MAX_CONFIG_ERRORS];
    assert_eq!(*last, format!("{}: 9900 more errors", file.path()));
    assert!(error.lines[0].contains(":1: unknown key 'bogus00000'"), "{}", error.lines[0]);
}

#[test]
fn hostile_text_does_not_panic_or_take_long() {
    let deep = format!("a = {}", "[".repeat(500_000));
    let tables = format!("{}x = 1", "a.".repeat(300_000));
    for content in [deep, tables, "[[port]]\n".repeat(100_000), "\"".repeat(1 << 20)] {
        assert!(!file_errors(content).is_empty());
    }
}

#[test]
fn a_template_takes_what_several_ports_may_have() {
    let plug = "plug = '/run/plug/'\n[template.plug]\n";
    let file = Scratch::new(format!("{plug}queues = 4\nmtu = 1400\nflood = 'off'\n"));
    let Ok(Action::Run(config)) = run(&["--config", file.path()]) else { panic!("refused") };
    assert_eq!(config.plug.as_deref(), Some("/run/plug/".as_ref()));
    let port = config.template.plugged("vm1", "/run/plug/vm1".into());
    assert_eq!((port.name.as_str(), port.queues, port.mtu), ("vm1", 4, Some(1400)));
    assert_eq!(port.endpoint(), Some(Endpoint::Client { path: "/run/plug/vm1".into() }));
    for key in ["name = 'a'", "socket = '/a'", "mac = ['02:00:00:00:00:01']", "mode = 'client'"] {
        let name = key.split(' ').next().unwrap();
        assert_file_error(&format!("{plug}{key}"), &format!("3: '{name}' is a key of "));
    }
    assert_file_error(&format!("{plug}queues = 17"), "3: queues must be a number from 1 to 16");
    let wrong = "3: worker must be auto or below workers (2), not 2";
    let many = Scratch::new(format!("workers = 2\n{plug}worker = 2"));
    let lines = run(&["--config", many.path()]).expect_err("too many").lines;
    assert!(lines[0].ends_with(&format!("{}:{wrong}", many.path())), "{lines:?}");
    assert_file_error("[template.port]", "1: unknown template 'port': write [template.plug]");
    assert_file_error("template = 1", "1: 'template' is a table of tables");
    assert_file_error("plug = ''", "1: plug is empty");
    assert_file_error("plug = '~/plug'", "1: plug '~/plug': ~ is not expanded");
    // The command line's directory, and the file's template.
    let args = ["--config", file.path(), "--plug", "/elsewhere"];
    let Ok(Action::Run(config)) = run(&args) else { panic!("refused") };
    assert_eq!((config.plug, config.template.mtu), (Some("/elsewhere".into()), Some(1400)));
}
