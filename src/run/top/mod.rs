//! `top`: a live view of a running mount.
//!
//! Parties that only send each other messages: a thread that asks for the status, twice a second unless
//! the answer is large, one
//! for what is typed, one for whatever the user has asked for, one at a time, signals, and the
//! screen, which waits for none of them and is the only one to draw. What is shown is in `model`, without terminal or socket; `view` draws it.
//!
//! The terminal is put right again however it ends: by a key, an error, a panic or a signal. Nothing
//! here decides anything: an approval is for the set that was on the screen, and the daemon takes
//! it only if that is still the published one.

mod about;
mod model;
mod view;

use super::{Ask, Failure, mount, page};
use crate::cli::review;
use crate::control::{Reply, Verb};
use crate::domain::skill::Scope;
use model::{Model, Name, News, Next, Order, Then};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use rustix::process::Signal;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The time between two questions for the status.
const EVERY: Duration = Duration::from_millis(500);
/// Asking takes at most one part in so many of the time: a large mount makes large answers.
const SHARE: u32 = 50;
/// The longest time between two questions for the status.
const SELDOM: Duration = Duration::from_secs(10);
/// How often the screen is drawn without news: what it says of time goes on.
const REDRAW: Duration = Duration::from_secs(1);

/// What the threads tell the screen.
enum Told {
    News(News),
    /// The screen is to be drawn wholly anew.
    Redraw,
    /// The program is to stop, until it is continued.
    Stop,
    /// It was continued.
    Continued,
    /// It is over.
    End,
}

/// Shows a mount until the user has seen enough.
pub(super) fn top(ask: Ask) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !page::can_more_than_print() {
        let text = "top needs a terminal that it can draw on; for a file or a program: mount-skills status --json";
        return Err(Failure::Usage(text.into()));
    }
    // The first answer also says which mount it is about from now on.
    let asked_at = Instant::now();
    let status = ask.status(None)?;
    let pause = pause_after(asked_at.elapsed());
    let mountpoint = PathBuf::from(&status.mountpoint);
    let signals = mount::runtime(1)?;
    let (tell, told) = mpsc::channel();
    {
        let _guard = signals.enter();
        for (kind, what) in [
            (SignalKind::terminate(), (|| Told::End) as fn() -> Told),
            (SignalKind::hangup(), || Told::End),
            (SignalKind::interrupt(), || Told::End),
            (SignalKind::quit(), || Told::End),
            (SignalKind::from_raw(Signal::TSTP.as_raw()), || Told::Stop),
            (SignalKind::from_raw(Signal::CONT.as_raw()), || {
                Told::Continued
            }),
        ] {
            let (mut signal, tell) = (signal(kind)?, tell.clone());
            signals.spawn(async move {
                while signal.recv().await.is_some() {
                    let _ = tell.send(what());
                }
            });
        }
    }
    let (now, asked) = mpsc::channel();
    let model = Model::new(status, Instant::now());
    thread::spawn({
        let (tell, mountpoint) = (tell.clone(), mountpoint.clone());
        move || follow(&mountpoint, pause, &tell, &asked)
    });
    let looks = view::Looks::new(page::colours());
    let screen = Screen {
        mountpoint,
        tell,
        now,
    };
    // From here on the terminal is ours.
    let _restore = Restore;
    screen.run(model, &told, looks)
}

/// How long to wait before the next question, if the last one took so long.
fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(SHARE).clamp(EVERY, SELDOM)
}

/// Puts the terminal right again.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = ratatui::try_restore();
    }
}

/// Stops as a program does that leaves the terminal alone, unless nobody would continue it: then
/// nothing happens. Returns when it is continued.
fn stop(terminal: &mut DefaultTerminal) -> io::Result<()> {
    // A shell that knows of jobs gives each a process group of its own.
    if rustix::process::getsid(None)? == rustix::process::getpgrp() {
        return Ok(());
    }
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    // SIGTSTP is caught, so that we get here.
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    retake(terminal)
}

/// Makes the terminal ours again, whatever modes it is in.
fn retake(terminal: &mut DefaultTerminal) -> io::Result<()> {
    // What the library believes to be in force already, it does not set.
    disable_raw_mode()?;
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    redraw(terminal)
}

/// Has all of the screen drawn next time, whatever somebody else has drawn on it.
/// `Terminal::clear` would ask the terminal where its cursor is, and wait for the thread that reads.
fn redraw(terminal: &mut DefaultTerminal) -> io::Result<()> {
    let size = terminal.size()?;
    terminal.resize(Rect::from(size))
}

/// Passes on what is typed. A thread of its own, since the library does not return from a terminal
/// that has gone; the signal that comes with it ends the program.
fn listen(tell: &Sender<Told>) {
    loop {
        let told = match event::read() {
            Ok(Event::Key(key)) if is_control(&key, 'l') => Told::Redraw,
            Ok(Event::Key(key)) if is_control(&key, 'z') => {
                // To all of the job, as the terminal does when it is not ours; to us as well.
                let _ = rustix::process::kill_current_process_group(Signal::TSTP);
                continue;
            }
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                Told::News(News::Key(key, Instant::now()))
            }
            Ok(_) => Told::Redraw,
            Err(_) => Told::End,
        };
        let end = matches!(told, Told::End);
        if tell.send(told).is_err() || end {
            return;
        }
    }
}

fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Asks for the status for as long as somebody wants to know.
fn follow(mountpoint: &Path, mut pause: Duration, tell: &Sender<Told>, asked: &Receiver<()>) {
    loop {
        match asked.recv_timeout(pause) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
        let ask = Ask {
            mountpoint: Some(mountpoint.to_owned()),
        };
        let asked_at = Instant::now();
        let answer = ask.answer(&Verb::Status { label: None });
        let now = Instant::now();
        pause = pause_after(now - asked_at);
        let news = match answer {
            Ok(Reply::Status(status)) => News::Status(status, now, pause),
            Ok(_) => News::Gone(super::unexpected().to_string()),
            Err(e) => News::Gone(e.to_string()),
        };
        if tell.send(Told::News(news)).is_err() {
            return;
        }
    }
}

struct Screen {
    mountpoint: PathBuf,
    tell: Sender<Told>,
    /// Asks for the status before its time.
    now: Sender<()>,
}

impl Screen {
    fn run(
        &self,
        mut model: Model,
        told: &Receiver<Told>,
        looks: view::Looks,
    ) -> Result<(), Failure> {
        let mut terminal = ratatui::try_init()?;
        thread::spawn({
            let tell = self.tell.clone();
            move || listen(&tell)
        });
        loop {
            let now = Instant::now();
            terminal.draw(|frame| view::draw(frame, &mut model, looks, now))?;
            let mut next = told.recv_timeout(REDRAW).ok();
            while let Some(item) = next {
                match item {
                    Told::News(news) => match model.hear(news) {
                        Some(Next::Quit) => return Ok(()),
                        Some(Next::Ask(order)) => self.order(order),
                        None => {}
                    },
                    Told::Redraw => redraw(&mut terminal)?,
                    Told::Stop => stop(&mut terminal)?,
                    Told::Continued => {
                        retake(&mut terminal)?;
                        model.hear(News::Continued(Instant::now()));
                        let _ = self.now.send(());
                    }
                    Told::End => return Ok(()),
                }
                next = told.try_recv().ok();
            }
        }
    }

    /// Has an order carried out; its outcome is news.
    fn order(&self, order: Order) {
        let mountpoint = Some(self.mountpoint.clone());
        let (tell, now) = (self.tell.clone(), self.now.clone());
        thread::spawn(move || {
            let _ = tell.send(Told::News(carry_out(&Ask { mountpoint }, order)));
            let _ = now.send(());
        });
    }
}

fn carry_out(ask: &Ask, order: Order) -> News {
    let done = |verb: &Verb| match ask.answer(verb) {
        Ok(Reply::Done(text)) => Ok(text),
        Ok(_) => Err(super::unexpected()),
        Err(e) => Err(e),
    };
    let plain = |verb: &Verb| News::Done(done(verb).map_err(|e| e.to_string()));
    match order {
        Order::Look(skill, then) => look(ask, skill.exact, then),
        Order::Approve { skill, set } => {
            let verb = Verb::Approve {
                skill: skill.exact.clone(),
                set,
                scope: Scope::Read,
            };
            match done(&verb) {
                Err(Failure::Moved(why)) => News::Moved { skill, why },
                outcome => News::Done(outcome.map_err(|e| e.to_string())),
            }
        }
        Order::Refresh(Name { exact, .. }) => plain(&Verb::Refresh { target: exact }),
        Order::Release(Name { exact, .. }) => plain(&Verb::Release { target: exact }),
    }
}

fn look(ask: &Ask, skill: String, then: Then) -> News {
    match ask.answer(&Verb::Review { skill }) {
        Ok(Reply::Review(review)) => {
            let lines = review::approval(&review);
            News::Review(Box::new(review.detail), lines, then)
        }
        Ok(_) => News::Done(Err(super::unexpected().to_string())),
        Err(e) => News::Done(Err(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_large_answers_takes_a_small_part_of_the_time() {
        let after = |ms| pause_after(Duration::from_millis(ms)).as_millis();
        assert_eq!(after(0), 500);
        assert_eq!(after(10), 500);
        assert_eq!(after(80), 4000);
        assert_eq!(after(90_000), 10_000, "it hung, and is looked for again");
    }
}
