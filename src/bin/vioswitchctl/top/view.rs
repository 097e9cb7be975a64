//! How it is drawn: a head, the ports, a line about the keys. At 80 columns nothing is cut but long
//! names.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Table, TableState};

use super::model::{Model, Row, Sort};
use crate::show::human;

/// The height of a curve, by eighths.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Its width.
const CURVE: u16 = 9;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let parts = [Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(heading(model)), head);
    match &mut model.detail {
        Some(detail) => {
            let lines = detail.text.lines().count() as u16;
            let inside = body.height.saturating_sub(2);
            detail.scroll = detail.scroll.min(lines.saturating_sub(inside));
            let block = Block::bordered().title(format!(" {} ", detail.name));
            let text = Paragraph::new(detail.text.as_str()).block(block);
            frame.render_widget(text.scroll((detail.scroll, 0)), body);
        }
        None => {
            let mut state = TableState::default().with_selected(model.chosen);
            frame.render_stateful_widget(table(model), body, &mut state);
        }
    }
    frame.render_widget(Paragraph::new(keys(model)), foot);
}

/// The switch and its workers.
fn heading(model: &Model) -> Vec<Line<'static>> {
    let number = |key: &str| model.status[key].as_u64().unwrap_or(0);
    let (up, degraded) = (number("uptime"), &model.status["degraded"]);
    let version = model.status["version"].as_str().unwrap_or("?");
    let mut first = format!(
        "vioswitch {version}  up {}:{:02}:{:02}  ports {}  taps {}  addresses {}",
        up / 3600,
        up / 60 % 60,
        up % 60,
        number("ports"),
        number("taps"),
        number("addresses"),
    );
    let reasons = degraded.as_array().map_or(0, Vec::len);
    let first = match (&model.failure, reasons) {
        (Some(failure), _) => Line::from(failure.clone()).red().bold(),
        (None, 0) => Line::from(first).bold(),
        (None, count) => {
            first += &format!("  degraded: {count}, see vioswitchctl status");
            Line::from(first).red().bold()
        }
    };
    let busy = model.workers.iter().enumerate();
    let busy = busy.map(|(n, share)| format!("worker {n} {:3.0} %", share * 100.0));
    vec![first, Line::from(busy.collect::<Vec<_>>().join("  "))]
}

fn table(model: &Model) -> Table<'static> {
    let titles = [
        ("NAME", Some(Sort::Name)),
        ("STATE", None),
        ("IN f/s", None),
        ("IN bit/s", Some(Sort::In)),
        ("OUT f/s", None),
        ("OUT bit/s", Some(Sort::Out)),
        ("DROPS/s", Some(Sort::Drops)),
        ("REASON", None),
        ("", None),
    ];
    let title = titles.map(|(text, sort)| {
        let chosen = sort == Some(model.sort);
        Cell::from(text).style(if chosen { Style::new().underlined() } else { Style::new() })
    });
    let most = model.rows.iter().flat_map(|row| &row.history).fold(0.0, |a: f64, b| a.max(*b));
    let rows = model.rows.iter().map(|row| line(row, most));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(11),
        Constraint::Length(CURVE),
    ];
    Table::new(rows, widths)
        .header(TableRow::new(title).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn line(row: &Row, most: f64) -> TableRow<'static> {
    let rate = |number: f64| if number > 0.0 { human(number) } else { "-".to_owned() };
    let red = if row.drops > 0.0 { Style::new().red() } else { Style::new() };
    let state = if row.state == "attached" { Style::new() } else { Style::new().dim() };
    TableRow::new([
        Cell::from(row.name.clone()),
        Cell::from(row.state.clone()).style(state),
        Cell::from(rate(row.input.frames)),
        Cell::from(rate(row.input.bits)),
        Cell::from(rate(row.output.frames)),
        Cell::from(rate(row.output.bits)),
        Cell::from(rate(row.drops)).style(red),
        Cell::from(row.reason.clone()).style(red),
        Cell::from(curve(&row.history, most)),
    ])
}

/// The last rates as bars, compared with the highest of all ports.
fn curve(history: &[f64], most: f64) -> String {
    let last = &history[history.len().saturating_sub(CURVE.into())..];
    let bar = |rate: &f64| match most > 0.0 && *rate > 0.0 {
        true => BARS[((rate / most * 8.0) as usize).min(7)],
        false => ' ',
    };
    last.iter().map(bar).collect()
}

fn keys(model: &Model) -> Line<'static> {
    if model.typing {
        return Line::from(format!("/{}_  Enter keeps it, Esc shows all", model.filter));
    }
    let text = match (&model.detail, model.filter.is_empty()) {
        (Some(_), _) => "Esc back  Up/Down scroll  q quit".to_owned(),
        (None, true) => "Enter show  / filter  sort: n name i in o out d drops  q quit".to_owned(),
        (None, false) => format!("only */{}/*  Esc shows all  Enter show  q quit", model.filter),
    };
    Line::from(text).dim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_as_high_as_the_rate() {
        assert_eq!(curve(&[0.0, 1.0, 50.0, 100.0], 100.0), " ▁▅█");
        assert_eq!(curve(&[0.0, 0.0], 0.0), "  ");
        assert_eq!(curve(&[1.0; 60], 1.0).chars().count(), usize::from(CURVE));
    }
}
