//! Recorded sessions of servers in which something was changed: what may come of them.
//!
//! A session is all that a server answered, before and after a change of its skills; those in
//! tests/sessions were recorded from four servers and from the specification's example. One to
//! five mutations make another session of it. It is then played through the code that reads
//! replies, the host and its disk ([`core`]), or through a mount. What may come of it is said by
//! [`oracle`], which reads the session with rules of its own:
//!
//! - Bytes that a read gives were carried by a reply, and an entry of the session describes them;
//!   a SKILL.md's frontmatter is the entry's. Names are safe, and somebody named them.
//! - Every operation ends, nothing panics, and each blob in the cache is what its name says.
//! - A skill that no mutation touched reads to the byte.

mod core;
mod mount;
mod mutation;
mod oracle;
mod record;

use self::core::{Came, THREADS};
use mount_skills::domain::skill::{Approval, Hold, Policy};
use mutation::{Mutation, RECORDED, Session, mutation};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The sessions of one run; the environment variable says otherwise.
const SESSIONS: u32 = 2_000;
const SESSIONS_VAR: &str = "MOUNT_SKILLS_SESSIONS";
/// A session that takes longer hangs: one takes some hundredths of a second.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Case {
    session: usize,
    mutations: Vec<Mutation>,
    policy: Policy,
    order: u64,
}

impl Case {
    fn mutated(&self) -> Session {
        let mut session = RECORDED[self.session % RECORDED.len()].clone();
        self.mutations.iter().for_each(|m| m.apply(&mut session));
        session
    }
}

fn case() -> impl Strategy<Value = Case> {
    let hold = select(vec![Hold::Release, Hold::Release, Hold::Reload, Hold::None]);
    let approval = prop_oneof![4 => Just(Approval::Server), 1 => Just(Approval::Each)];
    let mutations = prop::collection::vec(mutation(), 1..=5);
    (0..RECORDED.len(), mutations, hold, approval, any::<u64>()).prop_map(
        |(session, mutations, hold, approval, order)| Case {
            session,
            mutations,
            policy: Policy { hold, approval },
            order,
        },
    )
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}
static POOL_PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics also where a runtime catches them.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(THREADS) {
                POOL_PANICS.fetch_add(1, Ordering::Relaxed);
            }
            PANICS.with(|n| n.set(n.get() + 1));
            before(info);
        }));
    });
}

/// Plays a session; a panic that somebody caught is one all the same.
fn play(case: &Case) -> Came {
    let before = (PANICS.get(), POOL_PANICS.load(Ordering::Relaxed));
    let start = Instant::now();
    let came = core::play(&case.mutated(), case.policy, case.order);
    assert_eq!(
        (PANICS.get(), POOL_PANICS.load(Ordering::Relaxed)),
        before,
        "I4: something panicked"
    );
    assert!(start.elapsed() < HANGS, "I2: it took {:?}", start.elapsed());
    came
}

#[test]
fn every_recorded_session_loads_whole() {
    count_panics();
    assert_eq!(RECORDED.len(), 6);
    for (i, session) in RECORDED.iter().enumerate() {
        let policy = Policy {
            hold: Hold::Release,
            approval: Approval::Server,
        };
        let came = play(&Case {
            session: i,
            mutations: Vec::new(),
            policy,
            order: 0,
        });
        let skills = [0, 1].map(|v| oracle::untouched(session, v).len() as u64);
        assert!(
            skills[0] > 0 && came.untouched == skills[0] + skills[1],
            "{}: {came:?}",
            session.name
        );
        let dynamic = if session.name == "paged" { 2 } else { 0 };
        assert_eq!(came.refused, dynamic, "{}", session.name);
    }
}

#[test]
fn whatever_is_changed_in_a_session_no_wrong_byte_is_read_and_what_was_not_touched_loads() {
    count_panics();
    let cases = std::env::var(SESSIONS_VAR).map_or(SESSIONS, |n| n.parse().unwrap());
    let run = |cases| {
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 2_000,
            ..Config::default()
        };
        let total = Cell::new(Came::default());
        let held = TestRunner::new(config).run(&case(), |case| {
            total.set(total.get() + play(&case));
            Ok(())
        });
        held.map(|()| total.get()).map_err(|e| e.to_string())
    };
    // On two threads: most of the time of one goes by while it waits for its disk.
    let sum = std::thread::scope(|scope| {
        let halves = [cases / 2, cases.div_ceil(2)].map(|n| scope.spawn(move || run(n)));
        let came = halves.map(|half| half.join().unwrap().unwrap_or_else(|e| panic!("{e}")));
        came[0] + came[1]
    });
    eprintln!("{cases} sessions: {sum:?}");
    let each = u64::from(cases);
    assert!(
        sum.read > 5 * each && sum.refused > each / 2 && sum.untouched > each,
        "worth little: {sum:?}"
    );
}

/// A recorded session with a text exchanged in the replies of one version, but not in contents.
fn retold(name: &str, version: usize, from: &str, to: &str) -> Session {
    let mut session = RECORDED.iter().find(|s| s.name == name).unwrap().clone();
    let mut found = 0;
    for reply in &mut session.versions[version] {
        if !matches!(reply.ask, mutation::Ask::Read(_)) {
            found += reply.text.matches(from).count();
            reply.text = reply.text.replace(from, to);
        }
    }
    assert!(found > 0, "{from:?} is not in {name}");
    session
}

/// The bytes were in memory under the right size; the kernel would have cut them at the wrong one.
#[test]
fn session_regression_bytes_in_memory_under_another_size() {
    count_panics();
    for hold in [Hold::None, Hold::Release, Hold::Reload] {
        let policy = Policy {
            hold,
            approval: Approval::Server,
        };
        for size in ["0", "10", "19"] {
            let session = retold("serve", 1, "\"size\":18}", &format!("\"size\":{size}}}"));
            let came = core::play(&session, policy, 0);
            assert_eq!(came.refused, 1, "{came:?}");
        }
    }
}
