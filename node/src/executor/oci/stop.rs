use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use drowse_shared::id::SpaceId;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::Instant,
};

use super::{
    super::{Error, Result},
    disk::failed,
    files,
    host::{Host, hold},
    mounts,
    paths::Body,
    step::{Leave, Program, Step},
};

/// Ends every process and removes all of a body but its disk. Without `grace` nobody is asked first.
///
/// Looks at what is there instead of trusting any record, so it also ends what a crash left half made.
pub(super) async fn stop(host: &Arc<Host>, id: SpaceId, grace: Option<Duration>) -> Result<()> {
    if !host.look("look at the space", move |host| host.has_body(id)).await? {
        // The cgroups may be left, empty; and an image may still be on its way out of the kernel.
        return host.kernel(id, "clean up", host.deadlines.command, move |host| sweep(host, id)).await;
    }
    end(host, id, grace).await?;
    forget(host, id).await?;
    host.kernel(id, "clean up", host.deadlines.command, move |host| sweep(host, id)).await
}

/// Ends the processes.
async fn end(host: &Arc<Host>, id: SpaceId, grace: Option<Duration>) -> Result<()> {
    let kill = host.deadlines.kill;
    let at = move |host: &Host| host.paths.body(id).dir;
    let find = move |host: &Host| {
        // On a version 1 tree a suspended process dies only once it runs again.
        thaw(host, id)?;
        host.first_process(id).map_err(failed("find the first process", &at(host)))
    };
    if let Some((_, first)) = host.kernel(id, "find the first process", kill * 2, find).await? {
        let first = watch(first).map_err(failed("watch the first process", &at(host)))?;
        let asked = match grace {
            Some(grace) => ask(host, Step::Terminate, &first) && ends(&first, grace).await,
            None => false,
        };
        if !asked {
            ask(host, Step::Kill, &first);
            // Its end takes the whole pid namespace with it.
            if !ends(&first, kill).await {
                return Err(Error::Timeout { what: "kill the space", after: kill });
            }
        }
    }
    // A container cut in its making may have no first process on record, only members of its cgroups.
    host.kernel(id, "kill the space", kill * 2, move |host| {
        let done = host
            .take(Step::KillRest, |leave| kill_all(leave, host, id, kill))
            .map_err(failed("kill the space", &at(host)))?;
        if done { Ok(()) } else { Err(Error::Timeout { what: "kill the space", after: kill }) }
    })
    .await
}

/// Thaws, also an empty workload: whoever moves into a suspended cgroup later is suspended there, out of reach of a kill.
fn thaw(host: &Host, id: SpaceId) -> Result<()> {
    match host.take(Step::Thaw, |leave| host.cgroups.set_frozen(leave, id, false, host.deadlines.freeze)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map(drop).map_err(failed("thaw the space", &host.paths.body(id).dir)),
    }
}

fn watch(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(unsafe_code, reason = "tokio cannot know that a descriptor stays what it is")]
    // SAFETY: the value owns its descriptor, and nothing takes it out before the value is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
    Ok(watched?)
}

/// Sends a signal; false when there is nobody to get it.
fn ask(host: &Host, step: Step, process: &AsyncFd<OwnedFd>) -> bool {
    let signal = if step == Step::Terminate { Signal::TERM } else { Signal::KILL };
    host.take(step, |_| pidfd_send_signal(process.get_ref(), signal)).is_ok()
}

async fn ends(process: &AsyncFd<OwnedFd>, within: Duration) -> bool {
    tokio::time::timeout(within, process.readable()).await.is_ok()
}

fn kill_all(_: &Leave, host: &Host, id: SpaceId, within: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_micros(200);
    loop {
        let pids = host.all_pids(id)?;
        if pids.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        for pid in pids {
            // Held first and found in the cgroup again after: never somebody else's.
            if let Some(held) = hold(pid)?
                && host.all_pids(id)?.contains(&pid)
            {
                let _ = pidfd_send_signal(&held, Signal::KILL);
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Makes the runtime forget the container. Nothing of it lives any more.
async fn forget(host: &Arc<Host>, id: SpaceId) -> Result<()> {
    let name = id.to_string();
    let record = host.paths.runtime().join(&name);
    if !record.exists() {
        return Ok(());
    }
    let log = host.paths.last_words(id);
    let delete = |args: Vec<&'static str>| {
        let (name, log) = (name.clone(), log.clone());
        async move {
            let mut all = args;
            all.push(&name);
            host.runtime.call(Program::DeleteContainer, &all, &log, Vec::new(), host.deadlines.command).await
        }
    };
    let mut done = delete(vec!["delete"]).await;
    if matches!(done, Err(Error::Runtime { .. })) {
        done = delete(vec!["delete", "--force"]).await;
    }
    match done {
        // One that hangs was killed with all it had started. Without a process the record is only a directory.
        Err(why @ (Error::Runtime { .. } | Error::Timeout { .. })) => {
            tracing::warn!(%id, error = %why, "the record of the runtime is removed");
            host.kernel(id, "remove the record", host.deadlines.command, move |host| {
                host.take(Step::RemoveRecord, |leave| files::remove_all(leave, &record))
                    .map_err(failed("remove the record", &record))
            })
            .await
        }
        other => other,
    }
}

/// Removes mounts, cgroups and files, and waits until the kernel has let go of the image.
fn sweep(host: &Host, id: SpaceId) -> Result<()> {
    let (body, image) = (host.paths.body(id), host.paths.disk(id).image());
    let within = host.deadlines.command / 2;
    detach(host, &body)?;
    let remove = |leave: &Leave| wait_for(within, || host.cgroups.remove(leave, id));
    let removed = host.take(Step::RemoveCgroups, remove).map_err(failed("remove the cgroups", &body.dir))?;
    let released = wait_for(within, || mounts::is_released(&image)).map_err(failed("release", &image))?;
    if !(removed && released) {
        let what = if removed { "release the disk" } else { "remove the cgroups" };
        return Err(Error::Timeout { what, after: within });
    }
    let remove = |leave: &Leave| {
        files::remove_file(leave, &host.paths.last_words(id))?;
        remove_files(leave, &body)
    };
    host.take(Step::RemoveBody, remove).map_err(failed("remove the body", &body.dir))?;
    host.ranges.free(id);
    Ok(())
}

fn remove_files(leave: &Leave, body: &Body) -> io::Result<()> {
    for target in body.mounts() {
        // Fails on anything still mounted there, before anything in it can be touched.
        files::remove_dir(leave, &target)?;
    }
    files::remove_all(leave, &body.dir)
}

/// Detaches the mounts of a body: they are its container's alone, or gone.
pub(super) fn detach(host: &Host, body: &Body) -> Result<()> {
    for target in body.mounts() {
        host.take(Step::Detach, |leave| mounts::detach(leave, &target)).map_err(failed("detach", &target))?;
    }
    Ok(())
}

fn wait_for(within: Duration, mut done: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_micros(100);
    while !done()? {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    Ok(true)
}
