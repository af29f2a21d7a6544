//! Looks at a machine: what a fleet needs of it, what is missing, and what mends it.

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::seams::Env;
use serde_json::json;

use crate::{
    failure::{Exit, Outcome},
    fleet::DEFAULT_STATE,
    output::{
        self,
        table::{Table, Tone},
        units::count,
    },
};
use judge::{Finding, Verdict};

/// A real space, from its making to its end.
mod boot;
/// What is seen of the machine.
mod facts;
/// What that means.
mod judge;

/// `drowse doctor`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Ends with 1 when something is bad, else with 0. Nothing is changed, but for a space that is made, used and \
                        destroyed."
)]
pub(crate) struct Args {
    /// Look at the machine only, and make no space
    #[arg(long)]
    offline: bool,
    /// Where the spaces of this machine are kept; as the node was told when not given
    #[arg(long, value_name = "DIR")]
    node_state: Option<Utf8PathBuf>,
}

/// Looks, and says what it saw.
pub(crate) async fn run(args: Args, state: Option<&Utf8Path>, as_json: bool) -> Outcome<Exit> {
    let env = Env::real();
    let facts = facts::gather(&env, args.node_state.or_else(|| here(state))).await;
    let mut findings = judge::judge(&facts);
    findings.push(match args.offline {
        true => Finding::skipped("a space", "not tried: --offline"),
        false if !facts.runs_spaces() => Finding::skipped("a space", "not tried: no node was installed here"),
        false => boot::boot(&env, state).await,
    });
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count();
    if as_json {
        output::json(&json!({ "ok": bad == 0, "findings": findings }))?;
    } else {
        output::bytes(table(&findings).text().as_bytes())?;
        for Finding { check, fix, .. } in &findings {
            if let Some(fix) = fix {
                output::line(&format!("{check}: {fix}"))?;
            }
        }
        if output::on_terminal() {
            output::line(&match bad {
                0 => "nothing stands in the way of a fleet".to_owned(),
                bad => format!("{} bad", count(bad, "thing")),
            })?;
        }
    }
    Ok(if bad == 0 { Exit::OK } else { Exit::FAILED })
}

/// The fleet of this directory, on a machine into which no node was installed.
fn here(state: Option<&Utf8Path>) -> Option<Utf8PathBuf> {
    let of = state.unwrap_or(Utf8Path::new(DEFAULT_STATE));
    let local = facts::settings("node").is_none() && of.join("fleet.json").exists();
    local.then(|| of.to_owned())
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new(&["CHECK", "IS", "FOUND"]);
    for Finding { check, verdict, found, .. } in findings {
        let (word, tone) = match verdict {
            Verdict::Good => ("good", Tone::Green),
            Verdict::Poor => ("poor", Tone::Blue),
            Verdict::Bad => ("bad", Tone::Red),
            Verdict::Skipped => ("skipped", Tone::Plain),
        };
        let plain = |text: &str| (text.to_owned(), Tone::Plain);
        table.row(vec![plain(check), (word.to_owned(), tone), plain(found)]);
    }
    table
}
