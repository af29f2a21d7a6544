//! Spaces that nobody uses any more: they go to sleep while everybody looks, and a use wakes them.

use std::time::Duration;

use drowse_shared::api::{
    exec::ExecResult,
    spaces::{Resumed, SpaceAnswer, State},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Answer,
    client::{Client, Ended},
};

/// Between two looks.
const LOOKS: Duration = Duration::from_secs(2);
/// What a step down may take once its time has come: a look at all spaces, and a slow machine.
const STEP: Duration = Duration::from_secs(12);
const FREEZE: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(25);

impl Client {
    /// Law 7: a space that is only looked at sleeps in time, and a command finds it awake again.
    pub(super) async fn watches(&self, name: &str) {
        for (stops, asleep, within, comes_back) in [
            (Value::Null, State::Frozen, FREEZE + STEP, Resumed::Thawed),
            (json!(STOP.as_secs()), State::Stopped, STOP + STEP, Resumed::Restarted),
        ] {
            let policy = json!({ "freezeAfterSeconds": FREEZE.as_secs(), "stopAfterSeconds": stops,
                "hibernateAfterSeconds": null });
            let body = json!({ "name": name, "policy": policy });
            // It may have slept already, by the policy of whoever used it.
            let set = self.asks::<SpaceAnswer>("updatePolicy", name, &body).await;
            let awake = self.asks::<SpaceAnswer>("touchSpace", name, &json!({ "name": name })).await;
            if set.is_none() || awake.is_none() {
                return;
            }
            self.looks(name, asleep, within).await;
            let exec = json!({ "name": name, "command": "hostname" });
            let ran = self.asks::<ExecResult>("execCommand", name, &exec).await;
            if let Some(ran) = ran.filter(|ran| ran.resumed != Some(comes_back)) {
                self.fail(&format!("law 7: {name} was {asleep}, and a command found it {:?}", ran.resumed));
            }
        }
    }

    /// Looks all the time, in every way there is.
    async fn looks(&self, name: &str, asleep: State, within: Duration) {
        let began = self.elapsed();
        let mut last = None;
        while self.elapsed() - began < within {
            sleep(LOOKS).await;
            let looked = self.asks::<SpaceAnswer>("getSpace", name, &json!({ "name": name })).await;
            self.asks::<Value>("listSpaces", name, &json!({})).await;
            last = looked.map(|looked| looked.space.state);
        }
        if last != Some(asleep) {
            self.fail(&format!("law 7: {name} is {last:?} after {within:?} in which it was only looked at"));
        }
    }

    /// One verb at any gateway, which works: nothing is broken.
    async fn asks<T: serde::de::DeserializeOwned>(
        &self,
        verb: &'static str,
        name: &str,
        body: &Value,
    ) -> Option<T> {
        match self.call(self.any_gateway(), verb, name, body, None).await {
            Ended::Told(Answer { status: 200, body, .. }) => serde_json::from_value(body).ok(),
            ended => {
                self.fail(&format!("law 6: {verb} {name} does not work, and nothing is broken: {ended:?}"));
                None
            }
        }
    }
}
