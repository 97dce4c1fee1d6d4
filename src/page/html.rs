//! HTML into which values get escaped, and in no other way. Pure.
//!
//! Names, reasons and messages come from etcd, from plugins and from other machines. [`Html::text`] is the one way for them into a
//! document; markup is taken from literals of the program alone, by its type.

use std::fmt::{self, Display, Write as _};

/// A part of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// A part that holds this text.
    pub fn of(text: impl Display) -> Self {
        let mut html = Self::default();
        html.text(text);
        html
    }

    /// A text in an element of a class, which the style sheet knows.
    pub fn classed(class: &'static str, text: impl Display) -> Self {
        let mut html = Self::default();
        html.raw("<span class=\"")
            .raw(class)
            .raw("\">")
            .text(text)
            .raw("</span>");
        html
    }

    /// A link to another page of the web; the text alone where the address is none.
    pub fn link(address: &str, text: impl Display) -> Self {
        if !is_web_address(address) {
            return Self::of(text);
        }
        let mut html = Self::default();
        html.raw("<a rel=\"noreferrer\" href=\"")
            .text(address)
            .raw("\">")
            .text(text)
            .raw("</a>");
        html
    }

    /// Adds markup of the program's own.
    pub fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Adds a value: what it says, whatever that is, is text, also within the quotes of an attribute.
    pub fn text(&mut self, text: impl Display) -> &mut Self {
        // To write into a string never fails, and a `Display` that fails has written what it could.
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// Adds another part.
    pub fn part(&mut self, part: &Self) -> &mut Self {
        self.0.push_str(&part.0);
        self
    }

    /// The markup.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The markup.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Escapes what is written into it.
struct Escaped<'t>(&'t mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(' '),
                unseen if is_unseen(unseen) => self.0.push(char::REPLACEMENT_CHARACTER),
                seen => self.0.push(seen),
            }
        }
        Ok(())
    }
}

/// Control characters, and those that change the direction in which what follows is read: a value must not look like another one.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Whether a text is the address of a page, and no script: of the characters of an address alone.
fn is_web_address(text: &str) -> bool {
    let is_of_address = |byte: u8| byte.is_ascii_graphic() && !b"\"'<>\\^`{|}".contains(&byte);
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(is_of_address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn markup_in_a_value_is_text() {
        let hostile = "</td><script>alert('x' & \"y\")</script>";
        assert_eq!(
            Html::of(hostile).as_str(),
            "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;"
        );
    }

    #[test]
    fn a_value_within_an_attribute_does_not_end_it() {
        let address = "http://a/\" onclick=\"alert(1)";
        assert_eq!(Html::link(address, "x").as_str(), "x", "it is no address");
        let mut html = Html::default();
        html.raw("<td data-label=\"")
            .text("\"><img src=x onerror=alert(1)>")
            .raw("\">");
        assert_eq!(
            html.as_str(),
            "<td data-label=\"&quot;&gt;&lt;img src=x onerror=alert(1)&gt;\">"
        );
    }

    #[test]
    fn a_link_leads_to_a_page_and_never_to_a_script() {
        let link = Html::link("http://10.0.0.4:8080/?a=1&b=2", "r1");
        assert_eq!(
            link.as_str(),
            "<a rel=\"noreferrer\" href=\"http://10.0.0.4:8080/?a=1&amp;b=2\">r1</a>"
        );
        for address in [
            "",
            "http://",
            "javascript:alert(1)",
            "JaVaScRiPt:alert(1)",
            "data:text/html,x",
            "//a/",
            "http:a",
            " http://a/",
            "http://a/ b",
            "http://a/<b>",
            "http://a/\u{e9}",
        ] {
            assert_eq!(Html::link(address, "r1").as_str(), "r1", "{address}");
        }
    }

    #[test]
    fn what_cannot_be_seen_is_shown_as_such() {
        let reversed = "a\u{202e}b\u{0}c\u{1b}[31m\u{200b}d\ne\r";
        assert_eq!(
            Html::of(reversed).as_str(),
            "a\u{fffd}b\u{fffd}c\u{fffd}[31m\u{fffd}d e\u{fffd}"
        );
    }

    proptest! {
        #[test]
        fn no_text_adds_markup(text in any::<String>()) {
            let html = Html::of(&text);
            prop_assert!(!html.as_str().contains(['<', '>', '"', '\'']));
            // Each ampersand begins one of the five.
            for (at, _) in html.as_str().match_indices('&') {
                let rest = &html.as_str()[at..];
                let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
                prop_assert!(known.iter().any(|entity| rest.starts_with(entity)), "{rest}");
            }
        }
    }
}
