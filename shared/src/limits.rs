use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More descriptors than a daemon can use; some programs it starts walk through all that are possible.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Raises the limit of open files to what the machine allows. A daemon holds up to four for each request under way; shells and
/// units usually start it with 1,024, which one busy space would use up for all.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(OPEN_FILES_MAX).min(OPEN_FILES_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files stays low");
        }
    }
}

/// How many files this process may have open.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many files this process may ever have open.
pub fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_is_raised_to_what_is_allowed() {
        let limit = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(512), maximum: limit.maximum };
        setrlimit(Resource::Nofile, low).expect("anybody may lower it");
        raise_open_files();
        let raised = getrlimit(Resource::Nofile);
        assert_eq!(raised.current, Some(limit.maximum.unwrap_or(u64::MAX).min(OPEN_FILES_MAX)));
        assert_eq!(raised.maximum, limit.maximum);
    }
}
