//! Files of a crate form no circle: of two files at most one uses types of the other, also by way
//! of further files.

use super::{Source, none, sources, words};

/// A file of a crate.
struct File<'s> {
    source: &'s Source,
    /// Names of the crate and of the modules down to the file's module.
    module: Vec<&'s str>,
    /// Types that the file declares for other files.
    types: Vec<&'s str>,
    /// Paths that the file imports or passes on.
    imports: Vec<String>,
    /// Paths that the file uses itself.
    uses: Vec<String>,
}

impl File<'_> {
    fn new(source: &Source) -> Option<File<'_>> {
        let below = source.below_src()?.with_extension("");
        let mut module: Vec<&str> = Vec::new();
        for part in source.below_src()?.iter() {
            let part = part.to_str()?;
            module.push(part.strip_suffix(".rs").unwrap_or(part));
        }
        if below.ends_with("lib") || below.ends_with("mod") {
            module.pop();
        }
        let code = source.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        // The body is the code without its `use`, so that a path that is only passed on is no use.
        let (mut body, mut imports, mut passed) = (code.to_owned(), Vec::new(), Vec::new());
        for at in words(code, "use") {
            let tree = code[at..].split(';').next().unwrap_or_default();
            body.replace_range(at..at + tree.len(), &" ".repeat(tree.len()));
            let before = code[..at].rsplit('\n').next().unwrap_or_default().trim_start();
            let paths = leaves(tree.strip_prefix("use").unwrap_or_default());
            if before.starts_with("pub") { passed.extend(paths) } else { imports.extend(paths) }
        }
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let paths = body.split(|c| !is_path(c)).filter(|path| path.contains("::"));
        let mut uses: Vec<String> = paths.map(str::to_owned).chain(imports.clone()).collect();
        let is_used = |path: &&String| {
            path.rsplit("::").next().is_some_and(|name| words(&body, name).next().is_some())
        };
        uses.extend(passed.iter().filter(is_used).cloned());
        imports.append(&mut passed);
        Some(File { source, module, types: declared(code), imports, uses })
    }
}

/// Returns the types that code declares for other files.
fn declared(code: &str) -> Vec<&str> {
    let name = |line: &'_ str| -> Option<usize> {
        let rest = line.strip_prefix("pub")?.split_once(' ')?.1;
        let kinds = ["struct ", "enum ", "trait ", "type "];
        let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        Some(line.len() - name.len())
    };
    let names = code.lines().filter_map(|line| Some(&line[name(line)?..]));
    names.filter_map(|name| name.split(|c: char| !c.is_alphanumeric()).next()).collect()
}

/// Returns the paths of a `use`: `a::{b, c::{D, E}}` has `a::b`, `a::c::D` and `a::c::E`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return if path.is_empty() { Vec::new() } else { vec![path.to_owned()] };
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    let inner = parts.iter().flat_map(|part| leaves(part));
    inner.map(|leaf| format!("{}{leaf}", prefix.trim())).collect()
}

/// Returns the number of the file that declares the type to which a path leads from a file; none
/// if the path leads to no type of the file's crate.
fn resolve(files: &[File], from: usize, path: &str, most: usize) -> Option<usize> {
    let most = most.checked_sub(1)?;
    let file_of = |module: &[&str]| files.iter().position(|file| file.module == module);
    let mut module = files[from].module.clone();
    let mut parts = path.split("::").map(str::trim).peekable();
    match *parts.peek()? {
        "crate" => module.truncate(1),
        "super" => {}
        "self" => {}
        first => {
            module.push(first);
            file_of(&module)?;
        }
    }
    if ["crate", "self"].contains(parts.peek()?) || parts.peek() == module.last() {
        parts.next();
    }
    while parts.next_if_eq(&"super").is_some() {
        module.pop();
    }
    let name = loop {
        let part = parts.next()?;
        module.push(part);
        if file_of(&module).is_none() {
            module.pop();
            break part;
        }
    };
    let file = file_of(&module)?;
    if files[file].types.contains(&name) {
        return Some(file);
    }
    let passed =
        files[file].imports.iter().filter(|import| import.rsplit("::").next() == Some(name));
    let mut passed = passed.filter_map(|import| resolve(files, file, import, most));
    passed.next()
}

/// Returns the uses of files that form a circle.
fn circles(files: &[File]) -> Vec<String> {
    let used = |from: usize| {
        let found = files[from].uses.iter().filter_map(move |path| resolve(files, from, path, 8));
        found.filter(move |to| *to != from).collect::<Vec<_>>()
    };
    let used: Vec<Vec<usize>> = (0..files.len()).map(used).collect();
    // A file that uses none of the files that are left, or that none of them uses, is in no circle.
    let mut left: Vec<usize> = (0..files.len()).collect();
    let is_in_a_circle = |file: usize, left: &[usize]| {
        used[file].iter().any(|other| left.contains(other))
            && left.iter().any(|other| used[*other].contains(&file))
    };
    while let Some(at) = left.iter().position(|file| !is_in_a_circle(*file, &left)) {
        left.remove(at);
    }
    let path = |file: usize| files[file].source.path.display();
    let of = |from: &usize| {
        let to = used[*from].iter().filter(|to| left.contains(to));
        to.map(|to| format!("{} uses {}", path(*from), path(*to))).collect::<Vec<_>>()
    };
    left.iter().flat_map(of).collect()
}

#[test]
fn files_of_a_crate_form_no_circle() {
    let sources = sources("src");
    let (mut complaints, mut uses) = (Vec::new(), 0);
    for member in ["api", "base", "ctl", "daemon", "datapath", "switch", "sys"] {
        let is_here = |source: &&Source| {
            let path = source.below_src().is_some_and(|path| path.starts_with(member));
            path && !source.is_test()
        };
        let files = sources.iter().filter(is_here).filter_map(File::new);
        let files: Vec<File> = files.collect();
        uses += files.iter().map(|file| file.uses.len()).sum::<usize>();
        complaints.extend(circles(&files));
    }
    assert!(uses > 1000, "only {uses} uses found: the scan is broken");
    complaints.sort();
    complaints.dedup();
    none(complaints);
}

/// The scan itself: files that use each other's types are found, also through an import that a
/// third file passes on.
#[test]
fn a_circle_is_found() {
    let source = |path: &str, code: &str| Source {
        path: path.into(),
        text: code.to_owned(),
        code: code.to_owned(),
    };
    let files = |last: &'static str| {
        [
            source("src/x/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            source("src/x/a.rs", "use super::b::{self, B};\npub struct A(B);\n"),
            source("src/x/b.rs", last),
        ]
    };
    let found = |sources: &[Source]| {
        let files: Vec<File> = sources.iter().filter_map(File::new).collect();
        circles(&files)
    };
    let circle = ["src/x/a.rs uses src/x/b.rs", "src/x/b.rs uses src/x/a.rs"];
    let through = files("pub struct B;\nfn f(_: &crate::A) {}\n");
    assert!(circle.iter().all(|line| found(&through).contains(&(*line).to_owned())));
    assert_eq!(found(&files("use other::A;\npub struct B;\n")), Vec::<String>::new());
    assert_eq!(leaves("a::{b, c::{D, E}}"), ["a::b", "a::c::D", "a::c::E"]);
}
