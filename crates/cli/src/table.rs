//! Tables without lines.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table with these columns; those at `numbers` are aligned to the right.
pub(crate) fn table<const N: usize>(header: [&str; N], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    // A word that is broken to fit a narrow terminal can be neither read nor searched for.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if place == 0 { 0 } else { 1 }, 1));
        if numbers.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
