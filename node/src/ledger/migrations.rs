use rusqlite_migration::{M, Migrations};

/// Every version, oldest first. A step that was released is never edited.
pub(super) fn all() -> Migrations<'static> {
    Migrations::new(vec![M::up(
        "
        create table spaces (
            id             text primary key,
            name           text not null unique,
            state          text not null,
            -- The effect that was begun and whose outcome is not written yet.
            intent         text,
            broken         text,
            epoch          integer not null,
            created_at     text not null,
            last_active_at text not null,
            policy         text not null,
            spec           text not null,
            template       text not null,
            metadata       text not null
        ) strict;
        create index spaces_by_state on spaces (state);
        create table facts (
            key   text primary key,
            value text not null
        ) strict;
        ",
    )])
}
