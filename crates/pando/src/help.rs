//! How the texts behind the options of a command are set: paragraphs flow to the width of the terminal or page, and
//! lines that are indented stay as they are.
//!
//! Pure; uses nothing.

use clap::Command;

/// The command and its subcommands, with texts whose paragraphs are one line each, for clap to wrap.
pub fn flowing(command: Command) -> Command {
    let text = command.get_after_help().map(|text| paragraphs(&text.to_string()));
    let command = command.mut_subcommands(flowing);
    match text {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// Joins lines that follow each other, unless one of them is empty or indented.
fn paragraphs(text: &str) -> String {
    let mut out = String::new();
    let mut flows = false;
    for line in text.lines() {
        let is_flowing = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if flows && is_flowing { ' ' } else { '\n' });
        }
        out.push_str(line);
        flows = is_flowing;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_a_paragraph_are_joined() {
        let text = "One\ntwo:\n  - a list\n  - of two\nand\nmore.\n\nExamples: pando a\n          pando b";
        let flows = "One two:\n  - a list\n  - of two\nand more.\n\nExamples: pando a\n          pando b";
        assert_eq!(paragraphs(text), flows);
    }
}
