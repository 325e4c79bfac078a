//! What `top` says in words: what each state means, all there is to know of one row, and the help.

use super::model::Row;
use crate::cli::review::{Line, Tone};
use crate::domain::text::printable;
use crate::host::Refusal;
use crate::host::report::{ServerStatus, UnusedStatus, count};

/// So many of the last lines that a server wrote to stderr are shown.
const STDERR: usize = 20;

/// They fit a screen of 80 columns and 24 rows.
const HELP: [&str; 22] = [
    "Up Down j k  select a row; PgUp PgDn Home End g G",
    "Tab          on to the servers, the skills, the refused reads",
    "Enter d      all of what is selected; of a skill also what changed in it",
    "a            look at a skill, and approve reading of its exact set",
    "r            refresh a skill: ask its server, move on to what it publishes",
    "R            release a skill: what was read is no longer kept as it was",
    "Ctrl-L       draw the screen anew         Ctrl-Z  leave it; fg comes back",
    "q Esc        back, or quit                Ctrl-C  quit",
    "",
    "Skills that want a look come first:",
    "needs-approval           nobody has approved it; it cannot be read",
    "changed, needs-approval  not what was approved any more; it cannot be read",
    "changed                  its server has something else than what was read",
    "changed (withdrawn)      its server no longer has what was read",
    "listed                   it can be read, and is not loaded now",
    "held                     it was read, and stays as it was",
    "dynamic                  its server publishes no digests: it is not checked",
    "revoked                  it was taken away and cannot be read",
    "declined                 its entry is not one that can be shown",
    "",
    "reads: asked of this mount. requests: asked of servers.",
    "Execution is approved with: mount-skills approve --exec SKILL",
];

pub(super) fn help() -> Vec<Line> {
    let lines = HELP.iter().map(|text| line(Tone::Plain, *text));
    lines.collect()
}

/// What a skill's state means, and which keys help.
pub(super) fn state(state: &str) -> &'static str {
    match state {
        "listed" => "it can be read, and is not loaded now",
        "held" => "it was read and stays as it was. r: move on to what its server has; R: let go",
        "needs-approval" => "it cannot be read until it is approved. Enter: look at it; a: approve",
        "changed, needs-approval" => {
            "it cannot be read: its server has another version than the approved one. Enter: what \
             changed; a: approve"
        }
        "changed" => {
            "its server has another version than the one that was read, which stays as far as it \
             is kept here. Enter: what changed; r: move on to the new one"
        }
        "changed (withdrawn)" => {
            "its server no longer has it; what was read stays as far as it is kept here. R: let go"
        }
        "revoked" => "it was taken away and cannot be read. a: look at it and approve it again",
        "dynamic" => "its server publishes no digests: what is read of it is not checked",
        _ => "",
    }
}

/// All there is to say of a server.
pub(super) fn server(server: &ServerStatus) -> Vec<Line> {
    let since = match server.for_s {
        Some(seconds) => format!(", for {seconds} s"),
        None => String::new(),
    };
    let heading = format!("server  {} ({}{since})", server.label, server.state);
    let mut out = vec![line(Tone::Heading, heading)];
    out.push(line(Tone::Plain, format!("target  {}", server.target)));
    let reasons = [&server.reason, &server.listing_reason];
    out.extend(
        reasons
            .into_iter()
            .flatten()
            .map(|r| line(Tone::Warning, r)),
    );
    let warnings = server.warnings.iter();
    out.extend(warnings.map(|w| line(Tone::Warning, format!("warning: {w}"))));
    if let (Some(name), Some(era), Some(protocol)) =
        (&server.calls_itself, &server.era, &server.protocol)
    {
        let text = format!("it calls itself {name:?}, revision {protocol}, by {era}");
        out.push(line(Tone::Plain, text));
    }
    let skills = count(server.skills.len(), "skill");
    let declined = server.declined.len();
    let text = format!("{skills}, {declined} declined; listing {}", server.listing);
    out.push(line(Tone::Plain, text));
    let Some(connection) = &server.connection else {
        return out;
    };
    let requests = connection.requests.iter().map(|(m, n)| format!("{m} {n}"));
    let requests: Vec<String> = requests.collect();
    let text = format!(
        "requests: {}; started {}",
        requests.join(", "),
        count(
            usize::try_from(connection.connects).unwrap_or(usize::MAX),
            "time"
        )
    );
    out.push(line(Tone::Plain, text));
    let stderr = connection
        .stderr
        .split("\\n")
        .filter(|l| !l.trim().is_empty());
    let stderr: Vec<&str> = stderr.collect();
    if !stderr.is_empty() {
        let text = format!(
            "the end of its stderr; more: mount-skills logs {}",
            server.label
        );
        out.push(line(Tone::Heading, text));
        let last = stderr.iter().skip(stderr.len().saturating_sub(STDERR));
        // It must not pass for a line of ours.
        out.extend(last.map(|l| line(Tone::Aside, format!("  {l}"))));
    }
    out
}

/// A server of the configuration that is not used.
pub(super) fn unused(unused: &UnusedStatus) -> Vec<Line> {
    vec![
        line(
            Tone::Heading,
            format!("server  {} (not used)", unused.label),
        ),
        line(Tone::Plain, format!("from    {}", unused.from)),
        line(Tone::Warning, &unused.reason),
    ]
}

/// A skill that is declined.
pub(super) fn declined(row: &Row) -> Vec<Line> {
    vec![
        line(Tone::Heading, format!("declined  {}", row.name.shown)),
        line(Tone::Plain, format!("entry     {}", row.name.exact)),
        line(Tone::Warning, &row.about),
    ]
}

/// Reads of a file that were refused.
pub(super) fn refused(refusal: &Refusal) -> Vec<Line> {
    let times = count(usize::try_from(refusal.times).unwrap_or(usize::MAX), "time");
    let heading = format!("refused  {} ({}, {times})", refusal.path, refusal.errno);
    let mut out = vec![
        line(Tone::Heading, heading),
        line(Tone::Plain, format!("URI      {}", refusal.uri)),
        line(Tone::Warning, &refusal.reason),
    ];
    let sides = [
        ("expected", &refusal.expected),
        ("found   ", &refusal.found),
    ];
    for (name, side) in sides {
        out.extend(
            side.iter()
                .map(|s| line(Tone::Plain, format!("{name} {s}"))),
        );
    }
    out.push(line(Tone::Plain, &refusal.next));
    out
}

fn line(tone: Tone, text: impl AsRef<str>) -> Line {
    let text = printable(text.as_ref(), usize::MAX);
    Line { tone, text }
}
