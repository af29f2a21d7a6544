use drowse_shared::id::SpaceId;
use tokio::io::DuplexStream;

use super::Machine;

/// Answers one connection.
pub(super) async fn serve(_machine: Machine, _id: SpaceId, _io: DuplexStream) {}
