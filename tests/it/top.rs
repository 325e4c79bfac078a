//! `top`, on the terminal of a tmux.

use crate::rig::{BIN, Rig, kill, ok, processes_with, run, skill, until, wait};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

const EACH: &[&str] = &["--approval", "each"];

fn scene(x: &str) -> Value {
    json!({"skills": [skill("s", json!({"x": x})), skill("t", json!({}))]})
}

/// A terminal with a program in it; it ends with its tmux.
pub(crate) struct Terminal {
    dir: tempfile::TempDir,
}

impl Terminal {
    fn open(rig: &Rig, columns: usize, rows: usize) -> Self {
        let mount = rig.mount_point().display();
        let line = format!(
            "echo before; stty -g > $T/before; {BIN} top --mount {mount}; \
             echo code=$?; stty -g > $T/after; exec cat"
        );
        Self::with(rig, columns, rows, &line)
    }

    /// A terminal with a line of bash in it, which finds a directory of its own in $T.
    pub(crate) fn with(rig: &Rig, columns: usize, rows: usize, line: &str) -> Self {
        let terminal = Self {
            dir: tempfile::tempdir_in(rig.dir()).unwrap(),
        };
        let line = format!("T={}; {line}", terminal.dir.path().display());
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut command = rig.command("tmux");
        command.args(terminal.options());
        command.args(["new-session", "-d", "-x", &columns, "-y", &rows]);
        run(command.args(["bash", "-c", &line])).good();
        terminal
    }

    fn options(&self) -> [String; 5] {
        let socket = self.dir.path().join("tmux").display().to_string();
        ["-u", "-S", &socket, "-f", "/dev/null"].map(str::to_owned)
    }

    #[track_caller]
    fn tmux(&self, args: &[&str]) -> String {
        run(Command::new("tmux").args(self.options()).args(args)).good()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    #[track_caller]
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Writes over the screen, as another program would.
    fn scrawl(&self, text: &str) {
        let tty = self.tmux(&["display", "-p", "#{pane_tty}"]);
        fs::write(tty.trim_end(), format!("\x1b[3;9H{text}")).unwrap();
        self.shows(&[text]);
    }

    /// Waits until this is nowhere on the screen.
    #[track_caller]
    fn lacks(&self, part: &str) {
        until(&format!("no {part:?} on the screen"), 20.0, || {
            !self.screen().contains(part)
        });
    }

    /// The screen, once all of this is on it.
    #[track_caller]
    pub(crate) fn shows(&self, all: &[&str]) -> String {
        wait(&format!("{all:?} on the screen"), 20.0, || {
            let screen = self.screen();
            all.iter()
                .all(|part| screen.contains(part))
                .then_some(screen)
        })
    }

    /// Waits until `top` has ended, and checks that the terminal is as it was.
    #[track_caller]
    fn restored(&self) {
        let screen = self.shows(&["before", "code=0"]);
        assert!(!screen.contains("SKILLS"), "{screen}");
        self.as_before();
    }

    /// The terminal has the modes that it had before `top`, and a cursor.
    #[track_caller]
    fn as_before(&self) {
        let modes = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        until("the terminal's modes", 5.0, || {
            modes("after") == modes("before")
        });
        assert_eq!(
            self.tmux(&["display", "-p", "#{cursor_flag}#{alternate_on}"]),
            "10\n"
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.args(self.options()).arg("kill-server").output();
    }
}

#[test]
fn hr110_top_shows_the_mount_and_approves_what_was_on_the_screen() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("one\n"));
    rig.up(&["lab"], EACH);
    {
        let terminal = Terminal::open(&rig, 80, 24);
        terminal.shows(&[
            "lab ",
            "ready",
            "2 to look at",
            "> needs-approval",
            "lab/s",
            "q quit",
        ]);
        terminal.keys(&["a"]);
        let set = rig.set("lab/s");
        terminal.shows(&[
            "approve reading of exactly this set? y/n",
            "all of it has been on the screen",
            &format!("set     {set}"),
        ]);
        terminal.keys(&["n"]);
        terminal.shows(&["not approved"]);
        assert_eq!(rig.cat("lab/s/x"), Err("EACCES"));
        terminal.keys(&["a"]);
        terminal.shows(&["y/n"]);
        terminal.keys(&["y"]);
        terminal.shows(&[
            "approved lab/s",
            "1 to look at",
            "listed                  lab/s",
        ]);
        assert_eq!(rig.cat("lab/s/x"), ok("one\n"));
        // It follows what happens, and the window's size.
        rig.scene("lab", scene("two\n"));
        rig.in_state("lab/s", "changed, needs-approval");
        terminal.tmux(&["resize-window", "-x", "200", "-y", "40"]);
        let wide = terminal.shows(&["changed, needs-approval lab/s", "python3"]);
        let longest = wide.lines().map(|l| l.chars().count()).max();
        assert!(longest > Some(80), "{wide}");
        terminal.keys(&["g", "Enter"]);
        terminal.shows(&["-one", "+two", "=== x"]);
        terminal.keys(&["Escape"]);
        terminal.shows(&["SKILLS"]);
        terminal.keys(&["?"]);
        terminal.shows(&["Execution is approved with"]);
        terminal.keys(&["q", "q"]);
        terminal.restored();
    }
}

#[test]
fn top_alone_draws_on_its_screen_and_draws_all_of_it_anew_when_asked_to() {
    let mut rig = Rig::new();
    let mut slow = scene("x\n");
    slow["rules"] = json!([{"method": "skills/get", "delay": 3}]);
    rig.scene("lab", slow);
    rig.up(&["lab"], &[]);
    {
        let terminal = Terminal::open(&rig, 80, 24);
        terminal.shows(&["SKILLS", "lab/s"]);
        terminal.keys(&["r"]);
        terminal.shows(&["refreshing lab/s"]);
        let ours = || {
            let screen = terminal.screen();
            assert!(!screen.contains("waiting for the mount"), "{screen}");
            screen
        };
        until("the end of the refresh", 20.0, || {
            !ours().contains("refreshing lab/s")
        });
        kill(rig.daemon_pid(), Signal::STOP);
        until("word that the daemon hangs", 20.0, || {
            ours().contains("the daemon has not answered")
        });
        kill(rig.daemon_pid(), Signal::CONT);
        until("an answer of the daemon", 20.0, || {
            !ours().contains("the daemon has not answered")
        });
        terminal.scrawl("graffiti");
        terminal.keys(&["C-l"]);
        terminal.lacks("graffiti");
        terminal.scrawl("graffiti");
        terminal.tmux(&["resize-window", "-x", "90", "-y", "24"]);
        terminal.lacks("graffiti");
        terminal.shows(&["SKILLS", "lab/s"]);
        terminal.keys(&["q"]);
        terminal.restored();
    }
}

#[test]
fn hr110_a_skill_whose_name_holds_a_hidden_character_is_approved_and_no_other() {
    let mut rig = Rig::new();
    let of = |uri: &str| json!({"uri": uri, "files": {"x": "x\n"}});
    let (hidden, twin) = (
        "skill://te%E2%80%8Bam/s/SKILL.md",
        "skill://te%5Cu%7B200b%7Dam/s/SKILL.md",
    );
    rig.scene("lab", json!({"skills": [of(hidden), of(twin)]}));
    rig.up(&["lab"], EACH);
    {
        let terminal = Terminal::open(&rig, 80, 24);
        terminal.shows(&["2 to look at   1 of 2"]);
        for (n, uri) in [(1, hidden), (2, twin)] {
            let skills = rig.server("lab")["skills"].clone();
            let skills = skills.as_array().unwrap();
            let place = skills.iter().position(|s| s["uri"] == uri).unwrap();
            // What waits for an approval comes first; the other one is approved by then.
            terminal.keys(&["g"]);
            if n == 1 && place == 1 {
                terminal.keys(&["j"]);
            }
            terminal.keys(&["a"]);
            terminal.shows(&[&format!("URI     {uri}"), "y/n"]);
            terminal.keys(&["y"]);
            until("its approval", 20.0, || {
                let states = rig.server("lab")["skills"].clone();
                let open = states.as_array().unwrap().iter();
                let open = open.filter(|s| s["state"] == "listed").count();
                open == n
            });
            let left = format!("{} to look at", 2 - n);
            match n {
                1 => drop(terminal.shows(&[&left])),
                _ => terminal.lacks("to look at"),
            }
        }
        assert_eq!(rig.cat("lab/te\u{200b}am/s/x"), ok("x\n"));
        assert_eq!(rig.cat("lab/te\\u{200b}am/s/x"), ok("x\n"));
        terminal.keys(&["q"]);
        terminal.restored();
    }
}

#[test]
fn top_is_stopped_and_continued_as_a_job_of_a_shell() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    let mount = rig.mount_point().display();
    {
        let line = format!(
            "echo before; stty -g > $T/before; set -m; {BIN} top --mount {mount}; code=$?; \
             for n in 1 2 3; do echo stopped $n $code; stty -g > $T/after; \
             stty $(cat $T/before); read; \
             echo graffiti; fg; code=$?; done; echo code=$code; stty -g > $T/after; exec cat"
        );
        let terminal = Terminal::with(&rig, 80, 24, &line);
        let pid = || {
            let running = processes_with(&format!("top --mount {mount}"));
            let ours = running.into_iter().find(|(_, line)| line.starts_with(BIN));
            ours.expect("top runs").0
        };
        for n in 1..=3 {
            terminal.shows(&["SKILLS", "lab/s"]);
            match n {
                1 => terminal.keys(&["C-z"]),
                2 => kill(pid(), Signal::TSTP),
                // It cannot see this one come.
                _ => kill(pid(), Signal::STOP),
            }
            if n == 3 {
                until("the shell's word", 20.0, || {
                    terminal.screen().contains("stopped 3")
                });
            } else {
                let screen = terminal.shows(&["before", &format!("stopped {n} ")]);
                assert!(!screen.contains("SKILLS"), "{screen}");
                terminal.as_before();
            }
            terminal.keys(&["Enter"]);
            terminal.shows(&["SKILLS", "lab/s", "q quit"]);
            terminal.lacks("graffiti");
            // One key at a time, and none of them shown.
            terminal.keys(&["?"]);
            terminal.shows(&["Execution is approved with"]);
            terminal.keys(&["q"]);
        }
        terminal.shows(&["SKILLS", "lab/s"]);
        terminal.keys(&["q"]);
        terminal.restored();
    }
    // Nobody would continue it here.
    let terminal = Terminal::open(&rig, 80, 24);
    terminal.shows(&["SKILLS", "lab/s"]);
    terminal.keys(&["C-z", "?"]);
    terminal.shows(&["Execution is approved with"]);
    terminal.keys(&["q", "q"]);
    terminal.restored();
    drop(terminal);
}

#[test]
fn top_on_a_terminal_that_cannot_be_drawn_on_says_so() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    let mount = rig.mount_point().display();
    let line = format!("TERM=dumb {BIN} top --mount {mount}; echo code=$?; exec cat");
    let terminal = Terminal::with(&rig, 200, 24, &line);
    terminal.shows(&["needs a terminal that it can draw on", "code=2"]);
    drop(terminal);
}

#[test]
fn top_puts_the_terminal_right_when_a_signal_ends_it() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    for signal in [Signal::TERM, Signal::HUP] {
        let terminal = Terminal::open(&rig, 80, 24);
        terminal.shows(&["SKILLS", "lab/s"]);
        let mount = rig.mount_point().display();
        let running = processes_with(&format!("top --mount {mount}"));
        let program = |(_, line): &&(i32, String)| line.starts_with(BIN);
        let (pid, _) = running.iter().find(program).expect("top runs");
        kill(*pid, signal);
        terminal.restored();
    }
}

#[test]
fn top_ends_with_its_terminal() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    let terminal = Terminal::open(&rig, 80, 24);
    terminal.shows(&["SKILLS", "lab/s"]);
    let top = format!("top --mount {}", rig.mount_point().display());
    drop(terminal);
    until("top to end", 10.0, || processes_with(&top).is_empty());
}

#[test]
fn top_says_that_the_daemon_has_gone_and_goes_on_when_it_is_back() {
    let mut rig = Rig::new();
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    let terminal = Terminal::open(&rig, 80, 24);
    terminal.shows(&["SKILLS", "lab/s"]);
    rig.kill_daemon();
    terminal.shows(&["the daemon is gone", "lab/s"]);
    rig.up(&["lab"], EACH);
    terminal.shows(&["the daemon is back", "approval each"]);
    terminal.keys(&["q"]);
    terminal.restored();
    drop(terminal);
}

#[test]
fn top_without_a_terminal_or_a_mount_says_so() {
    let mut rig = Rig::new();
    let none = Terminal::open(&rig, 80, 24);
    none.shows(&["no mount-skills is running", "code=1"]);
    rig.scene("lab", scene("x\n"));
    rig.up(&["lab"], &[]);
    let piped = rig.tell(&["top"]);
    assert!(
        piped.code == Some(2)
            && piped.err.contains("needs a terminal")
            && piped.err.contains("status --json"),
        "{piped:?}"
    );
}
