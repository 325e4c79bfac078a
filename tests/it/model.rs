//! The host against a model of what it should do, step by step.
//!
//! [`Model`] says in plain maps what the design promises of one server: what it is known to
//! publish, what is held, what the user said, what is cached. The host runs over [`Fake`]
//! sources with its real cache and state in a directory of its own, without FUSE and without
//! MCP, and every random step is done to both. After each step they must agree on names and
//! sizes, states, what is on disk, what went over the wire, and what a read gives.
//!
//! Time is the runtime's own clock: it stands still while anything is under way, also on disk,
//! and jumps when all waits. So "settled" is exact, and an hour passes at once. Some steps do
//! not wait for the one before to settle.
//!
//! Not modelled: steps at the very same time but for several readers of one file; dynamic
//! skills; paths in conflict; a full or loosened disk, damaged state; several daemons; a crash
//! before the journal is written; and the pages that a kernel keeps of a file that left the tree
//! while it could be read, for whoever has it open.

mod reference;
mod server;
mod world;

use mount_skills::domain::digest::Digest;
use mount_skills::domain::manifest::{Declined, Entry as Parsed};
use mount_skills::domain::skill::{self, Approval, Hold, Policy, Scope};
use mount_skills::domain::tree::{Absent, Change, Kind, Lookup, ROOT, Tree, View};
use mount_skills::domain::verify::Untrusted;
use mount_skills::host::command::Trouble;
use mount_skills::host::report::{ServerStatus, Status};
use mount_skills::host::{Host, ReadError, Server as HostServer};
use mount_skills::source::{Answer, Era, Event, Figures, Link, Listing, Peer, Source, SourceError};
use mount_skills::store::cache::{Cache, DEFAULT_CAP};
use mount_skills::store::state::State;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reference::{Model, Standing, Verdict, readable};
use serde_json::json;
use server::{Corrupt, Entry, Fake, Server, Wire, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};
use world::World;

/// The sequences of one run; the environment variable says otherwise.
const CASES: u32 = 256;
const CASES_VAR: &str = "MOUNT_SKILLS_MODEL_CASES";
const TTL: Duration = Duration::from_secs(600);
/// After this long no window is unknown to the tree and no failure is remembered.
const SETTLED: Duration = Duration::from_millis(3300);
/// The kernel hears of a change within this time, which is nothing to the others.
const KERNEL: Duration = Duration::from_millis(5);

// What there is in this small world: two servers, three skills, six files, three bodies.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum L {
    A,
    B,
}
use L::{A, B};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sk {
    Out,
    In,
    Own,
}
use Sk::{In, Out, Own};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum F {
    OutMd,
    OutX,
    InMd,
    InX,
    OwnMd,
    OwnX,
}
use F::{InMd, InX, OutMd, OutX, OwnMd, OwnX};

type Body = u8;
type Rows = BTreeMap<F, Body>;

const LABELS: [L; 2] = [A, B];
const SKILLS: [Sk; 3] = [Out, In, Own];
const FILES: [F; 6] = [OutMd, OutX, InMd, InX, OwnMd, OwnX];

impl L {
    fn name(self) -> &'static str {
        ["a", "b"][self as usize]
    }

    fn slot(self) -> u16 {
        self as u16 + 1
    }
}

impl Sk {
    fn dir(self) -> &'static str {
        ["out", "out/in", "own"][self as usize]
    }

    fn md(self) -> F {
        [OutMd, InMd, OwnMd][self as usize]
    }

    fn of_uri(uri: &str) -> Option<Self> {
        SKILLS.into_iter().find(|s| s.md().uri() == uri)
    }
}

impl F {
    fn path(self) -> &'static str {
        let names = [
            "out/SKILL.md",
            "out/x",
            "out/in/SKILL.md",
            "out/in/x",
            "own/SKILL.md",
            "own/x",
        ];
        names[self as usize]
    }

    fn uri(self) -> String {
        format!("skill://{}", self.path())
    }

    /// The skills that may list it, the inner one first.
    fn skills(self) -> &'static [Sk] {
        match self {
            OutMd | OutX => &[Out],
            InMd | InX => &[In, Out],
            OwnMd | OwnX => &[Own],
        }
    }

    /// Plain files share their bodies, so that one digest is at several URIs.
    fn bytes(self, body: Body) -> Vec<u8> {
        let Some(skill) = SKILLS.into_iter().find(|s| s.md() == self) else {
            return [&b"one\n"[..], b"two\n", b"three\n"][usize::from(body)].into();
        };
        let name = skill.dir().rsplit('/').next().unwrap();
        let rest = ["", "\n", "\n\n"][usize::from(body)];
        format!(
            "---\nname: {name}\ndescription: {}\n---\n{rest}",
            describe(body)
        )
        .into()
    }

    fn digest(self, body: Body) -> Digest {
        Digest::of(&self.bytes(body))
    }
}

/// The description in the SKILL.md of this body; two bodies have the same.
fn describe(body: Body) -> &'static str {
    ["d", "e", "d"][usize::from(body)]
}

// The steps.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Done,
    Failed,
    Moved,
}

impl<T> From<Result<T, Trouble>> for Said {
    fn from(result: Result<T, Trouble>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(Trouble::Failed(_)) => Self::Failed,
            Err(Trouble::Moved(_)) => Self::Moved,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    All,
    Inner,
    Outer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Flip,
    Truncate,
    Remove,
}

#[derive(Debug, Clone, Copy)]
enum Tweak {
    Publish(Sk),
    /// The content of a file and what these entries say of it.
    Rotate(F, Body, Who),
    /// A file enters a skill's entry, or leaves it.
    Toggle(Sk, F),
    /// The frontmatter of an entry is not its SKILL.md's any more, or again.
    Lie(Sk),
    Withdraw(Sk),
    Bad(Sk),
    /// What comes for a file is not its content, or is again.
    Corrupt(F, Option<Corrupt>),
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// A server changes what it publishes.
    Server(L, Tweak),
    Up(L, bool),
    /// A listing arrives, whole or without one skill.
    List(L, Option<Sk>),
    /// Somebody looks, perhaps after the listing's time.
    Look(L, bool),
    Read(L, F, usize),
    Refresh(L, Option<Sk>),
    Release(L, Option<Sk>),
    Name(L, Sk),
    /// The newest set, or one of the sets that were published.
    Approve(L, Sk, Option<usize>, Scope),
    Revoke(L, Sk),
    Tamper(L, usize, Damage),
    Restart {
        crash: bool,
    },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    /// Whether the servers have listed before the first step.
    listed: bool,
    /// Steps, and whether the next one comes before the tree knows of new windows.
    ops: Vec<(Op, bool)>,
}

/// Does all steps to the host and to the model.
fn agree(case: &Case) {
    let mut world = World::new(case.policy);
    world.settle();
    world.check();
    for l in LABELS {
        world.up(l, true);
        if case.listed {
            world.list(l, None);
        }
    }
    world.settle();
    world.check();
    let mut late = false;
    for (op, hurry) in &case.ops {
        if late && must_settle(*op, &world) {
            world.settle();
        }
        let wires = world.step(*op);
        world.run(async { sleep(2 * KERNEL).await });
        // Skills that one read asks for are taken in one after the other.
        world.check_pages();
        late = *hurry;
        if !late {
            world.settle();
        }
        world.check_wire(wires, &format!("by {op:?}"));
        if !late {
            world.check();
        }
    }
    world.settle();
    world.check();
    for (l, file) in LABELS.into_iter().flat_map(|l| FILES.map(|f| (l, f))) {
        let mut wires = <[Wire; 2]>::default();
        wires[l as usize] = world.read(l, file, 1).0;
        world.settle();
        world.check_wire(wires, &format!("by the last read of {l:?} {file:?}"));
    }
    world.check();
}

/// What is not done in a hurry: the disk must be still, and new windows known where they decide
/// which inode is meant.
fn must_settle(op: Op, world: &World) -> bool {
    match op {
        Op::Tamper(..) | Op::Restart { .. } => true,
        Op::Read(l, file, _) => {
            let claims = world.models[l as usize].claims(file, world.policy);
            let first = claims.first().map(|c| c.row);
            claims.iter().any(|c| Some(c.row) != first)
        }
        _ => false,
    }
}

/// What a server may do to these skills.
fn change(skills: &'static [Sk]) -> impl Strategy<Value = (L, Op)> {
    let l = || prop_oneof![4 => Just(A), 1 => Just(B)];
    let sk = || prop::sample::select(skills);
    let who = prop_oneof![3 => Just(Who::All), 1 => Just(Who::Inner), 1 => Just(Who::Outer)];
    prop_oneof![
        1 => (l(), sk()).prop_map(|(l, s)| (l, Op::Server(l, Tweak::Publish(s)))),
        4 => (l(), file(skills), 0..3u8, who).prop_map(|(l, f, b, w)| (l, Op::Server(l, Tweak::Rotate(f, b, w)))),
        2 => (l(), sk(), file(skills)).prop_map(|(l, s, f)| (l, Op::Server(l, Tweak::Toggle(s, f)))),
        1 => (l(), sk()).prop_map(|(l, s)| (l, Op::Server(l, Tweak::Lie(s)))),
        1 => (l(), sk()).prop_map(|(l, s)| (l, Op::Server(l, Tweak::Withdraw(s)))),
        1 => (l(), sk()).prop_map(|(l, s)| (l, Op::Server(l, Tweak::Bad(s)))),
    ]
}

fn file(skills: &'static [Sk]) -> impl Strategy<Value = F> {
    let files = FILES
        .into_iter()
        .filter(|f| skills.contains(&f.skills()[0]));
    prop::sample::select(files.collect::<Vec<_>>())
}

/// One step, or a change with the listing that tells of it.
fn ops(skills: &'static [Sk]) -> impl Strategy<Value = Vec<Op>> {
    use Corrupt::{Flip, Malformed, OtherFile, Short, Silent, Unknown};
    let l = || prop_oneof![4 => Just(A), 1 => Just(B)];
    let sk = || prop::sample::select(skills);
    let some_sk = || prop::option::of(sk());
    let scope = prop_oneof![Just(Scope::Read), Just(Scope::ReadAndExecute)];
    let corrupt = prop::sample::select(&[Flip, Short, OtherFile, Unknown, Malformed, Silent][..]);
    let damage = prop::sample::select(&[Damage::Flip, Damage::Truncate, Damage::Remove][..]);
    let readers = prop_oneof![3 => Just(1), 1 => Just(3)];
    let one = prop_oneof![
        4 => (l(), file(skills), prop::option::weighted(0.7, corrupt))
            .prop_map(|(l, f, c)| Op::Server(l, Tweak::Corrupt(f, c))),
        2 => (l(), any::<bool>()).prop_map(|(l, up)| Op::Up(l, up)),
        6 => (l(), prop::option::weighted(0.2, sk())).prop_map(|(l, s)| Op::List(l, s)),
        2 => (l(), any::<bool>()).prop_map(|(l, pass)| Op::Look(l, pass)),
        20 => (l(), file(skills), readers).prop_map(|(l, f, n)| Op::Read(l, f, n)),
        3 => (l(), some_sk()).prop_map(|(l, s)| Op::Refresh(l, s)),
        3 => (l(), some_sk()).prop_map(|(l, s)| Op::Release(l, s)),
        1 => (l(), sk()).prop_map(|(l, s)| Op::Name(l, s)),
        8 => (l(), sk(), prop::option::weighted(0.2, 0..20usize), scope)
            .prop_map(|(l, s, old, scope)| Op::Approve(l, s, old, scope)),
        2 => (l(), sk()).prop_map(|(l, s)| Op::Revoke(l, s)),
        4 => (l(), 0..8usize, damage).prop_map(|(l, n, d)| Op::Tamper(l, n, d)),
        4 => any::<bool>().prop_map(|crash| Op::Restart { crash }),
    ];
    prop_oneof![
        5 => one.prop_map(|op| vec![op]),
        1 => change(skills).prop_map(|(_, op)| vec![op]),
        2 => change(skills).prop_map(|(l, op)| vec![op, Op::List(l, None)]),
    ]
}

/// Some cases are about a few files only, so that steps meet.
fn case() -> impl Strategy<Value = Case> {
    let hold = prop::sample::select(&[Hold::Release, Hold::Release, Hold::Reload, Hold::None][..]);
    let approval = prop::sample::select(&[Approval::Server, Approval::Each][..]);
    const SOME: [&[Sk]; 3] = [&[Own], &[Out, In], &SKILLS];
    let skills = prop::sample::select(&SOME[..]);
    let ops = skills.prop_flat_map(|skills| {
        let some = (ops(skills), prop::bool::weighted(0.2));
        prop::collection::vec(some, 1..=20)
    });
    (hold, approval, prop::bool::weighted(0.9), ops).prop_map(|(hold, approval, listed, ops)| {
        let each = |(ops, hurry): (Vec<Op>, bool)| ops.into_iter().map(move |op| (op, hurry));
        Case {
            policy: Policy { hold, approval },
            listed,
            ops: ops.into_iter().flat_map(each).take(20).collect(),
        }
    })
}

#[test]
fn model_and_host_agree() {
    let cases = std::env::var(CASES_VAR).map_or(CASES, |n| n.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let agreed = TestRunner::new(config).run(&case(), |case| {
        agree(&case);
        Ok(())
    });
    if let Err(e) = agreed {
        panic!("{e}");
    }
}

/// Steps with time between them.
fn steps(hold: Hold, approval: Approval, ops: &[Op]) {
    agree(&Case {
        policy: Policy { hold, approval },
        listed: true,
        ops: ops.iter().map(|op| (*op, false)).collect(),
    });
}

#[test]
fn model_regression_the_size_beside_a_skill_that_may_not_be_read() {
    let ops = [
        Op::Server(A, Tweak::Rotate(InMd, 1, Who::Inner)),
        Op::Revoke(A, Out),
        Op::List(A, None),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_pages_of_a_file_that_left_the_tree_with_the_approval() {
    let ops = [
        Op::Approve(A, Out, None, Scope::Read),
        Op::Read(A, OutX, 1),
        Op::Server(A, Tweak::Rotate(OutX, 1, Who::All)),
        Op::List(A, None),
    ];
    steps(Hold::None, Approval::Each, &ops);
}

#[test]
fn model_regression_pages_of_a_file_that_left_the_approved_skill() {
    let ops = [
        Op::Approve(A, Out, None, Scope::Read),
        Op::Read(A, InMd, 1),
        Op::Server(A, Tweak::Toggle(Out, InMd)),
        Op::List(A, None),
    ];
    steps(Hold::None, Approval::Each, &ops);
}

#[test]
fn model_regression_many_readers_of_a_disputed_file() {
    let ops = [
        Op::Server(A, Tweak::Rotate(InX, 1, Who::Inner)),
        Op::List(A, None),
        Op::Read(A, InX, 3),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_a_dispute_hears_that_the_server_went_back() {
    let ops = [
        Op::Server(A, Tweak::Rotate(InX, 1, Who::Inner)),
        Op::List(A, None),
        Op::Read(A, InMd, 1),
        Op::Server(A, Tweak::Rotate(InX, 2, Who::Inner)),
        Op::List(A, None),
        Op::Server(A, Tweak::Rotate(InX, 1, Who::Inner)),
        Op::Read(A, InX, 1),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_pages_that_only_the_revoked_skill_vouched_for() {
    let ops = [
        Op::Server(A, Tweak::Rotate(InX, 1, Who::All)),
        Op::Read(A, OutX, 1),
        Op::List(A, None),
        Op::Revoke(A, Out),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_the_newest_listing_is_the_one_that_stays_on_disk() {
    for _ in 0..10 {
        let mut world = World::new(Policy::default());
        world.up(A, true);
        // They are taken at once, so that their writes are under way together.
        for n in 0..24 {
            let skill = SKILLS[n % 3];
            let tweak = [Tweak::Withdraw(skill), Tweak::Publish(skill)][n / 3 % 2];
            world.step(Op::Server(A, tweak));
            world.list(A, None);
        }
        world.settle();
        world.check();
    }
}

#[test]
fn model_regression_a_read_that_timed_out_is_remembered_while_answers_change() {
    let silent = Op::Server(A, Tweak::Corrupt(OwnMd, Some(Corrupt::Silent)));
    let read = Op::Read(A, OwnMd, 1);
    for ops in [
        vec![(silent, false), (read, false), (read, false)],
        vec![
            (silent, false),
            (read, true),
            (Op::List(A, None), true),
            (read, false),
        ],
    ] {
        let (hold, approval) = (Hold::Release, Approval::Server);
        agree(&Case {
            policy: Policy { hold, approval },
            listed: true,
            ops,
        });
    }
}

#[test]
fn model_regression_a_read_that_reloads_moves_the_rest_before_it_returns() {
    let ops = vec![
        (Op::Read(A, OwnX, 1), false),
        (Op::Server(A, Tweak::Rotate(OwnMd, 1, Who::All)), false),
        (Op::Server(A, Tweak::Rotate(OwnX, 1, Who::All)), false),
        (Op::List(A, None), false),
        (Op::Read(A, OwnMd, 1), true),
        (Op::Read(A, OwnX, 1), true),
    ];
    let (hold, approval) = (Hold::Reload, Approval::Server);
    agree(&Case {
        policy: Policy { hold, approval },
        listed: true,
        ops,
    });
}

#[test]
fn model_a_damaged_blob_goes_also_while_the_server_is_down() {
    let ops = [
        Op::Read(A, OwnX, 1),
        Op::Tamper(A, 0, Damage::Flip),
        Op::Restart { crash: true },
        Op::Up(A, false),
        Op::Read(A, OwnX, 1),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}
