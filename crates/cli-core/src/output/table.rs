//! Plain text tables: columns as wide as their widest cell, two spaces between, nothing at line ends.

use std::io::{self, Write};

use katydid_wire::printable::printable;

/// Alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Aligned left, for words.
    Left,
    /// Aligned right, for numbers.
    Right,
}

/// A plain text table: rows under the titles of columns.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of the given columns, without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { columns: columns.iter().map(|&(title, align)| (title.to_owned(), align)).collect(), rows: Vec::new() }
    }

    /// Appends a row; cells beyond the last column are dropped. Cells are made printable, since they may come from elsewhere.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// Writes titles and rows.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.clone()).collect();
        let widths = self.widths(&titles);
        self.line(out, &titles, &widths)?;
        self.rows.iter().try_for_each(|row| self.line(out, row, &widths))
    }

    /// Widths of the columns in characters, not bytes: names may be in any script.
    fn widths(&self, titles: &[String]) -> Vec<usize> {
        let mut widths = vec![0; titles.len()];
        for row in self.rows.iter().map(Vec::as_slice).chain([titles]) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    /// Writes a row. Trailing spaces are cut, so that a narrow terminal does not wrap needlessly.
    fn line(&self, out: &mut impl Write, cells: &[String], widths: &[usize]) -> io::Result<()> {
        let padded = cells.iter().zip(widths).zip(&self.columns).map(|((cell, &width), (_, align))| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_spaces() {
        let mut table = Table::new(&[("NAME", Align::Left), ("CALLS", Align::Right), ("NOTE", Align::Left)]);
        table.row(vec!["größe".into(), "7".into(), String::new()]);
        table.row(vec!["a".into(), "1234567".into(), "x\x1b\ny".into()]);
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        let expected = "NAME     CALLS  NOTE\ngröße        7\na      1234567  x  y\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_table_without_rows_has_its_titles() {
        let mut text = Vec::new();
        Table::new(&[("A", Align::Right)]).write(&mut text).unwrap();
        assert_eq!(text, b"A\n");
    }
}
