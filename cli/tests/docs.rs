//! What the documentation promises about itself.

use std::{fs, path::Path};

use drowse_shared::api::{
    Code,
    verbs::{PAGES, Verb},
};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_error_code_is_explained_with_its_status() {
    let page = page("docs/ERRORS.md");
    for code in Code::ALL {
        let row = format!("| `{code}` | {} |", code.status().as_u16());
        assert!(page.contains(&row), "docs/ERRORS.md has no row that begins {row:?}");
    }
}

#[test]
fn every_link_to_a_file_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs/guide.md",
        "docs/operate.md",
        "docs/api.md",
        "docs/GUARANTEES.md",
        "docs/TESTING.md",
    ];
    for name in pages {
        let text = page(name);
        let folder = root.join(name).parent().expect("a page lies in a folder").to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            assert!(folder.join(file).exists(), "{name} links to {file}, which is not there");
        }
    }
}

#[test]
fn every_verb_is_in_the_api_page() {
    let page = page("docs/api.md");
    let pages = PAGES.iter().map(|page| page.trim_start_matches('/'));
    for verb in Verb::ALL.iter().map(|verb| verb.as_str()).chain(pages) {
        assert!(page.contains(verb), "docs/api.md does not say what {verb} does");
    }
}

/// Every source of a test, in one text.
fn tests_of(folder: &Path, out: &mut String) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            tests_of(&path, out);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            out.push_str(&fs::read_to_string(&path).expect("sources are text"));
        }
    }
}

#[test]
fn every_test_that_a_guarantee_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = String::new();
    for part in ["shared", "gateway", "node", "cli", "e2e"] {
        for folder in ["src", "tests"].map(|folder| root.join(part).join(folder)) {
            if folder.is_dir() {
                tests_of(&folder, &mut sources);
            }
        }
    }
    tests_of(&root.join("node/agent/tests"), &mut sources);
    // What machines are needed for has a program of its own.
    for part in fs::read_dir(root.join("e2e/machines/checks")).expect("checks") {
        let part = part.expect("readable").path();
        if part.extension().is_some_and(|it| it == "py") {
            sources.push_str(&fs::read_to_string(part).expect("text").replace("\ndef ", "\nfn "));
        }
    }
    let page = page("docs/GUARANTEES.md");
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.contains("held by")).collect();
    assert!(rows.len() > 30, "docs/GUARANTEES.md has only {} promises", rows.len());
    for row in rows {
        let held_by = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let names: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || held_by.contains("the simulation"), "nothing holds: {row}");
        for name in names {
            assert!(
                sources.contains(&format!("fn {name}(")),
                "docs/GUARANTEES.md names {name}, which is no test"
            );
        }
    }
}
