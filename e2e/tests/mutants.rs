//! The mutants still fit the code: `e2e/mutants/run` puts each into it and says which test notices.

use std::{collections::BTreeSet, fs, path::Path};

/// One place of a mutant: the file, the text that is there once, and what it becomes.
fn places(text: &str) -> Vec<(&str, &str, &str)> {
    let mut places = Vec::new();
    for place in text.split("\n=== ").skip(1) {
        let (file, rest) = place.split_once("\n--- was\n").expect("a place has its text");
        let (was, is) = rest.split_once("\n--- is").expect("a place has its replacement");
        places.push((file.trim(), was, is.trim_start_matches('\n').trim_end_matches('\n')));
    }
    places
}

#[test]
fn every_mutant_fits_the_code_at_exactly_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut said = BTreeSet::new();
    for entry in fs::read_dir(root.join("e2e/mutants")).expect("the folder of mutants") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_none_or(|kind| kind != "txt") {
            continue;
        }
        let (name, text) = (path.display(), fs::read_to_string(&path).expect("mutants are text"));
        let mut head = text.lines();
        let sentence = head.next().unwrap_or_default().to_owned();
        assert!(sentence.ends_with('.'), "{name} begins with a sentence");
        assert!(said.insert(sentence), "{name} says what another one says");
        let by = head.next().and_then(|line| line.strip_prefix("by ")).unwrap_or_default();
        let way = by.split(' ').next().unwrap_or_default();
        assert!(
            matches!(way, "sim" | "gateway" | "node" | "shared"),
            "{name}: {by:?} is no place to look for it"
        );
        let places = places(&text);
        assert!(!places.is_empty(), "{name} changes nothing");
        for (file, was, is) in places {
            assert_ne!(was, is, "{name} changes nothing in {file}");
            let code =
                fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
            let times = code.matches(was).count();
            assert_eq!(
                times, 1,
                "{name}: {file} has its text {times} times, not once; write the mutant anew"
            );
        }
    }
    assert!(said.len() >= 20, "only {} mutants are left", said.len());
}
