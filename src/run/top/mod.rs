//! `top`: a live view of a running mount.
//!
//! Parties that only send each other messages: a thread that asks for the status twice a second, one
//! for what is typed, one for whatever the user has asked for, one at a time, signals, and the
//! screen, which waits for none of them and is the only one to draw. What is shown is in `model`, without terminal or socket; `view` draws it.
//!
//! The terminal is put right again however it ends: by a key, an error, a panic or a signal. Nothing
//! here decides anything: an approval is for the set that was on the screen, and the daemon takes
//! it only if that is still the published one.

mod model;
mod view;

use super::{Ask, Failure, mount, page};
use crate::cli::review;
use crate::control::{Reply, Verb};
use crate::domain::skill::Scope;
use model::{Model, News, Order, Then};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The time between two questions for the status.
const EVERY: Duration = Duration::from_millis(500);
/// How often the screen is drawn without news: what it says of time goes on.
const REDRAW: Duration = Duration::from_secs(1);

/// Shows a mount until the user has seen enough.
pub(super) fn top(ask: Ask) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        let text = "top needs a terminal; for a file or a program: mount-skills status --json";
        return Err(Failure::Usage(text.into()));
    }
    // The first answer also says which mount it is about from now on.
    let status = ask.status(None)?;
    let mountpoint = PathBuf::from(&status.mountpoint);
    let signals = mount::runtime(1)?;
    let (tell, news) = mpsc::channel();
    {
        let _guard = signals.enter();
        for kind in [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ] {
            let (mut signal, tell) = (signal(kind)?, tell.clone());
            signals.spawn(async move {
                signal.recv().await;
                let _ = tell.send(News::End);
            });
        }
    }
    let (now, asked) = mpsc::channel();
    let model = Model::new(status, Instant::now());
    thread::spawn({
        let (tell, mountpoint) = (tell.clone(), mountpoint.clone());
        move || follow(&mountpoint, &tell, &asked)
    });
    let looks = view::Looks::new(page::colours());
    let screen = Screen {
        mountpoint,
        tell,
        now,
    };
    // From here on the terminal is ours.
    let _restore = Restore;
    screen.run(model, &news, looks)
}

/// Puts the terminal right again.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = ratatui::try_restore();
    }
}

/// Passes on what is typed. A thread of its own, since the library does not return from a terminal
/// that has gone; the signal that comes with it ends the program.
fn listen(tell: &Sender<News>) {
    loop {
        let news = match event::read() {
            Ok(Event::Key(key)) if is_control(&key, 'l') => News::Redraw,
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                News::Key(key, Instant::now())
            }
            Ok(_) => News::Redraw,
            Err(_) => News::End,
        };
        let end = matches!(news, News::End);
        if tell.send(news).is_err() || end {
            return;
        }
    }
}

fn is_control(key: &KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Asks for the status for as long as somebody wants to know.
fn follow(mountpoint: &std::path::Path, tell: &Sender<News>, asked: &Receiver<()>) {
    loop {
        match asked.recv_timeout(EVERY) {
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
        }
        let ask = Ask {
            mountpoint: Some(mountpoint.to_owned()),
        };
        let news = match ask.answer(&Verb::Status { label: None }) {
            Ok(Reply::Status(status)) => News::Status(status, Instant::now()),
            Ok(_) => News::Gone(super::unexpected().to_string()),
            Err(e) => News::Gone(e.to_string()),
        };
        if tell.send(news).is_err() {
            return;
        }
    }
}

struct Screen {
    mountpoint: PathBuf,
    tell: Sender<News>,
    /// Asks for the status before its time.
    now: Sender<()>,
}

impl Screen {
    fn run(
        &self,
        mut model: Model,
        news: &Receiver<News>,
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
            let mut next = news.recv_timeout(REDRAW).ok();
            while let Some(item) = next {
                if let News::Redraw = item {
                    // Whatever somebody else has drawn goes. `Terminal::clear` would ask the
                    // terminal where its cursor is, and wait for the thread that reads keys.
                    let size = terminal.size()?;
                    terminal.resize(Rect::from(size))?;
                }
                match model.hear(item) {
                    Some(Order::Quit) => return Ok(()),
                    Some(order) => self.order(order),
                    None => {}
                }
                next = news.try_recv().ok();
            }
        }
    }

    /// Has an order carried out; its outcome is news.
    fn order(&self, order: Order) {
        let mountpoint = Some(self.mountpoint.clone());
        let (tell, now) = (self.tell.clone(), self.now.clone());
        thread::spawn(move || {
            let _ = tell.send(carry_out(&Ask { mountpoint }, order));
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
        Order::Look(skill, then) => look(ask, &skill, then),
        Order::Approve { skill, set } => {
            let verb = Verb::Approve {
                skill: skill.clone(),
                set,
                scope: Scope::Read,
            };
            match done(&verb) {
                Err(Failure::Moved(why)) => News::Moved { skill, why },
                outcome => News::Done(outcome.map_err(|e| e.to_string())),
            }
        }
        Order::Refresh(target) => plain(&Verb::Refresh { target }),
        Order::Release(target) => plain(&Verb::Release { target }),
        Order::Quit => News::Done(Ok(String::new())),
    }
}

fn look(ask: &Ask, skill: &str, then: Then) -> News {
    let skill = skill.to_owned();
    match ask.answer(&Verb::Review { skill }) {
        Ok(Reply::Review(review)) => {
            let lines = review::approval(&review);
            News::Review(Box::new(review.detail), lines, then)
        }
        Ok(_) => News::Done(Err(super::unexpected().to_string())),
        Err(e) => News::Done(Err(e.to_string())),
    }
}
