//! Every verb there is, and which door answers it. Routers, counters, the answer to a misspelt verb and the OpenAPI
//! document all draw from this list; a verb that one of them forgot does not compile.

use super::attach::ATTACH;

/// Who answers a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doors {
    /// A gateway, for the whole fleet, and a node, for itself.
    Both,
    /// A gateway alone.
    Gateway,
    /// A node alone.
    Node,
}

/// A kind of daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// A gateway.
    Gateway,
    /// A node.
    Node,
}

macro_rules! verbs {
    ($( #[doc = $says:literal] $name:ident = $word:literal, $doors:ident; )*) => {
        /// A verb of the native API: `POST /<verb>`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Verb { $( #[doc = $says] $name, )* }

        impl Verb {
            /// Every verb.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )* ];

            /// The word on the wire, in logs and in metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$name => $word, )* }
            }

            /// The path it is served at.
            pub const fn path(self) -> &'static str {
                match self { $( Self::$name => concat!("/", $word), )* }
            }

            /// Who answers it.
            pub const fn doors(self) -> Doors {
                match self { $( Self::$name => Doors::$doors, )* }
            }

            /// What it does, in a sentence.
            pub const fn says(self) -> &'static str {
                match self { $( Self::$name => $says.trim_ascii(), )* }
            }
        }
    };
}

verbs! {
    /// The space of this name, made now or long ago, in whatever state it was; it is active afterwards.
    AcquireSpace = "acquireSpace", Both;
    /// One space. Looking never wakes it and never moves its idle clock.
    GetSpace = "getSpace", Both;
    /// Spaces, page by page, filtered and sorted. Looking never wakes one.
    ListSpaces = "listSpaces", Both;
    /// What happened to a space, the newest first. Looking never wakes it.
    ListEvents = "listEvents", Both;
    /// Suspends the processes of a space.
    FreezeSpace = "freezeSpace", Both;
    /// Ends the processes of a space and keeps its disk.
    StopSpace = "stopSpace", Both;
    /// Makes a space active.
    WakeSpace = "wakeSpace", Both;
    /// Makes a space active and moves its idle clock.
    TouchSpace = "touchSpace", Both;
    /// Changes when a space sleeps; it is not woken.
    UpdatePolicy = "updatePolicy", Both;
    /// Replaces the caller's notes about a space; it is not woken.
    UpdateMetadata = "updateMetadata", Both;
    /// Destroys a space and everything in it. The only verb that loses data.
    DestroySpace = "destroySpace", Both;
    /// Runs a command in a space and answers when it has ended.
    ExecCommand = "execCommand", Both;
    /// Runs a command in a space and answers its output as it comes, however much it is.
    ExecStream = "execStream", Both;
    /// Reads a file of a space: streamed as it is, or as JSON when it is small.
    ReadFile = "readFile", Both;
    /// Writes a file of a space: streamed, or from JSON when it is small.
    WriteFile = "writeFile", Both;
    /// Writes several small files of a space, in order.
    WriteFiles = "writeFiles", Both;
    /// Lists a directory of a space.
    ListFiles = "listFiles", Both;
    /// Watches a directory of a space and answers what changes in it, as it does.
    WatchFiles = "watchFiles", Both;
    /// Has a domain lead to a space, in place of whatever port of it before.
    BindDomain = "bindDomain", Gateway;
    /// Domains that lead to spaces, page by page. Looking never wakes one.
    ListDomains = "listDomains", Gateway;
    /// Has a domain lead to no space any longer.
    UnbindDomain = "unbindDomain", Gateway;
    /// The nodes of the fleet.
    ListNodes = "listNodes", Gateway;
    /// Gives up a node that is gone for good.
    RemoveNode = "removeNode", Gateway;
    /// Takes a removed node back.
    ReadmitNode = "readmitNode", Gateway;
    /// Rolls the nodes to the gateway's build, one after another.
    UpgradeFleet = "upgradeFleet", Gateway;
    /// How far the nodes are, beside the gateway's build.
    GetUpgrade = "getUpgrade", Gateway;
    /// Puts a node whose upgrade got stuck back in line.
    RetryUpgrade = "retryUpgrade", Gateway;
    /// Tells no further node to take another build.
    StopUpgrade = "stopUpgrade", Gateway;
    /// A node tells a gateway how it is. Between daemons.
    CheckIn = "checkIn", Gateway;
    /// A gateway asks a node to check in now. Between daemons.
    Report = "report", Node;
    /// A gateway asks a node whether it holds a space. Between daemons.
    Lookup = "lookup", Node;
    /// A gateway asks a node what a space is and how large its disk is. Between daemons.
    Measure = "measure", Node;
    /// A gateway has a space give up its name to another node's. Between daemons.
    SetAside = "setAside", Node;
}

impl Verb {
    /// Reads the word, or the path.
    pub fn read(text: &str) -> Option<Self> {
        let word = text.strip_prefix('/').unwrap_or(text);
        Self::ALL.iter().copied().find(|verb| verb.as_str() == word)
    }

    /// Whether this door answers it.
    pub fn is_at(self, door: Door) -> bool {
        match self.doors() {
            Doors::Both => true,
            Doors::Gateway => door == Door::Gateway,
            Doors::Node => door == Door::Node,
        }
    }

    /// The words of the verbs of one door.
    pub fn words(door: Door) -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().filter(move |verb| verb.is_at(door)).map(|verb| verb.as_str())
    }
}

/// What is read with `GET`, by path.
pub const PAGES: [&str; 4] = ["/healthz", "/metrics", OPENAPI, ATTACH];

/// The path of the OpenAPI document.
pub const OPENAPI: &str = "/openapi.json";

/// Whether a path is answered without the token.
pub fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | OPENAPI)
}

/// What a path is called in counters, one of a fixed set of words; `None` for what strangers type.
pub fn counted(path: &str) -> Option<&'static str> {
    let page = PAGES.into_iter().find(|page| *page == path).map(|page| page.trim_start_matches('/'));
    page.or_else(|| path.starts_with('/').then(|| Verb::read(path).map(Verb::as_str)).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_paths_lead_back_to_their_verb() {
        for verb in Verb::ALL {
            assert_eq!(Verb::read(verb.as_str()), Some(*verb));
            assert_eq!(Verb::read(verb.path()), Some(*verb));
            assert_eq!(counted(verb.path()), Some(verb.as_str()));
            assert!(verb.is_at(Door::Gateway) || verb.is_at(Door::Node));
            assert!(verb.says().trim().ends_with('.'), "{verb:?}");
        }
        for path in ["", "/", "acquireSpace", "//acquireSpace", "/../../etc"] {
            assert_eq!(counted(path), None, "{path:?}");
        }
        assert_eq!(counted("/openapi.json"), Some("openapi.json"));
    }
}
