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

/// Rows under headings.
pub(crate) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. An empty cell is shown as a dash.
    pub(crate) fn row(&mut self, cells: Vec<(String, Tone)>) {
        self.rows.push(cells);
    }

    /// For a person: aligned, headings first.
    pub(crate) fn aligned(&self) -> String {
        let texts: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                row.iter()
                    .map(|(text, _)| if text.is_empty() { "–".to_owned() } else { plain(text) })
                    .collect()
            })
            .collect();
        let width = |column: usize| {
            let cells = texts.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count());
            cells.chain([self.heads[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let mut out = String::new();
        let mut line = |cells: Vec<(&str, Tone)>| {
            let last = cells.len().saturating_sub(1);
            let mut text = String::new();
            for (column, (cell, tone)) in cells.into_iter().enumerate() {
                text.push_str(&paint(cell, tone));
                if column < last {
                    text.push_str(&" ".repeat(widths[column] - cell.chars().count() + 2));
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(self.heads.iter().map(|head| (*head, Tone::Plain)).collect());
        for (row, texts) in self.rows.iter().zip(&texts) {
            line(row.iter().zip(texts).map(|((_, tone), text)| (text.as_str(), *tone)).collect());
        }
        out
    }

    /// For a program: one tab between cells, headings first, `-` for an empty cell.
    pub(crate) fn tabbed(&self) -> String {
        let mut out = self.heads.join("\t");
        out.push('\n');
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .map(|(text, _)| if text.is_empty() { "-".to_owned() } else { plain(text) })
                .collect();
            out.push_str(&cells.join("\t"));
            out.push('\n');
        }
        out
    }

    /// For whoever reads standard output.
    pub(crate) fn text(&self) -> String {
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
        assert_eq!(
            table.aligned(),
            "NAME  STATE   WHY\nshop  \x1b[32mactive\x1b[0m  –\nü     frozen  a\u{fffd}[31m\u{fffd}b\n"
        );
        assert_eq!(table.tabbed(), "NAME\tSTATE\tWHY\nshop\tactive\t-\nü\tfrozen\ta\u{fffd}[31m\u{fffd}b\n");
    }
}
