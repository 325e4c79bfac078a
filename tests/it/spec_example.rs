//! The specification's own example, as it is printed there: a template that its server adds after
//! the skill was approved and loaded.

use crate::rig::{Rig, ok, sha256, skill};
use serde_json::{Value, json};

const MD: &str = "---\nname: pdf-processing\ndescription: Extract, fill, and assemble PDF documents\n---\n\n\
    # PDF processing\n\nChoose the matching template from `templates/`.\n";
const INVOICE: &str = "# Invoice\n\nCustomer:\nAmount:\n";
const ORDER: &str = "# Purchase order\n\nSupplier:\nItems:\n";
const CREDIT: &str = "# Credit note\n\nInvoice:\nCredit amount:\n";
const URI: &str = "skill://pdf-processing/SKILL.md";
const DIR: &str = "docs/pdf-processing";

fn scene(credit: Option<&str>, ttl_ms: u64) -> Value {
    let mut files = json!({"SKILL.md": MD, "templates/invoice.md": INVOICE, "templates/purchase-order.md": ORDER});
    if let Some(text) = credit {
        files["templates/credit-note.md"] = json!(text);
    }
    json!({"skills": [skill("pdf-processing", files)], "directoryRead": true, "ttlMs": ttl_ms, "cacheScope": "public"})
}

#[test]
fn hr68_hr73_hr91_hr92_hr108_the_credit_note_is_hidden_until_it_is_approved_with_its_set() {
    // The numbers that the specification prints.
    for (text, size, digest) in [
        (
            MD,
            151,
            "99b737495721155ece826d57521e2d66141ebdc1344a400487481ea2642ab19e",
        ),
        (
            INVOICE,
            29,
            "61f4ea6d2c75fde1b4977219e7e3107d491c3c26aefb6686e84d6281c088d9ee",
        ),
        (
            ORDER,
            35,
            "f2ff774b1737ff3dec81c47946f9976f18a1a9f69dda0a81f22eabd95173c158",
        ),
        (
            CREDIT,
            39,
            "766bffa8d4908ce897e1727ca22e4bf0fa796620b35218ce2132a124545626f1",
        ),
    ] {
        assert_eq!((text.len(), &*sha256(text.as_bytes())), (size, digest));
    }
    let mut rig = Rig::new();
    let in_templates = |rig: &Rig| rig.ls(&format!("{DIR}/templates")).unwrap();
    let credit = format!("{DIR}/templates/credit-note.md");
    let reads = |rig: &Rig| rig.reads("docs").into_keys().collect::<Vec<_>>();

    // Listed: name, description and origin are shown, and nothing further is fetched.
    rig.scene("docs", scene(None, 300_000));
    rig.up(&["docs"], &["--approval", "each"]);
    let list = rig.ask(&["list"]);
    assert!(
        list.contains(DIR) && list.contains("assemble PDF documents"),
        "{list}"
    );
    assert_eq!(rig.cat(&format!("{DIR}/SKILL.md")), Err("EACCES"));
    // Approved: the three pairs, and no other; then loaded.
    let asked = rig.tell(&["approve", DIR]);
    for word in [
        "151 B",
        "29 B",
        "35 B",
        "99b7374957",
        "61f4ea6d2c",
        "f2ff774b17",
    ] {
        assert!(asked.text().contains(word), "{word}: {asked:?}");
    }
    let first_set = rig.set(DIR);
    rig.ask(&["approve", "--set", &first_set, DIR]);
    assert!(reads(&rig).is_empty());
    assert_eq!(rig.cat(&format!("{DIR}/SKILL.md")), ok(MD));
    assert_eq!(reads(&rig), [URI]);
    rig.in_state(DIR, "held");

    // The server adds a file. The listing is fresh, so nobody here has heard of it: the held
    // entry answers for the directory, and the name is none of the skill's.
    rig.scene("docs", scene(Some(CREDIT), 300_000));
    assert_eq!(in_templates(&rig), ["invoice.md", "purchase-order.md"]);
    assert_eq!(rig.cat(&credit), Err("ENOENT"));
    assert_eq!(rig.cat(&format!("{DIR}/templates/invoice.md")), ok(INVOICE));
    assert_eq!(rig.seen("docs", "resources/directory/read"), 0, "HR-90");
    assert_eq!(reads(&rig).len(), 2);

    // Refreshed: another set, so the approval is over, and the change is shown as one.
    let said = rig.ask(&["refresh", DIR]);
    assert!(said.contains("1 added"), "{said}");
    assert_eq!(rig.seen("docs", "skills/get"), 1);
    let status = rig.skill_status(DIR);
    assert_eq!(status["state"], "changed, needs-approval");
    assert!(
        status["next"]
            .as_str()
            .unwrap()
            .contains("mount-skills approve"),
        "{status}"
    );
    assert_eq!(
        in_templates(&rig),
        ["credit-note.md", "invoice.md", "purchase-order.md"]
    );
    for file in [
        "SKILL.md",
        "templates/invoice.md",
        "templates/purchase-order.md",
        "templates/credit-note.md",
    ] {
        assert_eq!(rig.cat(&format!("{DIR}/{file}")), Err("ESTALE"), "{file}");
    }
    assert_eq!(
        rig.tell(&["approve", "--set", &first_set, DIR]).code,
        Some(3),
        "the old set"
    );
    assert_eq!(reads(&rig).len(), 2);
    let asked = rig.tell(&["approve", DIR]).text();
    assert!(
        asked.contains("templates/credit-note.md") && asked.contains("766bffa8d4"),
        "{asked}"
    );
    // Approved anew, and only then read.
    rig.approve(DIR);
    assert_eq!(rig.cat(&credit), ok(CREDIT));
    assert_eq!(rig.cat(&format!("{DIR}/SKILL.md")), ok(MD));
    assert_eq!(rig.cat(&format!("{DIR}/templates/invoice.md")), ok(INVOICE));
    assert_eq!(
        reads(&rig),
        [
            URI,
            "skill://pdf-processing/templates/credit-note.md",
            "skill://pdf-processing/templates/invoice.md"
        ],
        "what was cached is not fetched again"
    );
    let unread = rig.reads("docs").values().max().copied();
    assert_eq!(unread, Some(1));
}

/// The same where the listing is stale at once, so that the server is seen to have the file while
/// the old entry is held.
fn pending() -> Rig {
    let mut rig = Rig::new();
    rig.scene("docs", scene(None, 0));
    rig.up(&["docs"], &[]);
    assert_eq!(rig.cat(&format!("{DIR}/SKILL.md")), ok(MD));
    rig.in_state(DIR, "held");
    rig.scene("docs", scene(Some(CREDIT), 0));
    let status = rig.in_state(DIR, "changed");
    assert_eq!(
        status["changes"]["added"],
        json!(["templates/credit-note.md"])
    );
    assert_eq!(
        rig.ls(&format!("{DIR}/templates")).unwrap(),
        ["invoice.md", "purchase-order.md"]
    );
    rig
}

#[test]
fn hr68_hr73_while_the_old_entry_is_held_the_credit_note_is_none_of_the_skill() {
    let rig = pending();
    let got = rig.cat(&format!("{DIR}/templates/credit-note.md"));
    assert!(matches!(got, Err("ESTALE" | "ENOENT")), "{got:?}");
    assert_eq!(rig.cat(&format!("{DIR}/templates/none.md")), Err("ENOENT"));
    assert_eq!(rig.reads("docs").len(), 1, "no content is asked for");
    rig.ask(&["refresh", DIR]);
    assert_eq!(
        rig.cat(&format!("{DIR}/templates/credit-note.md")),
        ok(CREDIT)
    );
}

#[test]
fn hr68_a_name_that_only_the_pending_entry_has_is_stale_and_counted() {
    let rig = pending();
    assert_eq!(
        rig.cat(&format!("{DIR}/templates/credit-note.md")),
        Err("ESTALE")
    );
    let why = rig.refusal("docs", &format!("{DIR}/templates/credit-note.md"));
    assert!(
        why["next"]
            .as_str()
            .unwrap()
            .contains("mount-skills refresh"),
        "{why}"
    );
}
