//! `top`: a live view of a running mount.
//!
//! Three parties that only send each other messages: a thread that asks for the status twice a
//! second, a thread for whatever the user has asked for, one at a time, and the screen, which
//! waits for neither. What is shown is in `model`, without terminal or socket; `view` draws it.
//!
//! The terminal is put right again however it ends: by a key, an error, a panic or a signal. Nothing
//! here decides anything: an approval is for the set that was on the screen, and the daemon takes
//! it only if that is still the published one.

mod model;
mod view;

use super::{Ask, Failure, mount, page};
use crate::control::{Reply, Verb};
use crate::domain::skill::Scope;
use crate::host::review::Review;
use model::{Model, News, Order, Then};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// The time between two questions for the status.
const EVERY: Duration = Duration::from_millis(500);
/// How long the screen waits for a key before it looks for news and signals.
const GLANCE: Duration = Duration::from_millis(100);
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
    let ended = Arc::new(AtomicBool::new(false));
    {
        let _guard = signals.enter();
        for kind in [
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
        ] {
            let (mut signal, ended) = (signal(kind)?, Arc::clone(&ended));
            signals.spawn(async move {
                signal.recv().await;
                ended.store(true, Ordering::Relaxed);
            });
        }
    }
    let (tell, news) = mpsc::channel();
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
    screen.run(model, &news, looks, &ended)
}

/// Puts the terminal right again.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = ratatui::try_restore();
    }
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
        let news = match ask.status(None) {
            Ok(status) => News::Status(Box::new(status), Instant::now()),
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
        ended: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut terminal = ratatui::try_init()?;
        let mut drawn: Option<Instant> = None;
        while !ended.load(Ordering::Relaxed) {
            while let Ok(item) = news.try_recv() {
                drawn = None;
                if let Some(order) = model.hear(item) {
                    self.order(order);
                }
            }
            if drawn.is_none_or(|at| at.elapsed() >= REDRAW) {
                let now = Instant::now();
                terminal.draw(|frame| view::draw(frame, &mut model, looks, now))?;
                drawn = Some(now);
            }
            let mut wait = GLANCE;
            while event::poll(wait)? {
                wait = Duration::ZERO;
                drawn = None;
                let order = match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => model.press(key),
                    _ => None,
                };
                match order {
                    Some(Order::Quit) => return Ok(()),
                    Some(order) => self.order(order),
                    None => {}
                }
            }
        }
        Ok(())
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
    let done = |verb: &Verb| match ask.reply(verb) {
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
    let review: Result<Review, Failure> = ask.review(skill);
    match review {
        Ok(review) => News::Review(Box::new(review), then),
        Err(e) => News::Done(Err(e.to_string())),
    }
}
