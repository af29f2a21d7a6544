use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::api::spaces::Template;
use serde::Deserialize;

#[derive(Deserialize)]
struct Manifest {
    digest: String,
}

/// The template people call `name`; `None` when there is none.
pub(super) fn find(templates: &Utf8Path, name: &str) -> io::Result<Option<Template>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Ok(None);
    }
    let text = match std::fs::read_to_string(templates.join(name).join("manifest.json")) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let Manifest { digest } = serde_json::from_str(&text)?;
    Ok(Some(Template { name: name.to_owned(), digest }))
}

/// The root file system of a digest; `None` when it is not here.
pub(super) fn rootfs(templates: &Utf8Path, digest: &str) -> Option<Utf8PathBuf> {
    let hex = digest.strip_prefix("blake3:")?;
    let known = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let dir = templates.join(hex);
    // The manifest is there only once the whole template is.
    (known && dir.join("manifest.json").is_file()).then(|| dir.join("rootfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_digests_and_never_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let templates = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let hex = "ab".repeat(32);
        fs_err::create_dir_all(templates.join(&hex).join("rootfs")).expect("made");
        let digest = format!("blake3:{hex}");
        assert_eq!(rootfs(templates, &digest), None, "without a manifest it is half made");
        fs_err::write(
            templates.join(&hex).join("manifest.json"),
            format!(r#"{{"digest":"{digest}","name":"x"}}"#),
        )
        .expect("written");
        fs_err::os::unix::fs::symlink(&hex, templates.join("base")).expect("linked");
        assert_eq!(
            find(templates, "base").expect("read"),
            Some(Template { name: "base".into(), digest: digest.clone() })
        );
        for other in ["", "..", "../x", ".lock", "other", "a/b"] {
            assert_eq!(find(templates, other).expect("read"), None, "{other}");
        }
        assert_eq!(rootfs(templates, &digest), Some(templates.join(&hex).join("rootfs")));
        assert_eq!(rootfs(templates, "blake3:../../etc"), None);
    }
}
