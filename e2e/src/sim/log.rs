use std::{
    cell::RefCell,
    fmt::{Debug, Write as _},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::{story::Kind, world::World};

thread_local! {
    /// Whose task is being polled.
    static SPEAKER: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Says whose logs come next.
pub(super) fn speaks(host: &str) {
    SPEAKER.with_borrow_mut(|speaker| {
        speaker.clear();
        speaker.push_str(host);
    });
}

/// Writes the daemons' logs into the story. Spans are not told.
pub(super) struct Teller(pub(super) World);

impl Subscriber for Teller {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("drowse")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let host = SPEAKER.with_borrow(Clone::clone);
        let level = event.metadata().level();
        self.0.tell(Kind::Log, format!("{host} {level}: {}{}", line.message, line.fields));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
