//! Points at which this daemon may die, by name.
//!
//! Whatever changes a space passes here: its intent, its effect step by step, its outcome. The list of all of them is
//! generated from the enums that the code itself must use, so a new effect or step is on it as soon as it compiles; a test
//! then kills a node at each and fails for one that it never meets.

use std::{
    fmt::{self, Debug},
    sync::Arc,
};

use crate::{
    executor::oci::{Program, Step},
    space::state::Effect,
};

/// An enum that has a list of its values and a word for each.
macro_rules! listed {
    ($(#[$attr:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$attr])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every one.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Its word in messages, logs and lists.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}
pub(crate) use listed;

/// A milestone is one of these kinds, each a product of listed enums.
macro_rules! milestones {
    ($($(#[$doc:meta])* $variant:ident($($part:ident: $kind:ty),+),)+) => {
        /// A point at which this daemon may die.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Milestone { $($(#[$doc])* $variant($($kind),+),)+ }

        impl Milestone {
            /// Every one there is.
            pub fn all() -> Vec<Self> {
                let mut all = Vec::new();
                $(milestones!(@every all, Self::$variant; $($part: $kind),+;);)+
                all
            }
        }

        impl fmt::Display for Milestone {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant($($part),+) => {
                        f.write_str(stringify!($variant))?;
                        $(write!(f, ": {}", $part.word())?;)+
                        Ok(())
                    })+
                }
            }
        }
    };
    (@every $all:ident, $make:expr; $part:ident: $kind:ty $(, $next:ident: $more:ty)*; $($have:ident)*) => {
        for $part in <$kind>::ALL {
            milestones!(@every $all, $make; $($next: $more),*; $($have)* $part);
        }
    };
    (@every $all:ident, $make:expr; ; $($have:ident)+) => { $all.push($make($($have),+)); };
}

milestones! {
    /// The lifecycle goes through an effect.
    Effect(effect: Effect, moment: Moment),
    /// The executor has changed something on the machine.
    Step(step: Step),
    /// A program that the executor runs.
    Program(program: Program, progress: Progress),
    /// A row was written that belongs to no effect.
    Row(row: Row),
}

listed! {
    /// How far an effect is.
    pub enum Moment {
        /// It was decided on; nothing is written.
        Meant = "meant",
        /// Its intent is written, if it has one; nothing was done.
        Begun = "begun",
        /// It was done, or failed; nothing is written.
        Ended = "ended",
        /// What it led to is written; nobody was told.
        Settled = "settled",
    }
}

listed! {
    /// How far a program is.
    pub enum Progress {
        /// It runs.
        Underway = "underway",
        /// It ended well.
        Done = "done",
    }
}

listed! {
    /// Which row.
    pub enum Row {
        /// Who this node is.
        Identity = "identity kept",
        /// What a space does, after a look at what exists.
        Reconciled = "reconciled with what was found",
        /// A space whose row was lost.
        Rebuilt = "rebuilt from its card",
        /// A space that was set aside has its name again.
        Recalled = "given its name again",
        /// A space gave up its name to another node's.
        SetAside = "set aside",
        /// When a space sleeps, or the caller's notes.
        Changed = "policy or metadata changed",
    }
}

/// Sees milestones pass.
pub trait Milestones: Debug + Send + Sync {
    /// One was reached. What comes after it has not begun.
    fn reached(&self, milestone: Milestone);
}

/// Nobody watches.
#[derive(Debug)]
struct Unwatched;

impl Milestones for Unwatched {
    fn reached(&self, _milestone: Milestone) {}
}

/// What a daemon in production has: nobody watches.
pub fn unwatched() -> Arc<dyn Milestones> {
    Arc::new(Unwatched)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_milestone_is_on_the_list_once_under_a_name_of_its_own() {
        let all = Milestone::all();
        let effects = Effect::ALL.len() * Moment::ALL.len();
        let programs = Program::ALL.len() * Progress::ALL.len();
        assert_eq!(all.len(), effects + programs + Step::ALL.len() + Row::ALL.len());
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        assert!(names.contains("Effect: freeze: begun"), "{names:?}");
    }
}
