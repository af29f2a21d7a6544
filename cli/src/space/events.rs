use std::time::Duration;

use drowse_shared::{
    api::spaces::{EVENTS_PAGE_MAX, EventList, Happened, ListEvents, SpaceEvent},
    name::SpaceRef,
};

use crate::{
    args::Context,
    failure::{Exit, Outcome},
    output::{
        self,
        table::{Table, Tone},
        units::took,
    },
};

/// `drowse space events`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The space, by name or id
    name: SpaceRef,
    /// At most this many
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Shows what happened, the newest first.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let mut request = ListEvents { name: args.name, limit: None, cursor: None };
    let mut left = args.limit;
    let mut all = EventList { events: Vec::new(), next_cursor: None };
    let mut table = Table::new(&["WHEN", "WHAT", "BECAUSE", "TOOK"]);
    loop {
        request.limit = Some(left.min(EVENTS_PAGE_MAX));
        let page: EventList = match context.client.call("listEvents", &request).await {
            Ok(page) => page,
            Err(failure) => {
                return Err(super::nearest::named(failure, &request.name, &context.client).await);
            }
        };
        left = left.saturating_sub(u32::try_from(page.events.len()).unwrap_or(u32::MAX));
        request.cursor = page.next_cursor;
        all.next_cursor = page.next_cursor;
        let mut read_on = true;
        if context.json {
            all.events.extend(page.events);
        } else {
            page.events.iter().for_each(|event| row(&mut table, event));
            read_on = output::page(&table.text())?;
        }
        if !read_on || left == 0 || request.cursor.is_none() {
            break;
        }
    }
    if context.json {
        output::json(&serde_json::json!(all))?;
    } else if all.next_cursor.is_some() {
        eprintln!("note: older ones are kept; --limit shows more");
    }
    Ok(Exit::OK)
}

fn row(table: &mut Table, event: &SpaceEvent) {
    let tone = match event.what {
        Happened::Created | Happened::Thawed | Happened::Restarted => Tone::Green,
        Happened::Died | Happened::Broke | Happened::Destroyed => Tone::Red,
        _ => Tone::Blue,
    };
    let lasted = event.took_us.map(|us| took(Duration::from_micros(us))).unwrap_or_default();
    table.row(vec![
        (format!("{:.0}", event.at), Tone::Plain),
        (event.what.as_str().to_owned(), tone),
        (event.because.clone(), Tone::Plain),
        (lasted, Tone::Plain),
    ]);
}
