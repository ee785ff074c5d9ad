//! Rust code as words and signs.

/// Words and signs of code, without comments and without what stands in quotes. `::` and `->` are one sign each.
pub fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => quoted(rest),
            'r' if rest.starts_with("r\"") || rest.starts_with("r#\"") => raw(rest),
            'r' if rest.starts_with("r#") => 2,
            '\'' => match rest[1..].chars().next() {
                Some('\\') => 3 + rest[3..].find('\'').map_or(rest.len() - 3, |end| end + 1),
                Some(c) if rest[1 + c.len_utf8()..].starts_with('\'') => 2 + c.len_utf8(),
                // A lifetime.
                _ => {
                    found.push(&rest[..1]);
                    1
                }
            },
            c if c.is_whitespace() => c.len_utf8(),
            c => {
                let length = match c.is_alphanumeric() || c == '_' {
                    true => rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()),
                    false if rest.starts_with("::") || rest.starts_with("->") => 2,
                    false => c.len_utf8(),
                };
                found.push(&rest[..length]);
                length
            }
        };
        rest = &rest[length..];
    }
    found
}

/// Bytes of a string at the start of `rest`.
fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            '"' if !escaped => return i + 1,
            c => escaped = c == '\\' && !escaped,
        }
    }
    rest.len()
}

fn raw(rest: &str) -> usize {
    let end = if rest.starts_with("r#") { "\"#" } else { "\"" };
    rest[3..].find(end).map_or(rest.len(), |at| 3 + at + end.len())
}

pub fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Where the bracket closes that opens at a token; the number of tokens if nowhere.
pub fn pair(tokens: &[&str], open: usize) -> usize {
    let close = match tokens.get(open) {
        Some(&"(") => ")",
        Some(&"{") => "}",
        Some(&"<") => ">",
        _ => return tokens.len(),
    };
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        depth += usize::from(*token == tokens[open]);
        if *token == close {
            depth -= 1;
            if depth == 0 {
                return i;
            }
        }
    }
    tokens.len()
}
