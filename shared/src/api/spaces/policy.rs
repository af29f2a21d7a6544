use garde::Validate;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::ports::Exposure;
use super::ports::{
    PortToken, Ports, WakeOn, never_wake_paths, optional_paths_fit, optional_ports_fit, paths_fit, ports_fit,
    wakes_per_minute,
};

/// When an idle space sleeps, and who may reach and wake it by its hosts. Seconds since the last activity; `null` = never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct Policy {
    /// Until its processes are suspended.
    #[garde(custom(ordered(&self.stop_after_seconds, "stopAfterSeconds")))]
    pub freeze_after_seconds: Option<u64>,
    /// Until only its disk is left.
    #[garde(custom(ordered(&self.hibernate_after_seconds, "hibernateAfterSeconds")))]
    pub stop_after_seconds: Option<u64>,
    /// Until its disk moves to the bucket.
    pub hibernate_after_seconds: Option<u64>,
    /// What its processes use of one core, in percent, from which on they keep it awake; `null` = it does not count.
    #[garde(range(min = 1, max = 100_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awake_cpu_percent: Option<u32>,
    /// Who wakes it by its hosts.
    #[serde(default)]
    pub wake_on: WakeOn,
    /// Which of its ports are private: by number, or `*` for those without an entry. All others are public.
    #[garde(custom(ports_fit))]
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Exposure>"))]
    pub ports: Ports,
    /// Paths that let it sleep; one that ends in `*` stands for all that begin so.
    #[garde(custom(paths_fit))]
    #[serde(default = "never_wake_paths")]
    pub never_wake_paths: Vec<String>,
    /// Most wakes by its hosts in a minute.
    #[garde(range(min = 1, max = 6000))]
    #[serde(default = "wakes_per_minute")]
    pub wakes_per_minute_max: u32,
    /// The token of its private ports, as `blake3:<64 hex digits>`; `null` = the fleet's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_token_digest: Option<String>,
}

impl Default for Policy {
    /// 10 minutes, 3 days, 7 days; every port is public and wakes.
    fn default() -> Self {
        Self {
            freeze_after_seconds: Some(600),
            stop_after_seconds: Some(3 * 86_400),
            hibernate_after_seconds: Some(7 * 86_400),
            awake_cpu_percent: None,
            wake_on: WakeOn::Any,
            ports: Ports::new(),
            never_wake_paths: never_wake_paths(),
            wakes_per_minute_max: wakes_per_minute(),
            port_token_digest: None,
        }
    }
}

/// An earlier step must not come after a later one. A later step that never comes allows any earlier one.
fn ordered<'a>(
    later: &'a Option<u64>,
    later_name: &'static str,
) -> impl FnOnce(&Option<u64>, &()) -> garde::Result + 'a {
    move |earlier, &()| match (earlier, later) {
        (Some(earlier), Some(later)) if earlier > later => {
            Err(garde::Error::new(format!("{earlier} is after {later_name} ({later})")))
        }
        (Some(0), _) => Err(garde::Error::new("must be at least 1, or null for never")),
        (None, Some(later)) => Err(garde::Error::new(format!(
            "is null (never), so {later_name} ({later}) could never be reached; set it to null too"
        ))),
        _ => Ok(()),
    }
}

/// A change of policy: what is absent stays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct PolicyPatch {
    /// Until its processes are suspended.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    pub freeze_after_seconds: Option<Option<u64>>,
    /// Until only its disk is left.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    pub stop_after_seconds: Option<Option<u64>>,
    /// Until its disk moves to the bucket.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    pub hibernate_after_seconds: Option<Option<u64>>,
    /// What its processes use of one core, in percent, from which on they keep it awake; `null` = it does not count.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<u32>"))]
    pub awake_cpu_percent: Option<Option<u32>>,
    /// Who wakes it by its hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_on: Option<WakeOn>,
    /// Which of its ports are private: by number, or `*` for those without an entry. Replaces all entries.
    #[garde(custom(optional_ports_fit))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<std::collections::BTreeMap<String, Exposure>>"))]
    pub ports: Option<Ports>,
    /// Paths that let it sleep; one that ends in `*` stands for all that begin so. Replaces all of them.
    #[garde(custom(optional_paths_fit))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_wake_paths: Option<Vec<String>>,
    /// Most wakes by its hosts in a minute.
    #[garde(range(min = 1, max = 6000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakes_per_minute_max: Option<u32>,
    /// The token of its private ports, 32 to 512 printable characters; only its digest is kept. `null` takes it away.
    #[serde(default, with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub port_token: Option<Option<PortToken>>,
}

impl PolicyPatch {
    /// The policy after the change. The caller validates the result.
    pub fn apply(self, to: Policy) -> Policy {
        Policy {
            freeze_after_seconds: self.freeze_after_seconds.unwrap_or(to.freeze_after_seconds),
            stop_after_seconds: self.stop_after_seconds.unwrap_or(to.stop_after_seconds),
            hibernate_after_seconds: self.hibernate_after_seconds.unwrap_or(to.hibernate_after_seconds),
            awake_cpu_percent: self.awake_cpu_percent.unwrap_or(to.awake_cpu_percent),
            wake_on: self.wake_on.unwrap_or(to.wake_on),
            ports: self.ports.unwrap_or(to.ports),
            never_wake_paths: self.never_wake_paths.unwrap_or(to.never_wake_paths),
            wakes_per_minute_max: self.wakes_per_minute_max.unwrap_or(to.wakes_per_minute_max),
            port_token_digest: match self.port_token {
                Some(token) => token.map(|token| token.digest()),
                None => to.port_token_digest,
            },
        }
    }
}

/// Tells an absent field from `null`.
mod present {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        v: &Option<Option<T>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        v.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_go_one_step_at_a_time() {
        let ok = [
            (Some(1), Some(1), Some(1)),
            (Some(1), None, None),
            (None, None, None),
            (Some(5), Some(9), None),
        ];
        for (freeze_after_seconds, stop_after_seconds, hibernate_after_seconds) in ok {
            assert!(
                Policy {
                    freeze_after_seconds,
                    stop_after_seconds,
                    hibernate_after_seconds,
                    ..Policy::default()
                }
                .validate()
                .is_ok()
            );
        }
        let bad = [
            (Some(2), Some(1), None),
            (Some(0), None, None),
            (None, Some(1), None),
            (Some(1), None, Some(9)),
        ];
        for (freeze_after_seconds, stop_after_seconds, hibernate_after_seconds) in bad {
            let policy = Policy {
                freeze_after_seconds,
                stop_after_seconds,
                hibernate_after_seconds,
                ..Policy::default()
            };
            assert!(policy.validate().is_err(), "{policy:?}");
        }
    }

    #[test]
    fn an_absent_field_is_not_null() {
        let patch: PolicyPatch = serde_json::from_str(r#"{"stopAfterSeconds":null}"#).expect("valid");
        let policy = patch.apply(Policy::default());
        assert_eq!((policy.freeze_after_seconds, policy.stop_after_seconds), (Some(600), None));
    }
}
