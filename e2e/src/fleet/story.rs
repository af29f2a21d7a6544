use std::collections::{BTreeMap, BTreeSet};

use drowse_shared::api::{
    exec::ExecResult,
    nodes::LookupAnswer,
    spaces::{Acquired, Space, SpaceList},
};
use serde_json::json;

use super::{Fleet, Node};

impl Fleet {
    // The verbs of the story, through the gateway. Each expects success.

    /// Acquires a space.
    pub async fn acquire(&self, name: &str) -> Acquired {
        self.door.acquire(name).await.ok()
    }

    /// Shows a space.
    pub async fn get(&self, name: &str) -> Space {
        self.door.get(name).await.ok().space
    }

    /// Runs a command in a space; it must end with 0. Answers what it printed, without the last newline.
    pub async fn exec(&self, name: &str, command: &str) -> String {
        let result = self.door.exec(name, command).await.ok();
        assert_eq!(result.exit_code, Some(0), "{command:?} in {name}: {result:?}");
        result.stdout.trim_end_matches('\n').to_owned()
    }

    /// Starts a command that runs on, and answers its pid.
    pub async fn detach(&self, name: &str, command: &str) -> u32 {
        let result: ExecResult = self.door.detach(name, command).await.ok();
        assert!(result.detached, "{result:?}");
        result.pid
    }

    /// Writes a file.
    pub async fn write(&self, name: &str, path: &str, content: impl Into<Vec<u8>>) {
        self.door.write(name, path.as_bytes(), content.into()).await.ok();
    }

    /// Reads a file.
    pub async fn read(&self, name: &str, path: &str) -> Vec<u8> {
        self.door.read(name, path.as_bytes()).await.octets()
    }

    /// Destroys a space; whether there was one.
    pub async fn destroy(&self, name: &str) -> bool {
        self.door.destroy(name).await.ok().destroyed
    }

    /// Suspends a space.
    pub async fn freeze(&self, name: &str) -> Space {
        self.door.turn("freezeSpace", name).await.ok().space
    }

    /// Every space whose name begins so, over all pages.
    pub async fn list(&self, prefix: &str) -> Vec<Space> {
        let mut all = Vec::new();
        let mut filters = json!({ "namePrefix": prefix });
        loop {
            let page: SpaceList = self.door.list(filters.clone()).await.ok();
            assert!(page.silent.is_empty(), "silent: {:?}", page.silent);
            all.extend(page.spaces);
            let Some(cursor) = page.next_cursor else { return all };
            filters["cursor"] = json!(cursor);
        }
    }

    /// The nodes whose own ledger holds this name, asked each at its own door.
    pub async fn holders(&self, name: &str) -> Vec<String> {
        self.holders_but(name, "").await
    }

    /// The same, without asking one that does not run.
    pub async fn holders_but(&self, name: &str, dead: &str) -> Vec<String> {
        let mut holders = Vec::new();
        for node in self.nodes.iter().filter(|n| n.id != dead) {
            if let LookupAnswer::Yes(_) = node.door.lookup(name).await.ok() {
                holders.push(node.id.clone());
            }
        }
        holders
    }

    /// The one node that holds this name.
    ///
    /// # Panics
    /// When it is none or several.
    pub async fn holder(&self, name: &str) -> String {
        let mut holders = self.holders(name).await;
        assert_eq!(holders.len(), 1, "{name} is on {holders:?}");
        holders.remove(0)
    }

    /// How many spaces each running node holds by its own word.
    pub async fn spread(&self) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for node in &self.nodes {
            let list: SpaceList = node.door.list(json!({ "limit": 1000 })).await.ok();
            spread.insert(node.id.clone(), list.spaces.len());
        }
        spread
    }

    /// The ids whose disks lie at any node.
    pub fn disks(&self) -> BTreeSet<String> {
        self.nodes.iter().flat_map(Node::disks).collect()
    }

    /// The ids of all spaces that the ledgers hold, whatever their state, asked each node at its own door.
    pub async fn in_ledgers(&self) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        for node in &self.nodes {
            let list: SpaceList = node.door.list(json!({ "limit": 1000 })).await.ok();
            ids.extend(list.spaces.iter().map(|space| space.id.to_string()));
        }
        ids
    }
}
