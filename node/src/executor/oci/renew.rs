use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::SpaceId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{
    super::{Error, Renewal, Result, Vitality},
    bundle::AGENTS,
    disk::failed,
    files, find,
    host::{Host, lives},
    paths::names_in,
    step::Step,
};

/// The longest answer of an agent that is to be replaced.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
const UNAVAILABLE: u16 = 503;

/// A file, whatever its names: the kernel's word on which program a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    device: u64,
    inode: u64,
}

fn program(path: impl AsRef<std::path::Path>) -> io::Result<Program> {
    let found = std::fs::metadata(path)?;
    Ok(Program { device: found.dev(), inode: found.ino() })
}

/// What the first process of a body runs; `None` when there is none.
fn agent_of(host: &Host, id: SpaceId) -> io::Result<Option<Program>> {
    let Some((pid, held)) = host.first_process(id)? else { return Ok(None) };
    let found = program(format!("/proc/{pid}/exe"))?;
    // Else it may be the program of whoever has that pid now.
    Ok(lives(&held)?.then_some(found))
}

fn own(host: &Host) -> io::Result<Program> {
    program(host.paths.agents().join(&host.agent))
}

/// Whether the first process of a body is the agent of another build. Where nobody can say, it is left alone.
pub(super) fn is_old(host: &Host, id: SpaceId) -> bool {
    let look = || Ok(agent_of(host, id)?.is_some_and(|agent| own(host).is_ok_and(|own| own != agent)));
    look().unwrap_or_else(|error: io::Error| {
        tracing::warn!(%id, %error, "nobody can say which agent a space runs; it is left as it is");
        false
    })
}

/// Has the agent become this daemon's own. The workload must run: a launcher that moved into a frozen cgroup would stand
/// still half made.
pub(super) fn renew(host: &Host, id: SpaceId, within: Duration) -> Result<Renewal> {
    let body = host.paths.body(id);
    match host.vitality(id)? {
        Vitality::Running => {}
        vitality => return Err(Error::Vitality { id, vitality }),
    }
    let at = |what| failed(what, &body.dir);
    let own = own(host).map_err(at("look at the agent"))?;
    if agent_of(host, id).map_err(at("look at the agent"))? == Some(own) {
        return Ok(Renewal::Current);
    }
    let inside = Utf8Path::new(AGENTS).join(&host.agent);
    let renewed = host.take(Step::RenewAgent, |_| {
        // So that what it answers is heard before nobody waits any more.
        let said = ask(&body.socket(), &inside, within - within / 4);
        // An answer may be lost; which program runs is not.
        match (agent_of(host, id), said) {
            (Ok(Some(now)), _) if now == own => Ok(()),
            (Err(why), _) | (Ok(_), Err(why)) => Err(Err(at("replace the agent")(why))),
            (Ok(_), Ok((UNAVAILABLE, says))) => Err(Ok(Renewal::Busy(says))),
            (Ok(_), Ok((_, says))) => Err(Ok(Renewal::Refused(says))),
        }
    });
    renewed.map_or_else(|stays| stays, |()| Ok(Renewal::Renewed))
}

/// Asks an agent to become the program at `path`, a path inside. Answers the status and what was said.
fn ask(socket: &Utf8Path, path: &Utf8Path, within: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + within;
    let mut agent = connect(socket)?;
    let body = json!({ "path": path }).to_string();
    let head = "POST /replace HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-type: application/json";
    agent.set_write_timeout(Some(within))?;
    agent.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while answer.len() as u64 <= ANSWER_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        // Zero would mean no limit.
        agent.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match agent.read(&mut piece)? {
            0 => break,
            got => answer.extend_from_slice(&piece[..got]),
        }
    }
    read(&answer).ok_or_else(|| {
        let text = String::from_utf8_lossy(&answer).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("it answers {text:?}"))
    })
}

/// Connects, or fails at once: a queue that is full is that of an agent which takes nothing any more.
fn connect(socket: &Utf8Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let agent = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&agent, &SocketAddrUnix::new(socket.as_str())?)?;
    let agent = UnixStream::from(agent);
    agent.set_nonblocking(false)?;
    Ok(agent)
}

fn read(answer: &[u8]) -> Option<(u16, String)> {
    #[derive(Deserialize)]
    struct Said {
        #[serde(default)]
        message: String,
    }
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let said = serde_json::from_str(body).unwrap_or_else(|_| Said { message: body.to_owned() });
    Some((status, said.message))
}

/// Removes agents that no body runs. While it cannot be said of one what it runs, all stay.
pub(super) fn clear(host: &Host) -> Result<()> {
    let agents = host.paths.agents();
    let at = |what| failed(what, &agents);
    let names = names_in(&agents).map_err(at("list"))?;
    let ours = host.agent.iter().next().unwrap_or_default();
    let others: Vec<Utf8PathBuf> =
        names.iter().filter(|name| *name != ours).map(|name| agents.join(name)).collect();
    if others.is_empty() {
        return Ok(());
    }
    let mut used = BTreeSet::new();
    for id in find::bodies(host)? {
        used.extend(agent_of(host, id).map_err(at("look at what runs"))?);
    }
    let binary = host.agent.file_name().unwrap_or_default();
    for other in others {
        if program(other.join(binary)).is_ok_and(|agent| used.contains(&agent)) {
            continue;
        }
        host.take(Step::RemoveAgent, |leave| files::remove_all(leave, &other))
            .map_err(failed("remove", &other))?;
        tracing::info!(agent = other.file_name(), "removed an agent that no space runs");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood_whatever_it_says() {
        let said = |text: &str| read(text.as_bytes());
        let refusal =
            "HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\n{\"code\":\"unavailable\",\"message\":\"busy\"}";
        assert_eq!(said(refusal), Some((503, "busy".to_owned())));
        assert_eq!(said("HTTP/1.1 404 Not Found\r\n\r\nno"), Some((404, "no".to_owned())));
        assert_eq!(said("HTTP/1.1 200 OK\r\n\r\n{\"version\":\"1\"}"), Some((200, String::new())));
        for nonsense in ["", "HTTP/1.1", "HTTP/1.1 200 OK\r\n", "x\r\n\r\n"] {
            assert_eq!(said(nonsense), None, "{nonsense:?}");
        }
    }
}
