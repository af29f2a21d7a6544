use garde::Validate;
use serde::{Deserialize, Serialize};

/// When an idle space sleeps. Seconds since the last activity; `null` = never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Validate)]
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
}

impl Default for Policy {
    /// 10 minutes, 3 days, 7 days.
    fn default() -> Self {
        Self {
            freeze_after_seconds: Some(600),
            stop_after_seconds: Some(3 * 86_400),
            hibernate_after_seconds: Some(7 * 86_400),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Validate)]
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
}

impl PolicyPatch {
    /// The policy after the change. The caller validates the result.
    pub fn apply(self, to: Policy) -> Policy {
        Policy {
            freeze_after_seconds: self.freeze_after_seconds.unwrap_or(to.freeze_after_seconds),
            stop_after_seconds: self.stop_after_seconds.unwrap_or(to.stop_after_seconds),
            hibernate_after_seconds: self.hibernate_after_seconds.unwrap_or(to.hibernate_after_seconds),
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
                Policy { freeze_after_seconds, stop_after_seconds, hibernate_after_seconds }
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
            let policy = Policy { freeze_after_seconds, stop_after_seconds, hibernate_after_seconds };
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
