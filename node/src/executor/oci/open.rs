use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    sync::Arc,
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{id::SpaceId, seams::Env};
use rustix::{mount::FsOpenFlags, process::Resource};
use tokio::time::Instant;

use super::{
    super::Vitality,
    OciConfig,
    cgroup::Cgroups,
    disk, find,
    host::{Host, Parts},
    instance, mounts,
    paths::Paths,
    runtime::{self, Runtime},
    step::{Leave, Program, Step, Steps},
    stop,
    userns::{self, MapCache},
};

/// The longest a Unix socket's path may be, with its end.
const SOCKET_PATH_BYTES_MAX: usize = 108;
/// What comes after the run directory in a socket's path.
const SOCKET_PATH_TAIL_BYTES: usize = "/15/0190f0c2a4b87c3d9e0f112233445566/sock/agent".len() + 1;
/// How long half-made bodies of an earlier life may hold up the boot.
const SWEEP: Duration = Duration::from_secs(20);

/// How long a workload may take to run again.
const RESUMED: Duration = Duration::from_secs(1);

/// How long a daemon of the same ledger may take to die.
const DYING: Duration = Duration::from_secs(3);

/// Why the executor cannot work on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not root.
    #[error("containers, mounts and cgroups need root; run the node as root")]
    NotRoot,
    /// A program is missing or broken.
    #[error("cannot run {program}: install {package}{hint}")]
    Program {
        /// Which.
        program: Utf8PathBuf,
        /// Where it comes from.
        package: &'static str,
        /// Which setting names it.
        hint: &'static str,
        /// Why.
        #[source]
        source: super::super::Error,
    },
    /// Controllers are missing.
    #[error(
        "the cgroup controllers {0} are not available; enable them on the kernel command line or in the slice"
    )]
    Controllers(String),
    /// The kernel or a file system lacks something.
    #[error("{what}")]
    Kernel {
        /// What is lacking, and what to do.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A path cannot serve.
    #[error("{path} cannot be used: {why}")]
    Path {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        why: String,
    },
    /// A file could not be used.
    #[error("cannot {what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No instance number.
    #[error("no instance number")]
    Instance(#[from] instance::Error),
    /// What exists could not be listed.
    #[error("cannot see what exists")]
    Look(#[source] super::super::Error),
}

fn io_at(what: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// Checks the machine and opens the executor on it.
pub(super) async fn open(env: Env, config: OciConfig) -> Result<Arc<Host>, Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let (deadlines, program) = (config.deadlines, config.runtime.clone());
    let prepare = env.blocking("open the executor", {
        let env = env.clone();
        move || prepare(env, config)
    });
    let failed =
        || Error::Kernel { what: "the executor's own thread failed".into(), source: io::Error::other("") };
    let parts = prepare.await.unwrap_or_else(|| Err(failed()))?;
    let log = parts.paths.run.join("check.log");
    let runtime =
        |source| Error::Program { program, package: "runc", hint: ", or set DROWSE_RUNTIME", source };
    parts
        .runtime
        .call(Program::Check, &["--version"], &log, Vec::new(), deadlines.command)
        .await
        .map_err(runtime)?;
    let mkfs =
        |source| Error::Program { program: "mkfs.ext4".into(), package: "e2fsprogs", hint: "", source };
    runtime::run(&parts.steps, Program::Check, "mkfs.ext4", &["-V"], &log, Vec::new(), deadlines.command)
        .await
        .map_err(mkfs)?;
    let host = Arc::new(Host::new(parts));
    sweep(&host).await?;
    Ok(host)
}

fn prepare(env: Env, config: OciConfig) -> Result<Parts, Error> {
    let OciConfig { runtime, state, run, templates, agent, cgroup_parent, ledger_id, deadlines, milestones } =
        config;
    let steps = Steps::new(milestones);
    check_run_path(&run)?;
    let state = absolute(&state)?;
    let templates = absolute(&templates)?;
    let cgroups = Cgroups::find(String::new()).map_err(io_at("find", "/sys/fs/cgroup".into()))?;
    let missing = cgroups.missing();
    if !missing.is_empty() {
        return Err(Error::Controllers(missing.join(", ")));
    }
    make_dir(&run, 0o711)?;
    let instance =
        steps.take(Step::TakeInstance, |_| instance::take(&run, &cgroup_parent, ledger_id, DYING))?;
    let number = instance.number;
    let paths = Paths { run: run.join(number.to_string()), state, templates };
    make_dir(&paths.run, 0o711)?;
    make_dir(&paths.runtime(), 0o700)?;
    make_dir(&paths.spaces(), 0o700)?;
    make_dir(&paths.agents(), 0o711)?;
    check_crossing(&paths.run)?;
    if !paths.templates.exists() {
        make_dir(&paths.templates, 0o755)?;
    }
    let maps = MapCache::default();
    check_kernel(&paths, &maps, number)?;
    let agent = install(&steps, &paths.agents(), &agent)?;
    let cgroups =
        Cgroups::find(format!("{cgroup_parent}/{number}")).map_err(io_at("find", "/sys/fs/cgroup".into()))?;
    let runtime = Runtime { program: runtime, root: paths.runtime(), steps: steps.clone() };
    let open_files = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    Ok(Parts { env, paths, cgroups, runtime, instance, maps, agent, deadlines, open_files, steps })
}

/// The run directory is part of socket paths and overlay options.
fn check_run_path(run: &Utf8Path) -> Result<(), Error> {
    let refuse = |why: &str| Err(Error::Path { path: run.to_owned(), why: why.to_owned() });
    if !run.is_absolute() {
        return refuse("it must be absolute");
    }
    if run.as_str().len() + SOCKET_PATH_TAIL_BYTES > SOCKET_PATH_BYTES_MAX {
        return refuse("it is too long for the sockets below it; choose a shorter run directory");
    }
    if run.as_str().contains([',', ':', '\\']) {
        return refuse("it must not contain a comma, colon or backslash");
    }
    Ok(())
}

fn absolute(path: &Utf8Path) -> Result<Utf8PathBuf, Error> {
    camino::absolute_utf8(path).map_err(io_at("resolve", path))
}

fn make_dir(dir: &Utf8Path, mode: u32) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, Permissions::from_mode(mode))
    };
    make().map_err(io_at("make the directory", dir))
}

/// The container's first process looks its root up as a user who is nobody on the host.
fn check_crossing(run: &Utf8Path) -> Result<(), Error> {
    for dir in run.ancestors() {
        let mode = std::fs::metadata(dir).map_err(io_at("look at", dir))?.permissions().mode();
        if mode & 0o001 == 0 {
            let why =
                "the users of spaces cannot cross it; chmod o+x, or choose another run directory".to_owned();
            return Err(Error::Path { path: dir.to_owned(), why });
        }
    }
    Ok(())
}

fn check_kernel(paths: &Paths, maps: &MapCache, number: u32) -> Result<(), Error> {
    let lacks = |what: String| move |source| Error::Kernel { what, source };
    let map = maps
        .of(userns::base(number, 0))
        .map_err(lacks("the kernel makes no user namespaces; set user.max_user_namespaces above 0".into()))?;
    mounts::can_map(&paths.templates, map.as_fd()).map_err(lacks(format!(
        "the file system of {} cannot be mounted with mapped owners; use ext4, xfs or btrfs on Linux 5.19 or later",
        paths.templates
    )))?;
    rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| {
        lacks("the kernel has no overlayfs; load the overlay module".into())(error.into())
    })?;
    std::fs::metadata("/dev/loop-control")
        .map_err(lacks("there are no loop devices; load the loop module".into()))?;
    Ok(())
}

/// Puts the agent where every space can execute and no space can read it: it is then never dumpable inside.
fn install(steps: &Steps, agents: &Utf8Path, binary: &Utf8Path) -> Result<Utf8PathBuf, Error> {
    let bytes = std::fs::read(binary).map_err(io_at("read the agent", binary))?;
    let digest = blake3::hash(&bytes).to_hex();
    let version = agents.join(&digest[..16]);
    let installed = version.join("drowse-agent");
    // After a loss of power the file may be there without its content.
    if !std::fs::read(&installed).is_ok_and(|there| there == bytes) {
        make_dir(&version, 0o711)?;
        let temporary = version.join("new");
        let write = |_: &Leave| -> io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&bytes)?;
            file.set_permissions(Permissions::from_mode(0o711))?;
            file.sync_all()?;
            std::fs::rename(&temporary, &installed)
        };
        steps.take(Step::InstallAgent, write).map_err(io_at("install the agent", &installed))?;
    }
    Ok(Utf8PathBuf::from(&digest[..16]).join("drowse-agent"))
}

/// Removes what is this instance's own, unless bodies are left: then it is found again by its ledger.
pub(super) fn leave(host: &Host) -> super::Result<bool> {
    let run = &host.paths.run;
    if !find::bodies(host)?.is_empty() {
        return Ok(false);
    }
    host.cgroups.remove_parents();
    let remove = || -> io::Result<()> {
        std::fs::remove_dir_all(run)?;
        host.instance.forget()?;
        match run.parent().map(std::fs::remove_dir) {
            // Others still use it.
            Some(Err(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Some(done) => done,
            None => Ok(()),
        }
    };
    remove().map_err(disk::failed("remove", run))?;
    Ok(true)
}

/// Notes the leases of bodies that go on, takes back a freeze that was cut, and removes what is left of bodies that never
/// came to answer or died.
async fn sweep(host: &Arc<Host>) -> Result<(), Error> {
    let look = |host: &Host| {
        let mut dead = Vec::new();
        for id in find::bodies(host)? {
            let body = host.paths.body(id);
            let range = std::fs::read_to_string(body.range()).ok().and_then(|text| text.parse().ok());
            if let Some(range) = range {
                host.ranges.note(range, id);
            }
            match host.vitality(id)? {
                Vitality::Stopped => dead.push(id),
                Vitality::Frozen => {}
                Vitality::Running => resume(host, id),
            }
        }
        Ok(dead)
    };
    let dead = host.look("list what exists", look).await.map_err(Error::Look)?;
    let deadline = Instant::now() + SWEEP;
    for id in dead {
        match tokio::time::timeout_at(deadline, stop::stop(host, id, None)).await {
            Ok(Ok(())) => tracing::info!(%id, "removed what was left of a body"),
            Ok(Err(error)) => tracing::warn!(%id, %error, "what was left of a body stays for its next start"),
            Err(_) => tracing::warn!(%id, "what was left of a body stays for its next start: no time"),
        }
    }
    Ok(())
}

/// A workload that was told to freeze and is not frozen yet would be so one moment after it was seen running.
fn resume(host: &Host, id: SpaceId) {
    let resumed = match host.cgroups.is_told_to_freeze(id) {
        Ok(true) => host.take(Step::Thaw, |leave| host.cgroups.set_frozen(leave, id, false, RESUMED)),
        other => other,
    };
    match resumed {
        Ok(true) => tracing::info!(%id, "took back a freeze that was cut"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%id, %error, "a freeze that was cut could not be taken back"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::milestone::unwatched;

    #[test]
    fn an_agent_that_lies_there_without_its_content_is_installed_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let binary = dir.join("binary");
        std::fs::write(&binary, "an agent").expect("written");
        let steps = Steps::new(unwatched());
        let agent = dir.join(install(&steps, dir, &binary).expect("installed"));
        std::fs::write(&agent, "").expect("ours");
        install(&steps, dir, &binary).expect("installed again");
        assert_eq!(std::fs::read_to_string(&agent).expect("there"), "an agent");
        let mode = std::fs::metadata(&agent).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o711, "everybody may execute and nobody may read it");
    }
}
