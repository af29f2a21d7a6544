use camino::Utf8PathBuf;
use drowse_shared::{
    api::spaces::{
        Exposure, Policy, PolicyPatch, PortKey, PortToken, SpaceAnswer, UpdatePolicy, WAIT_SECONDS, WakeOn,
    },
    name::SpaceRef,
    units,
};
use tokio::time::Duration;

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::span},
};

/// `drowse space policy`
#[derive(Debug, clap::Args)]
#[command(after_help = "What is not named stays as it is. The space is not woken.")]
pub(crate) struct Args {
    /// The space, by name or id
    name: SpaceRef,
    #[command(flatten)]
    wishes: Wishes,
}

/// A policy, as flags.
#[derive(Debug, clap::Args)]
pub(super) struct Wishes {
    /// Idle time until its processes are suspended, such as 10m, or never
    #[arg(long, value_name = "DURATION", value_parser = after, alias = "policy-freeze-after")]
    freeze_after: Option<After>,
    /// Idle time until only its disk is left, or never
    #[arg(long, value_name = "DURATION", value_parser = after, alias = "policy-stop-after")]
    stop_after: Option<After>,
    /// Idle time until its disk moves to the bucket, or never
    #[arg(long, value_name = "DURATION", value_parser = after, alias = "policy-hibernate-after")]
    hibernate_after: Option<After>,
    /// What its processes use of one core from which on they keep it awake, such as 20%, or never
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    awake_cpu: Option<Percent>,
    /// Whose requests for its ports wake it: any, authenticated or none
    #[arg(long, value_name = "WHO", value_parser = wake_on)]
    wake_on: Option<WakeOn>,
    /// Who reaches a port, such as 8080=private or *=public; may be given several times, and replaces what was said before
    #[arg(long, value_name = "PORT=WHO", value_parser = port)]
    port: Vec<(PortKey, Exposure)>,
    /// A path whose requests let it sleep, such as /health or /static/*; may be given several times, and replaces what
    /// was said before. `none` alone: there is none
    #[arg(long, value_name = "PATH")]
    never_wake: Vec<String>,
    /// Most wakes by requests for its ports in a minute
    #[arg(long, value_name = "NUMBER")]
    wakes_per_minute: Option<u32>,
    /// A file that holds the token of its private ports
    #[arg(long, value_name = "FILE")]
    port_token_file: Option<Utf8PathBuf>,
    /// Take the token of its private ports away
    #[arg(long, conflicts_with = "port_token_file")]
    no_port_token: bool,
}

/// A step of a policy; `None` never comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct After(Option<u64>);

fn after(text: &str) -> Result<After, units::Error> {
    if text == "never" {
        return Ok(After(None));
    }
    Ok(After(Some(units::duration(text)?.as_secs())))
}

/// A share of one core; `None` does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Percent(Option<u32>);

fn percent(text: &str) -> Result<Percent, String> {
    if text == "never" {
        return Ok(Percent(None));
    }
    let number = text.strip_suffix('%').unwrap_or(text).parse();
    number
        .map(|percent| Percent(Some(percent)))
        .map_err(|_| "it is a number such as 20%, or never".to_owned())
}

fn wake_on(text: &str) -> Result<WakeOn, String> {
    let all = [WakeOn::Any, WakeOn::Authenticated, WakeOn::None];
    all.into_iter()
        .find(|who| who.as_str() == text)
        .ok_or_else(|| "it is any, authenticated or none".to_owned())
}

fn port(text: &str) -> Result<(PortKey, Exposure), String> {
    let (key, who) = text.split_once('=').ok_or("it reads PORT=private or PORT=public")?;
    let exposure = match who {
        "private" => Exposure::Private,
        "public" => Exposure::Public,
        _ => return Err("a port is private or public".to_owned()),
    };
    Ok((key.parse().map_err(|bad: drowse_shared::api::spaces::BadPortKey| bad.to_string())?, exposure))
}

impl Wishes {
    /// What they change, if anything.
    pub(super) fn patch(self) -> Outcome<Option<PolicyPatch>> {
        let token = self.port_token_file.map(|file| {
            let text = std::fs::read_to_string(&file)
                .map_err(|why| Failure::usage(format!("--port-token-file {file} cannot be read: {why}")))?;
            let token = PortToken::try_from(text.trim().to_owned());
            token.map_err(|why| Failure::usage(format!("--port-token-file {file}: {why}")))
        });
        let never_wake = match self.never_wake.as_slice() {
            [] => None,
            [none] if none == "none" => Some(Vec::new()),
            _ => Some(self.never_wake),
        };
        let patch = PolicyPatch {
            freeze_after_seconds: self.freeze_after.map(|step| step.0),
            stop_after_seconds: self.stop_after.map(|step| step.0),
            hibernate_after_seconds: self.hibernate_after.map(|step| step.0),
            awake_cpu_percent: self.awake_cpu.map(|percent| percent.0),
            wake_on: self.wake_on,
            ports: (!self.port.is_empty()).then(|| self.port.into_iter().collect()),
            never_wake_paths: never_wake,
            wakes_per_minute_max: self.wakes_per_minute,
            port_token: token.transpose()?.map(Some).or(self.no_port_token.then_some(None)),
        };
        Ok((patch != PolicyPatch::default()).then_some(patch))
    }
}

/// Changes it.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let Some(policy) = args.wishes.patch()? else {
        return Err(Failure::usage("say what changes, such as --freeze-after 10m or --port 8080=private"));
    };
    let request = UpdatePolicy { name: args.name.clone(), policy };
    let patience = Duration::from_secs(WAIT_SECONDS);
    let answer = match context.client.answer("updatePolicy", &request, patience).await {
        Ok(answer) => answer,
        Err(failure) => return Err(super::nearest::named(failure, &args.name, &context.client).await),
    };
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let after: SpaceAnswer = answer.read()?;
    output::line(&format!("{}  {}", after.space.name, sleeps(&after.space.policy)))?;
    output::line(&format!("{}  {}", after.space.name, ports(&after.space.policy)))?;
    Ok(Exit::OK)
}

/// When it sleeps, in a line.
pub(super) fn sleeps(policy: &Policy) -> String {
    let step = |verb: &str, after: Option<u64>| match after {
        Some(seconds) => format!("{verb} after {}", span(seconds)),
        None => format!("never {verb}"),
    };
    let computes = policy.awake_cpu_percent.map(|percent| format!("; {percent}% of a core keeps it awake"));
    let steps = [
        step("freeze", policy.freeze_after_seconds),
        step("stop", policy.stop_after_seconds),
        step("hibernate", policy.hibernate_after_seconds),
    ];
    steps.join(", ") + computes.as_deref().unwrap_or_default()
}

/// Who reaches and wakes it by its hosts, in a line.
pub(super) fn ports(policy: &Policy) -> String {
    let said = policy.ports.iter().map(|(key, exposure)| {
        let key = if *key == PortKey::Every { "others".to_owned() } else { key.to_string() };
        let who = if *exposure == Exposure::Private { "private" } else { "public" };
        format!("{key} {who}")
    });
    let said: Vec<String> = said.collect();
    let who = if said.is_empty() { "public".to_owned() } else { said.join(", ") };
    let token = if policy.port_token_digest.is_some() { " (with a token of their own)" } else { "" };
    let wakes = match policy.wake_on {
        WakeOn::None => "never wake".to_owned(),
        wake_on => {
            let whose = if wake_on == WakeOn::Authenticated { "authenticated requests " } else { "" };
            format!("{whose}wake at most {} times a minute", policy.wakes_per_minute_max)
        }
    };
    let never = if policy.never_wake_paths.is_empty() || policy.wake_on == WakeOn::None {
        String::new()
    } else {
        format!(", never by {}", policy.never_wake_paths.join(" "))
    };
    format!("{who}{token}; {wakes}{never}")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        wishes: Wishes,
    }

    fn patch(flags: &[&str]) -> Result<Option<PolicyPatch>, String> {
        let line = Line::try_parse_from([&["policy"], flags].concat()).map_err(|error| error.to_string())?;
        line.wishes.patch().map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn flags_say_what_changes_and_nothing_else() {
        assert_eq!(patch(&[]), Ok(None));
        let flags = [
            "--port",
            "8080=private",
            "--port",
            "*=public",
            "--wake-on",
            "authenticated",
            "--never-wake",
            "none",
        ];
        let patch = patch(&flags).expect("valid").expect("something changes");
        let policy = patch.clone().apply(Policy::default());
        assert_eq!((patch.freeze_after_seconds, patch.port_token), (None, None));
        assert!(policy.is_private(8080) && !policy.is_private(80) && policy.never_wake_paths.is_empty());
        assert_eq!(
            ports(&policy),
            "others public, 8080 private; authenticated requests wake at most 30 times a minute"
        );
    }

    #[test]
    fn a_token_comes_from_a_file_and_is_never_an_argument() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let path = file.to_str().expect("plain");
        std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("written");
        let known =
            patch(&["--port-token-file", path]).expect("valid").expect("a change").apply(Policy::default());
        assert!(known.is_port_token("0123456789abcdef0123456789abcdef"));
        let gone = patch(&["--no-port-token"]).expect("valid").expect("a change").apply(known);
        assert_eq!(gone.port_token_digest, None);
        std::fs::write(&file, "secret").expect("written");
        let error = patch(&["--port-token-file", path]).expect_err("short");
        assert!(error.contains("32 to 512") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_step_may_never_come() {
        assert_eq!(after("never"), Ok(After(None)));
        assert_eq!(after("10m"), Ok(After(Some(600))));
        assert!(after("soon").is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_a_wrong_use() {
        for flags in
            [["--port", "8080"], ["--port", "0=private"], ["--port", "80=secret"], ["--wake-on", "never"]]
        {
            assert!(patch(&flags).is_err(), "{flags:?}");
        }
    }
}
