//! The manual: pages made from the definition of the command line, and one for mount(8).

use super::{Failure, say};
use crate::cli::{VERSION, help};
use clap_mangen::Man;
use roff::{Roff, roman};
use std::fs;
use std::path::Path;

/// The page of the link that mount(8) calls; the version is filled in.
const MOUNT_PAGE: &str = include_str!("../../contrib/man/mount.mount-skills.8");

/// Writes all pages to a directory, or prints the first one.
pub(super) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    let mut root = help::command().disable_help_subcommand(true);
    root.build();
    let Some(dir) = dir else {
        return say(page(&root, None)?);
    };
    let written = |e: std::io::Error| Failure::Failed(format!("{}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(written)?;
    for (name, text) in pages(&root)? {
        fs::write(dir.join(name), text).map_err(written)?;
    }
    Ok(())
}

/// Each page with the name of its file.
fn pages(root: &clap::Command) -> Result<Vec<(String, String)>, Failure> {
    let mut pages = vec![
        ("mount-skills.1".to_owned(), page(root, None)?),
        (
            "mount.mount-skills.8".to_owned(),
            MOUNT_PAGE.replace("@VERSION@", VERSION),
        ),
    ];
    for command in commands(root) {
        let name = format!("mount-skills-{}", command.get_name());
        pages.push((format!("{name}.1"), page(command, Some(&name))?));
        for part in command.get_subcommands() {
            let name = format!("{name}-{}", part.get_name());
            pages.push((format!("{name}.1"), page(part, Some(&name))?));
        }
    }
    Ok(pages)
}

/// The commands that people give. The help hides them all, to show them in groups.
fn commands(root: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    let given = |command: &&clap::Command| !help::examples(Some(command.get_name())).is_empty();
    root.get_subcommands().filter(given)
}

/// The page of a command, or of mounting.
fn page(command: &clap::Command, name: Option<&str>) -> Result<String, Failure> {
    let title = name.unwrap_or("mount-skills");
    // Its name is that of the page, and what the short help leaves out is here.
    let shown = command.clone().display_name(title.to_owned());
    let shown = shown.mut_args(|arg| arg.hide_short_help(false));
    let shown = match name {
        Some(_) => shown,
        None => shown.mut_subcommands(|sub| {
            let hide = help::examples(Some(sub.get_name())).is_empty();
            sub.hide(hide)
        }),
    };
    let man = Man::new(shown);
    // No date, so that the same sources make the same pages.
    let mut out =
        format!(".TH {title} 1 \"\" \"mount-skills {VERSION}\" \"Skills of MCP servers\"\n")
            .into_bytes();
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    rest(command, name).to_writer(&mut out)?;
    // Old tools take a page for Latin-1.
    let plain = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    Ok(String::from_utf8_lossy(&out).chars().map(plain).collect())
}

/// Examples, what goes for all commands, and where more is.
fn rest(command: &clap::Command, name: Option<&str>) -> Roff {
    let mut roff = Roff::new();
    let examples = help::examples(name.map(|_| command.get_name()));
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        roff.control("EX", []);
        for example in examples {
            roff.text([roman(*example)]);
        }
        roff.control("EE", []);
    }
    if name.is_none() {
        roff.control("SH", ["NOTES"]);
        for (n, note) in help::notes().lines().enumerate() {
            if n > 0 {
                roff.control("PP", []);
            }
            roff.text([roman(note)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(match name {
        Some(_) => "mount-skills(1)",
        None => "mount.mount-skills(8), fusermount3(1)",
    })]);
    roff
}
