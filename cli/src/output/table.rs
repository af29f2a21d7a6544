use super::plain;

/// How a cell looks on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it is.
    Plain,
    /// Good and going on.
    Green,
    /// Asleep or waiting.
    Blue,
    /// Somebody should look.
    Red,
}

/// Rows under headings. A long table is shown in parts, under one heading.
pub(crate) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<(String, Tone)>>,
    /// Of the columns so far; they only grow.
    widths: Vec<usize>,
    headed: bool,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        let widths = heads.iter().map(|head| head.chars().count()).collect();
        Self { heads: heads.to_vec(), rows: Vec::new(), widths, headed: false }
    }

    /// Adds a row. An empty cell is shown as a dash.
    pub(crate) fn row(&mut self, cells: Vec<(String, Tone)>) {
        self.rows.push(cells);
    }

    /// For a person: aligned, headings first.
    fn aligned(&mut self) -> String {
        let shown = |text: &str| if text.is_empty() { "–".to_owned() } else { plain(text) };
        let rows = std::mem::take(&mut self.rows);
        let rows: Vec<Vec<(String, Tone)>> = rows
            .into_iter()
            .map(|row| row.into_iter().map(|(text, tone)| (shown(&text), tone)).collect())
            .collect();
        for row in &rows {
            for (width, (text, _)) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        let heads = self.heads.iter().map(|head| ((*head).to_owned(), Tone::Plain)).collect();
        let heads = (!std::mem::replace(&mut self.headed, true)).then_some(heads);
        let mut out = String::new();
        for cells in heads.into_iter().chain(rows) {
            let last = cells.len().saturating_sub(1);
            let mut line = String::new();
            for (column, (cell, tone)) in cells.into_iter().enumerate() {
                line.push_str(&paint(&cell, tone));
                if column < last {
                    line.push_str(&" ".repeat(self.widths[column] - cell.chars().count() + 2));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    /// For a program: one tab between cells, headings first, `-` for an empty cell.
    fn tabbed(&mut self) -> String {
        let mut out = String::new();
        if !std::mem::replace(&mut self.headed, true) {
            out.push_str(&self.heads.join("\t"));
            out.push('\n');
        }
        for row in std::mem::take(&mut self.rows) {
            let cells: Vec<String> = row
                .iter()
                .map(|(text, _)| if text.is_empty() { "-".to_owned() } else { plain(text) })
                .collect();
            out.push_str(&cells.join("\t"));
            out.push('\n');
        }
        out
    }

    /// For whoever reads standard output: the rows since the last time.
    pub(crate) fn text(&mut self) -> String {
        if super::on_terminal() { self.aligned() } else { self.tabbed() }
    }
}

fn paint(text: &str, tone: Tone) -> String {
    match tone {
        Tone::Plain => text.to_owned(),
        Tone::Green => format!("\x1b[32m{text}\x1b[0m"),
        Tone::Blue => format!("\x1b[34m{text}\x1b[0m"),
        Tone::Red => format!("\x1b[31m{text}\x1b[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_cells_cannot_break_out() {
        let table = || {
            let mut table = Table::new(&["NAME", "STATE", "WHY"]);
            table.row(vec![
                ("shop".into(), Tone::Plain),
                ("active".into(), Tone::Green),
                ("".into(), Tone::Plain),
            ]);
            table.row(vec![
                ("ü".into(), Tone::Plain),
                ("frozen".into(), Tone::Plain),
                ("a\x1b[31m\tb".into(), Tone::Plain),
            ]);
            table
        };
        assert_eq!(
            table().aligned(),
            "NAME  STATE   WHY\nshop  \x1b[32mactive\x1b[0m  –\nü     frozen  a\u{fffd}[31m\u{fffd}b\n"
        );
        assert_eq!(
            table().tabbed(),
            "NAME\tSTATE\tWHY\nshop\tactive\t-\nü\tfrozen\ta\u{fffd}[31m\u{fffd}b\n"
        );
        let mut parts = table();
        parts.aligned();
        parts.row(vec![("a".into(), Tone::Plain), ("b".into(), Tone::Plain), ("c".into(), Tone::Plain)]);
        assert_eq!(parts.aligned(), "a     b       c\n", "a later part goes on under the same heading");
    }
}
