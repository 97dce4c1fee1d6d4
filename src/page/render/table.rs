//! A table: on a wide screen one, on a narrow one a card for each row.

use crate::page::html::Html;
use crate::summary::Rows;

/// The titles of the columns, and how a row fills them.
pub struct Columns<'c, R, const N: usize> {
    /// What the table lists, for those who do not see it.
    pub caption: &'static str,
    /// A title for each column.
    pub titles: [&'static str; N],
    /// A cell for each column.
    pub cells: &'c dyn Fn(&R) -> [Html; N],
}

/// Adds a table of these rows, and says how many others there are. Without rows it says `none`.
pub fn add<R, const N: usize>(
    html: &mut Html,
    columns: &Columns<'_, R, N>,
    rows: &Rows<R>,
    none: &'static str,
) {
    if rows.first.is_empty() {
        html.raw("<p class=\"quiet\">").raw(none).raw("</p>\n");
        return;
    }
    // The roles stay where the style of a narrow screen takes the table apart.
    html.raw("<table role=\"table\">\n<caption>")
        .raw(columns.caption)
        .raw("</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">");
    for title in columns.titles {
        html.raw("<th role=\"columnheader\" scope=\"col\">")
            .raw(title)
            .raw("</th>");
    }
    html.raw("</tr></thead>\n<tbody role=\"rowgroup\">\n");
    for row in &rows.first {
        html.raw("<tr role=\"row\">");
        for (title, cell) in columns.titles.iter().zip((columns.cells)(row)) {
            html.raw("<td role=\"cell\" data-title=\"")
                .raw(title)
                .raw("\">")
                .part(&cell)
                .raw("</td>");
        }
        html.raw("</tr>\n");
    }
    html.raw("</tbody>\n</table>\n");
    if rows.more() > 0 {
        html.raw("<p class=\"more\">and ")
            .text(rows.more())
            .raw(" more</p>\n");
    }
}
