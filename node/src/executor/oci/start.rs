use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    sync::Arc,
};

use camino::Utf8Path;
use drowse_shared::id::SpaceId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::Instant,
};

use super::{
    super::{Card, Error, Result, Vitality},
    bundle::Bundle,
    disk::{self, failed},
    files,
    host::{Host, lives},
    mounts,
    paths::Body,
    step::{Leave, Program, Step},
    stop, templates,
    userns::{self, RANGES},
};

/// Starts a stopped body; ends when the agent has answered.
pub(super) async fn start(host: &Arc<Host>, card: Card) -> Result<()> {
    let id = card.id;
    let look = move |host: &Host| Ok((host.vitality(id)?, host.has_body(id)?));
    let (vitality, leftovers) = host.look("look at the space", look).await?;
    match vitality {
        Vitality::Running => return Ok(()),
        Vitality::Frozen => return Err(Error::Vitality { id, vitality }),
        Vitality::Stopped => {}
    }
    if leftovers {
        stop::stop(host, id, None).await?;
    }
    let started = begin(host, card).await;
    if started.is_err()
        && let Err(error) = stop::stop(host, id, None).await
    {
        tracing::warn!(%id, %error, "what a failed start left could not be cleaned up yet");
    }
    started
}

async fn begin(host: &Arc<Host>, card: Card) -> Result<()> {
    let (id, deadlines) = (card.id, host.deadlines);
    let range = host.ranges.lease(id).ok_or(Error::NoRange(RANGES))?;
    let body = host.paths.body(id);
    let begun = Instant::now();
    let fds =
        host.kernel(id, "prepare the body", deadlines.start, move |host| prepare(host, &card, range)).await?;
    let prepared = begun.elapsed();
    // Not before: making cgroups waits for the lock that this warms.
    let warm = host.cgroups.warm(&host.env);
    let (count, name) = (fds.len().to_string(), id.to_string());
    let (bundle, pid) = (body.bundle(), body.pid());
    let run = [
        "run",
        "--detach",
        "--bundle",
        bundle.as_str(),
        "--pid-file",
        pid.as_str(),
        "--preserve-fds",
        &count,
        &name,
    ];
    host.runtime.call(Program::RunContainer, &run, &body.log(), fds, deadlines.start).await?;
    let launched = begun.elapsed();
    host.kernel(id, "move the agent", deadlines.command, move |host| settle(host, id)).await?;
    drop(warm);
    let moved = begun.elapsed();
    match tokio::time::timeout(deadlines.agent, answers(&body.socket())).await {
        Ok(Ok(())) => {}
        Ok(Err(source)) => {
            return Err(Error::Io { what: "the agent's first answer", path: body.socket(), source });
        }
        Err(_) => return Err(Error::Timeout { what: "the agent's first answer", after: deadlines.agent }),
    }
    let mark = body.started();
    host.kernel(id, "mark the body", deadlines.command, move |host| {
        host.take(Step::MarkStarted, |leave| files::write(leave, &mark, ""))
            .map_err(failed("mark the body", &mark))
    })
    .await?;
    tracing::debug!(%id, ?prepared, ?launched, ?moved, answered = ?begun.elapsed(), "started");
    Ok(())
}

/// Mounts, bundle, cgroups and socket. Answers what the first process inherits: the listener, then
/// the cgroup files it moves by and those it is measured by.
fn prepare(host: &Host, card: &Card, range: u32) -> Result<Vec<OwnedFd>> {
    let id = card.id;
    let digest = &card.template.digest;
    let rootfs = templates::rootfs(&host.paths.templates, digest)
        .ok_or_else(|| Error::TemplateMissing { digest: digest.clone() })?;
    let image = host.paths.disk(id).image();
    if !image.is_file() {
        return Err(Error::DiskMissing { id });
    }
    let body = host.paths.body(id);
    host.take(Step::MakeBody, |leave| files::make_dir(leave, &body.dir, 0o711))
        .map_err(failed("make the body", &body.dir))?;
    // Before anything runs under the range: it stays leased until this directory is gone.
    host.take(Step::LeaseRange, |leave| files::write(leave, &body.range(), &range.to_string()))
        .map_err(failed("lease the range", &body.range()))?;
    let base = userns::base(host.instance.number, range);
    mount(host, &body, &image, &rootfs, base)?;

    host.take(Step::MakeCgroups, |leave| host.cgroups.make(leave, id, &card.spec))
        .map_err(failed("make the cgroups", &body.dir))?;
    let listener = host.take(Step::Listen, |leave| listen(leave, &body));
    let mut fds = vec![listener.map_err(failed("listen", &body.socket()))?];
    let procs = host.cgroups.open_procs(id).map_err(failed("open the cgroups", &body.dir))?;
    fds.extend(procs.into_iter().map(OwnedFd::from));
    let measures = host.cgroups.open_measures(id).map_err(failed("open the cgroups", &body.dir))?;
    fds.extend(measures.map(OwnedFd::from));

    let bundle = Bundle {
        card,
        body: &body,
        base,
        work: host.cgroups.work_path(id),
        agent: &host.agent,
        procs: host.cgroups.count(),
        open_files: host.open_files,
        show_cgroup: host.cgroups.is_single(),
    };
    let config = body.bundle().join("config.json");
    let write = |leave: &Leave| {
        files::make_dir(leave, &body.bundle(), 0o700)?;
        files::write(leave, &config, &bundle.config().to_string())
    };
    host.take(Step::WriteBundle, write).map_err(failed("write the bundle", &config))?;
    Ok(fds)
}

/// Mounts disk, template, root and agents.
fn mount(host: &Host, body: &Body, image: &Utf8Path, rootfs: &Utf8Path, base: u32) -> Result<()> {
    let make_points = |leave: &Leave| {
        let mut points = body.mounts().into_iter();
        points.try_for_each(|target| files::make_dir(leave, &target, 0o711))
    };
    host.take(Step::MakeMountPoints, make_points).map_err(failed("make the mount points", &body.dir))?;
    let map = host.maps.of(base).map_err(failed("make the id map", &body.dir))?;
    let map = std::os::fd::AsFd::as_fd(&*map);
    let device = host.take(Step::BindImage, |leave| mounts::attach(leave, image));
    let device = device.map_err(failed("bind a loop device", image))?;
    host.take(Step::MountDisk, |leave| mounts::ext4(leave, &device, &body.disk(), map))
        .map_err(failed("mount the disk", image))?;
    host.take(Step::MountTemplate, |leave| mounts::template(leave, rootfs, &body.lower(), map))
        .map_err(failed("mount the template", rootfs))?;
    host.take(Step::MountRoot, |leave| mount_root(leave, body))?;
    host.take(Step::MountAgents, |leave| mounts::view(leave, &host.paths.agents(), &body.agents()))
        .map_err(failed("show the agent", &body.agents()))
}

/// Mounts what the space sees. A disk that is full to the last inode is no reason not to start: who else could empty it?
fn mount_root(leave: &Leave, body: &Body) -> Result<()> {
    let mount = || mounts::overlay(leave, &body.lower(), &body.disk(), &body.merged());
    let mounted = match mount() {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            disk::use_spare(leave, &body.disk());
            mount()
        }
        other => other,
    };
    // Not as `failed` does: it is not the node's disk that is full.
    mounted.map_err(|source| Error::Io { what: "mount the root", path: body.merged(), source })?;
    disk::keep_spare(leave, &body.disk());
    Ok(())
}

/// The socket in its host-only directory: nothing of it is mounted inside.
fn listen(leave: &Leave, body: &Body) -> io::Result<OwnedFd> {
    files::make_dir(leave, &body.socket_dir(), 0o700)?;
    Ok(UnixListener::bind(body.socket())?.into())
}

/// After the container is made: pid 1 leaves the workload's cgroup, and the mounts are its alone.
fn settle(host: &Host, id: SpaceId) -> Result<()> {
    let body = host.paths.body(id);
    let gone =
        || Error::Runtime { what: "create the container", says: "its first process has ended".to_owned() };
    let (pid, held) =
        host.first_process(id).map_err(failed("find the first process", &body.dir))?.ok_or_else(gone)?;
    host.take(Step::MoveAgent, |leave| host.cgroups.move_to_agent(leave, id, pid))
        .map_err(failed("move the agent", &body.dir))?;
    if !lives(&held).map_err(failed("look at the first process", &body.dir))? {
        return Err(gone());
    }
    stop::detach(host, &body)
}

/// Asks the agent for its health. The socket listens already, so the answer comes when the agent does.
async fn answers(socket: &Utf8Path) -> io::Result<()> {
    let mut agent = UnixStream::connect(socket).await?;
    agent.write_all(b"GET /health HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").await?;
    let mut head = [0; 12];
    agent.read_exact(&mut head).await?;
    if &head == b"HTTP/1.1 204" {
        return Ok(());
    }
    let says = String::from_utf8_lossy(&head).into_owned();
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it says {says:?}, not 204")))
}
