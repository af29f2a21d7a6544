use std::{pin::pin, time::Duration};

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::BodyExt;

/// Most of a body that is read only to be able to refuse it.
const BYTES_MAX: u64 = 64 << 20;
/// Longest time spent on that.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads what is not wanted, within bounds.
///
/// Most clients read an answer only once they have sent their body; one that is cut off while it sends never learns why,
/// and one that keeps its connection finds it closed.
pub async fn drain<B: Body<Data = Bytes>>(body: B) {
    if body.size_hint().lower() > BYTES_MAX {
        return;
    }
    let mut body = pin!(body);
    let mut left = BYTES_MAX;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.remaining() as u64));
            if left == 0 {
                return;
            }
        }
    };
    // However it ends, the request is refused.
    let _ = tokio::time::timeout(PATIENCE, read).await;
}
