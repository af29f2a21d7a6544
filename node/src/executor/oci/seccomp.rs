use serde::Deserialize;
use serde_json::{Value, json};

/// Allowed and refused calls by name, after the default profiles of Docker and containers/common (Apache-2.0).
const NAMES: &str = include_str!("seccomp.json");
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// Flags of clone that make namespaces.
const CLONE_NEW: u32 = 0x7E02_0000;
/// Kinds of sockets below this may be made, up to `packet`: a network namespace confines those. Later ones reach past it
/// (vsock leads to the machine's hypervisor) or are seldom used doors into the kernel. One comparison, not a list: for
/// 32-bit programs the library behind the runtime turns each into a rule for `socketcall`, and those would collide.
const SOCKET_FAMILIES_END: u32 = 18;
/// What personality may be asked for: plain, 32-bit addresses, both with the old uname, and the question itself.
const PERSONALITIES: [u32; 5] = [0, 8, 0x2_0000, 0x2_0008, u32::MAX];

#[derive(Deserialize)]
struct Names {
    allow: Vec<String>,
    refuse: Vec<String>,
}

/// The system calls of a space.
///
/// Unknown calls answer ENOSYS, so that newer libraries fall back. Calls that reach other namespaces, mounts or the
/// kernel's own state answer EPERM. `clone3` hides its flags behind a pointer, so it does not exist here;
/// `socketcall` hides the kind of socket likewise, and is refused.
pub(super) fn profile() -> Value {
    // The file is part of this crate and a test reads it.
    let Ok(Names { allow, refuse }) = serde_json::from_str(NAMES) else { return Value::Null };
    let architectures = match std::env::consts::ARCH {
        "x86_64" => json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]),
        "aarch64" => json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
        _ => json!([]),
    };
    let mut rules = vec![
        json!({"names": allow, "action": "SCMP_ACT_ALLOW"}),
        json!({"names": refuse, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}),
        json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": CLONE_NEW, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}),
        json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": SOCKET_FAMILIES_END, "op": "SCMP_CMP_LT"}]}),
        json!({"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM}),
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
    ];
    for wish in PERSONALITIES {
        rules.push(json!({"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [
            {"index": 0, "value": wish, "op": "SCMP_CMP_EQ"}]}));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": architectures,
        "syscalls": rules,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_whole() {
        let names: Names = serde_json::from_str(NAMES).expect("valid");
        for allowed in ["execve", "chroot", "ptrace", "vfork", "setresuid"] {
            assert!(names.allow.iter().any(|n| n == allowed), "{allowed}");
        }
        for filtered in ["socket", "socketcall", "clone", "personality"] {
            assert!(
                !names.allow.iter().any(|n| n == filtered),
                "{filtered} is allowed whatever its arguments"
            );
        }
        for refused in ["mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup"] {
            assert!(names.refuse.iter().any(|n| n == refused), "{refused}");
            assert!(!names.allow.iter().any(|n| n == refused), "{refused}");
        }
        assert_eq!(profile()["defaultErrnoRet"], 38);
    }
}
