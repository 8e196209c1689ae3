//! Text from elsewhere (peers, file names, images) made safe for a terminal or a log: one line, and no character that is obeyed or
//! invisible instead of being shown.

/// Returns whether a terminal acts on a character, or shows nothing for it: controls, formats, and ignorable characters of
/// Unicode 16 (general categories Cc, Cf, Zl and Zp, and the property `Default_Ignorable_Code_Point` of letters).
#[must_use]
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Returns the text as one line, with a space for each unprintable character.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_unprintable(letter) { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_becomes_a_space() {
        for hidden in "\0\n\u{1b}\u{7f}\u{9b}\u{ad}\u{61c}\u{115f}\u{180e}\u{200b}\u{202e}\u{2066}\u{3164}\u{feff}\u{ffa0}\u{fff9}\u{e0041}"
            .chars()
        {
            assert_eq!(printable(&format!("a{hidden}b")), "a b", "{hidden:?}");
        }
        let shown = "größe 日本 – “ж” é ☃ 👍";
        assert_eq!(printable(shown), shown);
    }
}
