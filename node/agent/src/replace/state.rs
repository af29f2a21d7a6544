use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::metrics::Told;
use crate::process::kept::{KeptProcess, KeptStream};

/// What this agent writes and reads. One that cannot read it says so in its check and never takes over.
const FORMAT: u32 = 1;

/// What one agent leaves to the next: everything else is open in the kernel or can be lost.
#[derive(Serialize, Deserialize)]
pub(crate) struct State<O> {
    format: u32,
    /// The listening socket.
    pub(crate) listener: RawFd,
    /// `cgroup.procs` files of `work`.
    pub(crate) procs: Vec<RawFd>,
    /// What tells the use of the space.
    #[serde(default)]
    pub(crate) measured: Option<Told>,
    /// Commands, running and remembered, the oldest record first.
    pub(crate) processes: Vec<KeptProcess<O>>,
    /// Clients that watch one.
    pub(crate) streams: Vec<KeptStream>,
    /// Pipes that outlived their commands.
    pub(crate) lingering: Vec<RawFd>,
    /// Connections on which no request is under way.
    pub(crate) connections: Vec<RawFd>,
    /// Whoever asked for the replacement and waits for the answer.
    pub(crate) asker: RawFd,
}

impl<O> State<O> {
    /// Of this agent.
    pub(crate) fn new(listener: RawFd, procs: Vec<RawFd>, asker: RawFd) -> Self {
        Self {
            format: FORMAT,
            listener,
            procs,
            measured: None,
            processes: Vec::new(),
            streams: Vec::new(),
            lingering: Vec::new(),
            connections: Vec::new(),
            asker,
        }
    }

    /// Every descriptor that is named in it.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let fixed = [self.listener, self.asker].into_iter().chain(self.procs.iter().copied());
        let processes = self.processes.iter().flat_map(KeptProcess::descriptors);
        let streams = self.streams.iter().map(|stream| stream.connection);
        let measured = self.measured.map(Told::descriptors).into_iter().flatten();
        let plain = self.lingering.iter().chain(&self.connections).copied().chain(measured);
        fixed.chain(processes).chain(streams).chain(plain).collect()
    }
}

impl<O: Serialize> State<O> {
    /// Into a memory file.
    pub(crate) fn write(&self) -> io::Result<OwnedFd> {
        let memory = File::from(rustix::fs::memfd_create(c"drowse-state", MemfdFlags::CLOEXEC)?);
        let mut writer = BufWriter::new(memory);
        serde_json::to_writer(&mut writer, self)?;
        writer.flush()?;
        Ok(writer.into_inner().map_err(io::IntoInnerError::into_error)?.into())
    }
}

impl<O: for<'a> Deserialize<'a>> State<O> {
    /// From a memory file.
    pub(crate) fn read(memory: OwnedFd) -> io::Result<Self> {
        let mut memory = File::from(memory);
        memory.rewind()?;
        let state: Self = serde_json::from_reader(io::BufReader::new(memory))?;
        if state.format != FORMAT {
            return Err(io::Error::other(format!("the state has format {}, not {FORMAT}", state.format)));
        }
        Ok(state)
    }
}
