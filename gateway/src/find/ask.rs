//! One round of lookups: every node at once, decided as early as is safe, and listened to until its deadline.

use std::sync::Arc;

use drowse_shared::{api::nodes::Intent, name::SpaceRef, select_biased};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::oneshot, time::Instant};

use super::{
    Busy, Finder,
    share::Turn,
    verdict::{Answer, Said, Verdict, verdict},
};

/// Whether enough was said.
fn is_decided(said: &[Said], live_open: usize, grace_over: bool) -> bool {
    let yes = said.iter().any(|said| matches!(said.answer, Answer::Yes(_)));
    yes && (live_open == 0 || grace_over)
}

impl Finder {
    /// Runs a round in a task of its own, which goes on listening after the decision: a second yes must not be missed.
    pub(super) async fn round(
        self: &Arc<Self>,
        space: &SpaceRef,
        intent: Intent,
        all: bool,
    ) -> Result<Vec<Said>, Busy> {
        let turn = self.share(space).turn(self.fleet.asked().len()).await?;
        self.metrics.round(intent);
        let (decide, decided) = oneshot::channel();
        self.env.spawn("lookups", self.clone().listen(space.clone(), intent, all, turn, decide));
        // Else the process is going down.
        Ok(decided.await.unwrap_or_else(|_| self.silence()))
    }

    async fn listen(
        self: Arc<Self>,
        space: SpaceRef,
        intent: Intent,
        all: bool,
        mut turn: Turn,
        decide: oneshot::Sender<Vec<Said>>,
    ) {
        let suspect = self.is_suspect(&space);
        let patient = all || suspect;
        let peers = self.fleet.asked();
        let mut live_open = peers.iter().filter(|peer| peer.live).count();
        let mut open: FuturesUnordered<_> = peers
            .into_iter()
            .map(|peer| async {
                let answer = self.ask_one(&peer, &space, intent, None).await;
                Said { peer, answer }
            })
            .collect();
        let grace_ends = Instant::now() + self.limits.grace;
        let (mut said, mut decide, mut grace_over) = (Vec::new(), Some(decide), false);
        loop {
            let next = select_biased! {
                next = open.next() => next,
                () = tokio::time::sleep_until(grace_ends), if !grace_over => {
                    grace_over = true;
                    None
                }
            };
            if let Some(next) = next {
                live_open -= usize::from(next.peer.live);
                if decide.is_none() && matches!(next.answer, Answer::Yes(_)) {
                    tracing::warn!(%space, node = %next.peer.id, "a second node holds this space");
                    self.doubt(&space);
                    self.suspect(space.clone());
                }
                said.push(next);
            }
            let ended = open.is_empty();
            let decided = ended || (!patient && is_decided(&said, live_open, grace_over));
            if let Some(decide) = decide.take_if(|_| decided) {
                let found = verdict(&said);
                if suspect && !matches!(found, Verdict::Conflict { .. } | Verdict::Unsure(_)) {
                    self.clear(&space);
                }
                match &found {
                    Verdict::Holder { peer, held } => self.learn(peer, held),
                    // Whoever asks for it again is a stranger.
                    Verdict::Nobody { .. } => self.forget(&space),
                    Verdict::Conflict { .. } | Verdict::Unsure(_) | Verdict::Contested => {}
                }
                // Whoever asked may have left.
                let _ = decide.send(said.clone());
            }
            if ended {
                return;
            }
            if decide.is_none() {
                turn.shrink(open.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Peer;
    use drowse_shared::{
        api::{
            nodes::{Held, Holding},
            spaces::State,
        },
        id::Epoch,
    };

    #[test]
    fn a_round_is_decided_at_a_yes_once_the_live_have_answered_or_the_grace_is_over() {
        let peer = Peer {
            ledger: format!("{:032x}", 1).parse().expect("an id"),
            id: "a".parse().expect("an id"),
            endpoint: Arc::from("http://a"),
            live: true,
        };
        let held = Held {
            id: format!("{:032x}", 2).parse().expect("an id"),
            name: "a".parse().expect("a name"),
            state: State::Active,
            epoch: Epoch::FIRST,
            holding: Holding::Home,
        };
        let yes = Said { peer: peer.clone(), answer: Answer::Yes(held) };
        let no = Said { peer, answer: Answer::No { ticket: None } };
        for (said, live_open, grace_over, expected) in [
            (vec![], 0, true, false),
            (vec![no.clone()], 0, true, false),
            (vec![yes.clone()], 1, false, false),
            (vec![yes.clone()], 0, false, true),
            (vec![yes.clone()], 1, true, true),
            (vec![no, yes], 3, true, true),
        ] {
            assert_eq!(
                is_decided(&said, live_open, grace_over),
                expected,
                "{said:?} {live_open} {grace_over}"
            );
        }
    }
}
