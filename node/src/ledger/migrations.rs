use rusqlite_migration::{M, Migrations};

/// Every version, oldest first. A step that was released is never edited.
pub(super) fn all() -> Migrations<'static> {
    Migrations::new(vec![
        M::up(
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
        ),
        // Lists by time, page by page: instants are written in one width, so that their texts are in their order.
        M::up(
            "
        update spaces set
            created_at = substr(rtrim(created_at, 'Z') || iif(instr(created_at, '.'), '', '.') || '000000000', 1, 29)
                || 'Z',
            last_active_at =
                substr(rtrim(last_active_at, 'Z') || iif(instr(last_active_at, '.'), '', '.') || '000000000', 1, 29)
                || 'Z';
        create index spaces_by_created on spaces (created_at, id);
        create index spaces_by_last_active on spaces (last_active_at, id);
        ",
        ),
        M::up(super::execs::TABLE),
        M::up(super::adoptions::TABLE),
        M::up(super::kept::TABLE),
        M::up(super::events::TABLE),
    ])
}
