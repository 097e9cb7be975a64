//! Completion on the command line: by the shells themselves.

use super::*;

/// Runs a shell's script with vioswitchctl in its path; what it prints. None if there is no such
/// shell.
fn shell(lab: &Lab, shell: &str, script: &str) -> Option<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_vioswitchctl")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let completions = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/completions");
    let mut command = Command::new(shell);
    command.arg("-c").arg(script).env("PATH", path).env("COMPLETIONS", completions);
    command.env("HOME", lab.dir.path()).env("CONTROL", &lab.path);
    let output = command.output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The names are those of the ports that there are now.
#[test]
fn bash_completes_commands_keys_and_ports() {
    let lab = Lab::new(2, &[]);
    lab.done(&["port", "add", "database"]);
    lab.done(&["mirror", "add", "watch", "from=p0", "to=p1"]);
    for (words, found) in [
        (r#"--control "$CONTROL" mirror del w"#, "watch"),
        (r#"--control "$CONTROL" mirror del d"#, ""),
        ("po", "port"),
        ("port sh", "show"),
        (r#"--control "$CONTROL" port show da"#, "database"),
        (r#"--control = "$CONTROL" port show p"#, "p0 p1"),
        (r#"--control "$CONTROL" port del x"#, ""),
        (r#"--control "$CONTROL" port rm da"#, "database"),
        ("fdb re", "remove"),
        ("port add x que", "queues="),
        (r#"--control "$CONTROL" fdb show --port d"#, "database"),
    ] {
        let script = format!(
            r#". "$COMPLETIONS/vioswitchctl.bash"; compopt() {{ :; }}
               COMP_WORDS=(vioswitchctl {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
               _vioswitchctl; echo "${{COMPREPLY[*]}}""#
        );
        let told = shell(&lab, "bash", &script).expect("bash");
        assert_eq!(told.trim_end(), found, "{words}");
    }
    let registered = shell(&lab, "bash", ". $COMPLETIONS/vioswitchctl.bash; complete -p");
    assert!(registered.expect("bash").contains("-F _vioswitchctl vioswitchctl"));
    lab.d.stop();
}

#[test]
fn fish_completes_ports() {
    let lab = Lab::new(1, &[]);
    let line = format!("vioswitchctl --control {} port show p", lab.path.display());
    let script = format!("source $COMPLETIONS/vioswitchctl.fish; complete -C '{line}'");
    let told = shell(&lab, "fish", &script);
    lab.d.stop();
    match told {
        Some(told) => assert_eq!(told, "p0\n"),
        None => testkit::skip("there is no fish"),
    }
}

#[test]
fn zsh_completes_commands_keys_and_ports() {
    let lab = Lab::new(2, &[]);
    for (words, found) in [
        ("po", "port"),
        ("port sh", "show"),
        (r#"--control "$CONTROL" port show p"#, "p0 p1"),
        ("port add x que", "queues="),
    ] {
        // The builtin serves the line editor alone; behind -- stands what it is given.
        let script = format!(
            r#"fpath=("$COMPLETIONS" $fpath); autoload -Uz _vioswitchctl
               compadd() {{ shift ${{argv[(i)--]}}; print -rn -- "$@"; }}
               words=(vioswitchctl {words}); CURRENT=$#words; _vioswitchctl"#
        );
        match shell(&lab, "zsh", &script) {
            Some(told) => assert_eq!(told, found, "{words}"),
            None => testkit::skip("there is no zsh"),
        }
    }
    lab.d.stop();
}

/// Those of the daemon are made from its options: each shell takes them.
#[test]
fn shells_take_the_daemons_completions() {
    let lab = Lab::new(1, &[]);
    let bash = r#". "$COMPLETIONS/vioswitchd.bash"; COMP_WORDS=(vioswitchd --contr)
                  COMP_CWORD=1; _vioswitchd vioswitchd --contr vioswitchd; echo "${COMPREPLY[*]}""#;
    let fish = "source $COMPLETIONS/vioswitchd.fish; complete -C 'vioswitchd --contr' | cut -f 1";
    let zsh = r#"fpath=("$COMPLETIONS" $fpath); autoload -Uz _vioswitchd
                 _arguments() { print -r -- ${(M)${@%%[=\[]*}:#--contr*}; }; _vioswitchd"#;
    for (name, script) in [("bash", bash), ("fish", fish), ("zsh", zsh)] {
        let Some(told) = shell(&lab, name, script) else {
            testkit::skip(&format!("there is no {name}"));
            continue;
        };
        let mut told: Vec<&str> = told.split_whitespace().collect();
        told.sort_unstable();
        assert_eq!(told, ["--control", "--control-admin-group", "--control-group"], "{name}");
    }
    lab.d.stop();
}
