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
