//! Several files that are one configuration: the named file, and the files of conf.d beside the
//! named file.

use super::*;
use base::limits;

/// A directory of configuration files, gone when the test ends.
struct Etc(PathBuf);

impl Etc {
    fn new(files: &[(&str, &str)]) -> Etc {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vioswitch-etc-{}-{count}", std::process::id());
        let etc = Etc(std::env::temp_dir().join(name));
        std::fs::create_dir_all(etc.0.join("conf.d")).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(etc.0.join(name), text).unwrap());
        etc
    }

    fn named(&self, name: &str) -> Result<Action, UsageError> {
        run(&["--config", self.0.join(name).to_str().unwrap()])
    }

    fn config(&self, name: &str) -> Config {
        match self.named(name) {
            Ok(Action::Run(config)) => config,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the errors, with paths relative to the directory.
    fn errors(&self) -> Vec<String> {
        let error = self.named("main.toml").expect_err("a bad file");
        let here = format!("{}/", self.0.display());
        error.lines.iter().map(|line| line.replace(&here, "")).collect()
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn port(name: &str) -> String {
    format!("[[port]]\nname='{name}'\nsocket='/{name}'\n")
}

#[test]
fn entries_of_all_files_add_up_in_the_order_of_their_names() {
    let etc = Etc::new(&[
        ("main.toml", &port("m")),
        ("conf.d/20-b.toml", &format!("age = 7\n{}", port("b"))),
        ("conf.d/10-a.toml", &format!("{}{}", port("z"), port("a"))),
        ("conf.d/30.toml", "[[tap]]\nname='up'\nifname='t0'\n"),
        ("conf.d/a.toml~", "nonsense"),
        ("conf.d/.b.toml", "nonsense"),
        ("conf.d/README", "nonsense"),
    ]);
    let config = etc.config("main.toml");
    let names: Vec<&str> = config.of(Kind::Port).map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["m", "z", "a", "b"]);
    assert_eq!(
        (config.age_seconds, config.of(Kind::Tap).count(), config.warnings.len()),
        (7, 1, 0)
    );
}

#[test]
fn what_stands_in_two_files_is_an_error_with_both_places() {
    let etc = Etc::new(&[
        ("main.toml", &format!("age = 7\n{}", port("a"))),
        ("conf.d/1.toml", &format!("\nage = 7\n{}mac='{MAC}'\n", port("b"))),
        ("conf.d/2.toml", &format!("{}mac='{MAC}'\n[[port]]\nname='c'\nsocket='/a'", port("b"))),
    ]);
    assert_eq!(
        etc.errors(),
        [
            "conf.d/1.toml:2: 'age' is already given in main.toml:1",
            "conf.d/2.toml:2: name 'b' is already used in conf.d/1.toml:4",
            "conf.d/2.toml:3: socket '/b' is already used in conf.d/1.toml:5",
            &format!("conf.d/2.toml:4: mac '{MAC}' is already used in conf.d/1.toml:6"),
            "conf.d/2.toml:7: socket '/a' is already used in main.toml:4",
        ]
    );
}

#[test]
fn errors_of_all_files_are_told_in_their_order() {
    let etc = Etc::new(&[
        ("main.toml", "poll = 1\nfoo = 2\n"),
        ("conf.d/b.toml", "age = 0\n"),
        ("conf.d/a.toml", "[[port]]\nqueues = 17\n"),
    ]);
    let errors = etc.errors();
    let starts = ["main.toml:1: poll", "main.toml:2: unknown", "conf.d/a.toml:1: name"];
    let more = ["conf.d/a.toml:1: socket", "conf.d/a.toml:2: queues", "conf.d/b.toml:1: age"];
    assert_eq!(errors.len(), 6, "{errors:?}");
    for (error, start) in errors.iter().zip(starts.iter().chain(&more)) {
        assert!(error.starts_with(start), "{errors:?}");
    }
    std::fs::write(etc.0.join("conf.d/a.toml"), "x = \n").unwrap();
    let errors = etc.errors();
    assert!(errors.len() == 1 && errors[0].starts_with("conf.d/a.toml:1: "), "{errors:?}");
}

#[test]
fn a_directory_has_bounds() {
    let etc = Etc::new(&[("main.toml", &port("a"))]);
    std::fs::create_dir(etc.0.join("conf.d/x.toml")).unwrap();
    assert!(etc.errors()[0].ends_with("conf.d/x.toml': not a regular file"), "{:?}", etc.errors());
    std::fs::remove_dir(etc.0.join("conf.d/x.toml")).unwrap();
    let long = "#".repeat(limits::MAX_CONFIG_BYTES as usize);
    (0..4).for_each(|n| std::fs::write(etc.0.join(format!("conf.d/{n}.toml")), &long).unwrap());
    assert!(etc.errors()[0].contains("all files together are longer than 4194304 bytes"));
    (0..4).for_each(|n| std::fs::remove_file(etc.0.join(format!("conf.d/{n}.toml"))).unwrap());
    for n in 0..=limits::MAX_CONFIG_FILES {
        std::fs::write(etc.0.join(format!("conf.d/{n}.toml")), "").unwrap();
    }
    assert!(etc.errors()[0].ends_with("conf.d': more than 2048 files"), "{:?}", etc.errors());
}

#[test]
fn workers_may_be_left_to_the_switch_and_be_more_than_cpus() {
    for (cpus, workers) in [(1, 1), (3, 3), (4, 4), (64, 4)] {
        let machine = Machine { cpus, ..CPUS };
        let args = ["vioswitchd", "--socket-path=/s", "--workers=auto"];
        let Ok(Action::Run(config)) = from_args(args, machine) else { panic!("refused") };
        assert_eq!((config.workers, config.warnings.len()), (workers, 0));
    }
    assert_eq!(good_file(&format!("workers = 'auto'\n{}", port("a")), &[]).workers, 4);
    let config = config(&["--socket-path=/s", "--workers=5"]);
    assert_eq!((config.workers, config.warnings.len()), (5, 1));
    assert!(config.warnings[0].starts_with("5 workers share 4 CPUs"), "{config:?}");
}
