use std::{
    fs::File,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use drowse_shared::{id::SpaceId, seams::BoxIo};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::net::TcpSocket;

use super::host::{Host, lives};

/// Connects to a port of the space's own loopback, over IPv4 or else IPv6.
///
/// Only the socket is made inside the network namespace; it stays there for life and is connected from outside. So this
/// trusts nothing inside and hands nothing in.
pub(super) async fn dial(host: &Arc<Host>, id: SpaceId, port: u16) -> io::Result<BoxIo> {
    let within = host.deadlines.dial;
    let connect = async {
        let v4 = open(host, id, AddressFamily::INET).await?;
        match v4.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await {
            Ok(stream) => Ok(Box::new(stream) as BoxIo),
            Err(refused) => {
                let v6 = open(host, id, AddressFamily::INET6).await?;
                let stream = v6.connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await;
                // The first answer is the one people expect.
                stream.map(|stream| Box::new(stream) as BoxIo).map_err(|_| refused)
            }
        }
    };
    tokio::time::timeout(within, connect).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("port {port} did not answer within {within:?}")))
    })
}

async fn open(host: &Arc<Host>, id: SpaceId, family: AddressFamily) -> io::Result<TcpSocket> {
    let worker = host.clone();
    let made = host.env.blocking("open a socket inside", move || {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("space {id} does not run"));
        let (pid, held) = worker.first_process(id)?.ok_or_else(gone)?;
        let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
        // Else it may be the network of whoever has that pid now.
        if !lives(&held)? {
            return Err(gone());
        }
        inside(namespace, family)
    });
    let socket =
        made.await.unwrap_or_else(|| Err(io::Error::other("the thread that opens the socket failed")))?;
    Ok(TcpSocket::from_std_stream(socket.into()))
}

/// Makes a socket in a network namespace, on a thread that ends with it: no other work ever runs in that namespace.
fn inside(namespace: File, family: AddressFamily) -> io::Result<OwnedFd> {
    let work = move || -> io::Result<OwnedFd> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(socket_with(family, SocketType::STREAM, flags, None)?)
    };
    let thread = std::thread::Builder::new().name("inside".to_owned()).stack_size(64 << 10).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside failed")))
}
