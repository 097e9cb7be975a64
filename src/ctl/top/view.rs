//! Draws the screen: a head, the ports, and the meaning of the keys. Each column is as wide as its
//! widest cell. A narrow screen has fewer columns; the curves get the rest of a wide screen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState};

use api::config::Kind;
use api::wire::State;
use base::words::counted;

use super::model::{HISTORY, Model, Row, Sort};
use crate::show::human;
use crate::span::span;

/// Heights of a bar of a curve, by eighths.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Least width of a curve; the table leaves a narrower curve out.
const MIN_CURVE: usize = 4;

/// A column: its title, and how much room its cells may take.
struct Column {
    title: &'static str,
    sort: Option<Sort>,
    /// Least and greatest width: the column is as wide as its widest cell.
    width: [usize; 2],
    /// Rank of the column: the table leaves out columns with the lowest rank first.
    rank: u8,
    align: Alignment,
    cell: fn(&Row) -> String,
}

macro_rules! columns {
    ($($title:literal $align:ident $width:expr, $sort:expr, $rank:literal, $cell:expr;)*) => {
        &[$(Column {
            title: $title,
            sort: $sort,
            width: $width,
            rank: $rank,
            align: Alignment::$align,
            cell: $cell,
        },)*]
    };
}

const COLUMNS: &[Column] = columns! {
    "NAME" Left [4, 64], Some(Sort::Name), 7, |row| row.name.clone();
    "STATE" Left [9, 11], None, 2, |row| row.state.to_string();
    "IN f/s" Right [6, 6], None, 1, |row| rate(row.rates.r#in.frames);
    "IN bit/s" Right [8, 8], Some(Sort::In), 5, |row| rate(8.0 * row.rates.r#in.bytes);
    "OUT f/s" Right [7, 7], None, 1, |row| rate(row.rates.out.frames);
    "OUT bit/s" Right [9, 9], Some(Sort::Out), 6, |row| rate(8.0 * row.rates.out.bytes);
    "DROPS/s" Right [7, 7], Some(Sort::Drops), 4, |row| rate(row.drops());
    "REASON" Left [9, 16], None, 3, |row| row.reason.clone();
};

fn rate(number: f64) -> String {
    if number > 0.0 { human(number) } else { "- ".to_owned() }
}

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let area = frame.area();
    let (heading, keys) = (heading(model, area.width), keys(model, area.width));
    // Many workers on a small screen leave room for the ports.
    let most = (area.height / 3).max(2);
    let height = |lines: &[Line<'_>]| Constraint::Length((lines.len() as u16).min(most));
    let parts = [height(&heading), Constraint::Min(1), height(&keys)];
    let [head, body, foot] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(heading), head);
    match &mut model.detail {
        Some(detail) => {
            let lines = detail.text.lines().count() as u16;
            let inside = body.height.saturating_sub(2);
            detail.scroll = detail.scroll.min(lines.saturating_sub(inside));
            // The block has no borders at its sides, because the text is as wide as the terminal.
            let block = Block::new().borders(Borders::TOP | Borders::BOTTOM);
            let block = block.title(format!(" {} ", detail.name));
            let text = Paragraph::new(detail.text.as_str()).block(block);
            frame.render_widget(text.scroll((detail.scroll, 0)), body);
        }
        None => {
            let mut state = TableState::default().with_selected(model.chosen);
            frame.render_stateful_widget(table(model, area.width.into()), body, &mut state);
        }
    }
    frame.render_widget(Paragraph::new(keys), foot);
}

/// Returns the items in as few lines as possible, with two blanks between two items.
fn lines(items: impl IntoIterator<Item = String>, width: u16, style: Style) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + item.chars().count() <= width.into() => {
                *line = format!("{line}  {item}");
            }
            _ => lines.push(item),
        }
    }
    lines.into_iter().map(|line| Line::from(line).style(style)).collect()
}

/// Returns the lines about the switch and its workers.
fn heading(model: &Model, width: u16) -> Vec<Line<'static>> {
    let status = &model.status;
    let mut first = vec![
        format!("vioswitch {}", status.version),
        format!("up {}", span(status.uptime)),
        counted(status.counts.of(Kind::Port), "port"),
        counted(status.counts.of(Kind::Tap), "tap"),
        counted(status.addresses, "address"),
    ];
    let mut style = Style::new().bold();
    match status.degraded.len() {
        0 => {}
        count => {
            first.push(format!("degraded: {count}, see vioswitchctl status"));
            style = style.red();
        }
    }
    if let Some(failure) = &model.failure {
        first = failure.split(": ").map(str::to_owned).collect();
        style = style.red();
    }
    let mut told = lines(first, width, style);
    let busy = model.workers.iter().enumerate();
    let busy = busy.map(|(n, share)| format!("worker {n} {:3.0} %", share * 100.0));
    told.extend(lines(busy, width, Style::new()));
    told
}

/// Returns the columns that fit, each with its width, and the width that remains for the curves.
fn fitting(rows: &[Row], width: usize) -> (Vec<(&'static Column, usize)>, usize) {
    let widths = COLUMNS.iter().map(|column| {
        let [least, most] = column.width;
        let widest = rows.iter().map(|row| (column.cell)(row).chars().count()).max();
        (column, widest.unwrap_or(0).clamp(least, most))
    });
    let mut columns: Vec<(&Column, usize)> = widths.collect();
    loop {
        let taken = columns.iter().map(|(_, width)| width + 1).sum::<usize>();
        let least = columns.iter().map(|(column, _)| column.rank).min().unwrap_or(0);
        if taken <= width + 1 || columns.len() == 1 {
            return (columns, width.saturating_sub(taken).min(HISTORY));
        }
        columns.retain(|(column, _)| column.rank > least);
    }
}

fn table(model: &Model, width: usize) -> Table<'static> {
    let (columns, curves) = fitting(&model.rows, width);
    let title = columns.iter().map(|(column, _)| {
        let chosen = column.sort.is_some_and(|sort| sort == model.sort);
        let title = Cell::from(Line::from(column.title).alignment(column.align));
        if chosen { title.underlined() } else { title }
    });
    let most = model.rows.iter().flat_map(|row| &row.history).fold(0.0, |a: f64, b| a.max(*b));
    let rows = model.rows.iter().map(|row| {
        let cells = columns.iter().map(|(column, _)| cell(column, row));
        let curve = (curves >= MIN_CURVE).then(|| curve(&row.history, most, curves).into());
        TableRow::new(cells.chain(curve))
    });
    let mut widths: Vec<_> =
        columns.iter().map(|(_, width)| Constraint::Length(*width as u16)).collect();
    widths.extend((curves >= MIN_CURVE).then_some(Constraint::Length(curves as u16)));
    Table::new(rows, widths)
        .header(TableRow::new(title).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn cell(column: &Column, row: &Row) -> Cell<'static> {
    let cell = Cell::from(Line::from((column.cell)(row)).alignment(column.align));
    match column.title {
        "STATE" if row.state != State::Attached => cell.dim(),
        "DROPS/s" | "REASON" if row.drops() > 0.0 => cell.red(),
        _ => cell,
    }
}

/// Returns the last rates as bars, compared with `most`, the highest rate of all ports.
fn curve(history: &[f64], most: f64, width: usize) -> String {
    let last = &history[history.len().saturating_sub(width)..];
    let bar = |rate: &f64| match most > 0.0 && *rate > 0.0 {
        true => BARS[((rate / most * 8.0) as usize).min(7)],
        false => ' ',
    };
    last.iter().map(bar).collect()
}

fn keys(model: &Model, width: u16) -> Vec<Line<'static>> {
    if model.typing {
        return vec![Line::from(format!("/{}_  Enter keeps it, Esc shows all", model.filter))];
    }
    let filter = format!("only */{}/*", model.filter);
    let items: &[&str] = match (&model.detail, model.filter.is_empty()) {
        (Some(_), _) => &["Esc back", "Up/Down scroll", "q quit"],
        (None, true) => &["Enter show", "/ filter", "sort: n name i in o out d drops", "q quit"],
        (None, false) => &[&filter, "Esc shows all", "Enter show", "q quit"],
    };
    lines(items.iter().map(|item| (*item).to_owned()), width, Style::new().dim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::{Rate, Rates};

    fn row(name: &str, state: State, reason: &str) -> Row {
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let r#in = Rate { drops: 1.0, ..Rate::default() };
        let rates = Rates { r#in, ..Rates::default() };
        Row { name, state, reason, rates, ..Row::default() }
    }

    #[test]
    fn a_curve_is_as_high_as_the_rate() {
        assert_eq!(curve(&[0.0, 1.0, 50.0, 100.0], 100.0, 9), " ▁▅█");
        assert_eq!(curve(&[0.0, 0.0], 0.0, 9), "  ");
        assert_eq!(curve(&[1.0; 60], 1.0, 9).chars().count(), 9);
    }

    /// A column is shown whole or not at all; the column with the lowest rank goes first.
    #[test]
    fn columns_are_those_that_there_is_room_for() {
        let rows = [
            row("database", State::Negotiating, "uplink_to_uplink"),
            row("a-name-of-some-length", State::Attached, "hairpin"),
        ];
        let titles = |rows: &[Row], width: usize| {
            let (columns, curves) = fitting(rows, width);
            let taken: usize = columns.iter().map(|(_, width)| width + 1).sum();
            assert!(taken + curves <= width + 1, "{width}");
            let titles = columns.iter().map(|(column, _)| column.title);
            (titles.collect::<Vec<_>>().join(" "), curves)
        };
        let all = "NAME STATE IN f/s IN bit/s OUT f/s OUT bit/s DROPS/s REASON";
        for (width, wanted, curves) in [
            (200, all, HISTORY),
            (120, all, 27),
            (80, "NAME STATE IN bit/s OUT bit/s DROPS/s REASON", 2),
            (50, "NAME IN bit/s OUT bit/s DROPS/s", 1),
            (40, "NAME IN bit/s OUT bit/s", 0),
            (24, "NAME", 2),
        ] {
            assert_eq!(titles(&rows, width), (wanted.to_owned(), curves), "{width}");
        }
        assert_eq!(titles(&[row("vm1", State::Attached, "")], 80), (all.to_owned(), 13));
        let narrow = "NAME IN bit/s OUT bit/s DROPS/s REASON";
        assert_eq!(titles(&[row("vm1", State::Attached, "")], 50), (narrow.to_owned(), 8));
    }

    #[test]
    fn items_go_on_in_the_next_line() {
        let told = |width| {
            let items = ["one", "two", "three"].map(str::to_owned);
            let lines = lines(items, width, Style::new());
            lines.iter().map(ToString::to_string).collect::<Vec<_>>().join("|")
        };
        assert_eq!(told(80), "one  two  three");
        assert_eq!(told(10), "one  two|three");
        assert_eq!(told(1), "one|two|three");
    }
}
