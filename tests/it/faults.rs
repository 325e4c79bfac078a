//! The fault matrix, one test a row: what a server, a disk or a signal does, what readers see,
//! and the invariants of [`standing`](crate::standing) throughout.

use crate::rig::{Rig, alive, kill, ok, skill, until};
use crate::standing::Standing;
use rustix::process::Signal;
use serde_json::{Value, json};

const A: (&str, &str) = ("lab/s/a.txt", "a\n");
const B: (&str, &str) = ("lab/s/b.txt", "b\n");

fn two_files() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"}))]})
}

/// The same with rules for reads of `a.txt`.
fn reads_of_a(rules: &[Value]) -> Value {
    let mut scene = two_files();
    let rules = rules.iter().cloned().map(|mut rule| {
        rule["method"] = "resources/read".into();
        rule["uri"] = "skill://s/a.txt".into();
        rule
    });
    scene["rules"] = rules.collect();
    scene
}

#[test]
fn f01_a_server_that_dies_in_the_middle_of_a_reply_costs_one_more_try() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "8", &[]);
    let standing = Standing::begin(&rig, 8.0, &[A, B]);
    rig.scene("lab", reads_of_a(&[json!({"cut": 0.5, "times": 1})]));
    assert_eq!(
        standing.read(&rig, A.0),
        ok(A.1),
        "asked again of the next process"
    );
    assert_eq!(rig.log("lab", "start").len(), 2);
    let read_b = json!({"method": "resources/read", "uri": "skill://s/b.txt", "cut": 0.5});
    let mut scene = two_files();
    scene["rules"] = json!([read_b]);
    rig.scene("lab", scene);
    assert_eq!(
        standing.read(&rig, B.0),
        Err("EHOSTDOWN"),
        "not again and again"
    );
    let asked = rig.seen("lab", "resources/read");
    assert!(
        [3, 4].contains(&asked),
        "two of the first file, then {asked}"
    );
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f02_a_server_that_never_answers_ends_in_etimedout_and_in_eintr_at_once() {
    let mut rig = Rig::new();
    rig.scene("lab", reads_of_a(&[json!({"hang": true})]));
    rig.up_beside_control(&["lab"], "3", &[]);
    let standing = Standing::begin(&rig, 3.0, &[A, B]);
    let interrupted = rig.cat_later(A.0);
    until("the read to be asked", 5.0, || {
        rig.seen("lab", "resources/read") == 1
    });
    kill(interrupted.pid(), Signal::INT);
    assert_eq!(interrupted.finish(2.0).code, None, "ended by the signal");
    assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    assert_eq!(standing.read(&rig, B.0), ok(B.1), "another file of it");
    assert_eq!(rig.ls("lab/s").unwrap(), ["SKILL.md", "a.txt", "b.txt"]);
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f03_a_reply_that_drips_ends_at_the_deadline_of_the_whole() {
    for http in [false, true] {
        let mut rig = Rig::new();
        rig.scene("lab", reads_of_a(&[json!({"drip": [1, 0.5]})]));
        rig.scene("control", crate::standing::control());
        let lab = if http {
            rig.scripted_http("lab")
        } else {
            rig.scripted("lab")
        };
        let control = rig.scripted("control");
        let flags = ["--timeout", "2", "--start-timeout", "5"];
        rig.mount(&[("lab", &lab), ("control", &control)], &flags);
        rig.ready("lab");
        rig.ready("control");
        let standing = Standing::begin(&rig, 2.0, &[A, B]);
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"), "http: {http}");
        // Over stdio the reply still drips, in everybody's way: the process is given up.
        rig.scene("lab", two_files());
        standing.end(&rig);
        assert_eq!(rig.log("lab", "start").len(), if http { 1 } else { 2 });
    }
}

#[test]
fn f02_a_process_that_hangs_for_good_is_started_anew() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "1", &["--start-timeout", "3"]);
    let standing = Standing::begin(&rig, 1.0, &[A, B]);
    let hung = rig.server_pid("lab");
    kill(hung, Signal::STOP);
    assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    assert!(alive(hung), "one question without an answer is not enough");
    standing.end(&rig);
    assert!(!alive(hung));
    assert_eq!(rig.log("lab", "start").len(), 2);
}

#[test]
fn f02_a_process_that_is_slow_is_left_alone() {
    let mut rig = Rig::new();
    rig.scene("lab", reads_of_a(&[json!({"delay": 2})]));
    rig.up_beside_control(&["lab"], "1", &["--start-timeout", "3"]);
    let standing = Standing::begin(&rig, 1.0, &[A, B]);
    for _ in 0..5 {
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    }
    assert_eq!(rig.log("lab", "start").len(), 1);
    rig.scene("lab", two_files());
    standing.end(&rig);
}
