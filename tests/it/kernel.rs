//! What the kernel and ordinary programs see: a read-only file system that behaves.

use crate::rig::{Proc, Rig, is_root, mounts_at, ok, run, skill, skill_md, until};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const HOUR_MS: u64 = 3_600_000;

fn lab(files: Value) -> Value {
    json!({"skills": [skill("s", files)], "ttlMs": HOUR_MS})
}

#[test]
fn c46_every_change_is_refused_with_erofs_and_never_reaches_the_daemon() {
    let mut rig = Rig::new();
    let module = json!({"mod.py": "answer = 42\n", "hello.sh": "#!/bin/sh\necho hi\n", "d/f": "f\n",
        "test_mod.py": "import mod, unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(mod.answer, 42)\n"});
    rig.scene("lab", lab(module));
    rig.up(&["lab"], &[]);
    let before = rig
        .sh("find $M/lab -type f -exec sha256sum {} + | sort")
        .good();
    let others = |rig: &Rig| rig.status()["upcalls"]["other"].as_u64().unwrap();
    let handled = others(&rig);

    let file = rig.path("lab/s/mod.py");
    let open = |flags: OFlags| rustix::fs::open(&file, flags, Mode::RUSR).map(drop);
    for dir in [
        rig.path(""),
        rig.path("lab"),
        rig.path("lab/s"),
        rig.path("lab/s/d"),
        rig.path(".mount-skills"),
    ] {
        let new = dir.join("new");
        let create = OFlags::CREATE | OFlags::WRONLY;
        let tried = [
            (
                "create",
                rustix::fs::open(&new, create, Mode::RUSR).map(drop),
            ),
            ("mkdir", rustix::fs::mkdir(&new, Mode::RWXU)),
            ("symlink", rustix::fs::symlink("x", &new)),
            ("link", rustix::fs::link(&file, &new)),
            (
                "mkfifo",
                rustix::fs::mknodat(CWD, &new, FileType::Fifo, Mode::RUSR, 0),
            ),
            ("rename to", rustix::fs::rename(&file, &new)),
            ("chmod", rustix::fs::chmod(&dir, Mode::RWXU)),
            (
                "chown",
                rustix::fs::chown(&dir, Some(rustix::process::geteuid()), None),
            ),
        ];
        for (what, result) in tried {
            assert_eq!(result, Err(Errno::ROFS), "{what} in {dir:?}");
        }
    }
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
    };
    let tried = [
        ("O_WRONLY", open(OFlags::WRONLY)),
        ("O_RDWR", open(OFlags::RDWR)),
        ("O_APPEND", open(OFlags::WRONLY | OFlags::APPEND)),
        ("O_TRUNC", open(OFlags::RDONLY | OFlags::TRUNC)),
        (
            "O_TMPFILE",
            rustix::fs::open(
                rig.path("lab/s"),
                OFlags::TMPFILE | OFlags::RDWR,
                Mode::RUSR,
            )
            .map(drop),
        ),
        ("unlink", rustix::fs::unlink(&file)),
        ("rmdir", rustix::fs::rmdir(rig.path("lab/s/d"))),
        ("chmod", rustix::fs::chmod(&file, Mode::RWXU)),
        (
            "utimes",
            rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()),
        ),
        (
            "setxattr",
            rustix::fs::setxattr(&file, "user.a", b"x", rustix::fs::XattrFlags::empty()),
        ),
        ("removexattr", rustix::fs::removexattr(&file, "user.a")),
    ];
    for (what, result) in tried {
        assert_eq!(result, Err(Errno::ROFS), "{what}");
    }
    for line in [
        "touch $M/lab/s/mod.py",
        "rm -rf $M/lab/s/d",
        "truncate -s 0 $M/lab/s/mod.py",
        "sed -i s/4/5/ $M/lab/s/mod.py",
        "mv $M/lab/s $M/lab/t",
        "ln -s mod.py $M/lab/s/link",
        "ln $M/lab/s/mod.py $M/lab/s/link",
        "chmod u+w $M/lab/s/mod.py",
        "chown 1 $M/lab/s/mod.py",
        "mkdir $M/lab/s/new",
        "setfattr -n user.a -v x $M/lab/s/mod.py",
    ] {
        let out = rig.sh(line);
        assert!(
            out.code != Some(0) && out.err.contains("Read-only file system"),
            "{line}: {out:?}"
        );
    }
    let edited = rig.sh("vim -u NONE -es +s/4/5/ +wq! $M/lab/s/mod.py");
    assert!(matches!(edited.code, Some(1..126)), "{edited:?}");
    assert_eq!(others(&rig), handled, "no change was asked of the daemon");

    let import = "import sys; sys.path.insert(0, sys.argv[1]); import mod; print(mod.answer)";
    let out = run(rig
        .command("python3")
        .args(["-c", import])
        .arg(rig.path("lab/s")));
    assert_eq!(out.good(), "42\n", "importing works, without __pycache__");
    let tests = rig.sh("cd $M/lab/s && python3 -m unittest -v");
    assert!(
        tests.code == Some(0) && tests.err.contains("Ran 1 test"),
        "{tests:?}"
    );
    let compiled = rig.sh("python3 -m compileall $M/lab/s");
    let said = format!("{}{}", compiled.text(), compiled.err);
    assert!(
        compiled.code != Some(0) && said.contains("Read-only file system"),
        "{compiled:?}"
    );
    let made = "find $M -name __pycache__ -o -name '*.sw?' -o -name '*~' -o -name 'sed*' -o -name new -o -name link";
    assert_eq!(rig.sh(made).good(), "");
    let direct = rig.sh("$M/lab/s/hello.sh");
    assert!(
        direct.code != Some(0) && direct.err.contains("Permission denied"),
        "C-13: {direct:?}"
    );
    assert_eq!(rig.sh("sh $M/lab/s/hello.sh").good(), "hi\n");
    let after = rig
        .sh("find $M/lab -type f -exec sha256sum {} + | sort")
        .good();
    assert_eq!(after, before);

    let rows = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let row = rows
        .lines()
        .find(|r| r.contains(&*rig.mount_point().display().to_string()))
        .unwrap();
    let options: Vec<&str> = row.split(' ').nth(5).unwrap().split(',').collect();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(options.contains(&option), "HR-96: {row}");
    }
    assert!(
        row.contains(" - fuse.mount-skills mount-skills "),
        "C-42: {row}"
    );
}

#[test]
fn c44_mappings_positioned_reads_and_direct_reads_give_the_right_bytes() {
    let mut rig = Rig::new();
    let big = json!({"fill": "0123456789abcdefghijklmnopqrstuvwxyz\n", "size": 5 << 20});
    let bad = json!({"text": "promised bytes\n", "serve": "other bytes of\n"});
    rig.scene(
        "lab",
        lab(json!({"big.txt": big, "small.txt": "one line\n", "bad.txt": bad, "deep/f": "x\n"})),
    );
    rig.up(&["lab"], &[]);
    let reference: Vec<u8> = b"0123456789abcdefghijklmnopqrstuvwxyz\n"
        .iter()
        .copied()
        .cycle()
        .take(5 << 20)
        .collect();

    // Cold, in no order.
    let file = File::open(rig.path("lab/s/big.txt")).unwrap();
    let mut seed = 12345u64;
    for _ in 0..400 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 33) as usize % (reference.len() + 10_000);
        let length = (seed >> 20) as usize % 300_000;
        let mut buffer = vec![0; length];
        let n = file.read_at(&mut buffer, at as u64).unwrap();
        let want = reference.get(at..).unwrap_or_default();
        let want = &want[..want.len().min(length)];
        assert!(
            n <= want.len() && (n > 0) != want.is_empty() && buffer[..n] == want[..n],
            "{length} at {at}"
        );
    }
    let direct = rustix::fs::open(
        rig.path("lab/s/big.txt"),
        OFlags::RDONLY | OFlags::DIRECT,
        Mode::empty(),
    );
    let mut buffer = vec![0; 8192];
    assert_eq!(
        rustix::io::pread(direct.unwrap(), &mut buffer, 4096),
        Ok(8192)
    );
    assert!(buffer == reference[4096..12288]);

    let map = "import mmap, sys, hashlib\nf = open(sys.argv[1], 'rb')\n\
        print(hashlib.sha256(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)).hexdigest())";
    let mapped = |name: &str| {
        run(rig
            .command("python3")
            .args(["-c", map])
            .arg(rig.path(&format!("lab/s/{name}"))))
    };
    assert_eq!(
        mapped("big.txt").good().trim(),
        crate::rig::sha256(&reference)
    );
    assert_eq!(
        mapped("small.txt").good().trim(),
        crate::rig::sha256(b"one line\n")
    );
    let bus = mapped("bad.txt");
    assert_eq!(
        (bus.code, bus.out.len()),
        (None, 0),
        "a mapping of refused content dies of SIGBUS: {bus:?}"
    );
    assert_eq!(rig.cat("lab/s/bad.txt"), Err("EIO"));
    let lines = rig
        .sh("rg --no-config --mmap -c xyz $M/lab/s/big.txt; grep -c xyz $M/lab/s/big.txt")
        .good();
    let counts: HashSet<&str> = lines.lines().collect();
    assert_eq!(counts.len(), 1, "{lines}");
    for (file, rows) in [("small.txt", 1), ("big.txt", (5 << 20) / 37 + 1)] {
        let count = format!("rg --no-config -c '' $M/lab/s/{file}");
        assert_eq!(rig.sh(&count).good().trim(), rows.to_string());
        // It maps what it compares; 1 says that they differ.
        let diff = rig.sh(&format!(
            "git diff --no-index --numstat /dev/null $M/lab/s/{file}"
        ));
        assert_eq!(diff.code, Some(1), "{diff:?}");
        let lines = diff.text();
        assert_eq!(
            lines.split_whitespace().next(),
            Some(rows.to_string().as_str()),
            "{lines}"
        );
    }
    assert_eq!(
        rig.sh("tail -c 5 $M/lab/s/small.txt; head -c 3 $M/lab/s/small.txt")
            .good(),
        "line\none"
    );
}

/// A directory through a buffer of 512 bytes: each name with the cookie behind it.
fn listed(dir: &File, from: u64) -> Vec<(Vec<u8>, u64)> {
    let mut buffer = [MaybeUninit::uninit(); 512];
    rustix::fs::seek(dir, SeekFrom::Start(from)).unwrap();
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        found.push((
            entry.file_name().to_bytes().to_vec(),
            entry.next_entry_cookie(),
        ));
    }
    found
}

#[test]
fn c29_c45_big_directories_list_whole_and_cookies_name_children() {
    let mut rig = Rig::new();
    let mut skills: Vec<Value> = (0..5000)
        .map(|n| skill(&format!("s{n:04}"), json!({})))
        .collect();
    let long: serde_json::Map<String, Value> = (0..511)
        .map(|n| (format!("d/{n:03}-{}", "n".repeat(196)), json!("x")))
        .collect();
    skills.push(skill("wide", Value::Object(long)));
    rig.scene(
        "lab",
        json!({"skills": skills, "page": 25, "ttlMs": HOUR_MS}),
    );
    rig.up(&["lab"], &[]);
    for (dir, count) in [("lab", 5001), ("lab/wide/d", 511)] {
        let open = File::open(rig.path(dir)).unwrap();
        // The kernel keeps a listing it has seen once: the second pass comes from there.
        for pass in ["cold", "kept"] {
            let all = listed(&open, 0);
            let names: BTreeSet<&[u8]> = all.iter().map(|(n, _)| n.as_slice()).collect();
            assert_eq!(all.len(), count + 2, "{dir}, {pass}");
            assert_eq!(names.len(), all.len(), "{dir}, {pass}: a name twice");
            assert!(names.contains(&b"."[..]) && names.contains(&b".."[..]));
            for at in [0, 1, 2, count / 2, count - 1, count, count + 1] {
                let rest = listed(&open, all[at].1);
                assert_eq!(
                    rest,
                    all[at + 1..],
                    "{dir}, {pass}: from the cookie of entry {at}"
                );
            }
        }
        let fresh = rig
            .sh(&format!(
                "ls -U $M/{dir} | wc -l; ls -U $M/{dir} | sort | uniq -d | wc -l"
            ))
            .good();
        assert_eq!(fresh, format!("{count}\n0\n"));
    }
    let start = Instant::now();
    rig.sh("ls -l $M/lab >/dev/null").good();
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "the bound is 2 s: {:?}",
        start.elapsed()
    );
    let mut wound = rustix::fs::Dir::read_from(File::open(rig.path("lab")).unwrap()).unwrap();
    for _ in 0..2500 {
        wound.next().unwrap().unwrap();
    }
    wound.rewind();
    assert_eq!(wound.by_ref().count(), 5003, "from the start again");
    let two = ["a", "b"].map(|_| Proc::spawn(rig.command("ls").arg("-U").arg(rig.path("lab"))));
    for reader in two {
        assert_eq!(reader.finish(20.0).good().lines().count(), 5001);
    }
}

#[test]
fn c45_hr55_while_a_listing_changes_nobody_sees_a_name_twice_or_misses_one_that_stayed() {
    let mut rig = Rig::new();
    let names = |range: std::ops::Range<usize>| -> BTreeSet<String> {
        range.map(|n| format!("s{n:03}")).collect()
    };
    let [a, b] = [names(0..300), names(100..400)];
    let scene = |names: &BTreeSet<String>| {
        let skills: Vec<Value> = names.iter().map(|n| skill(n, json!({}))).collect();
        json!({"skills": skills})
    };
    rig.scene("lab", scene(&a));
    rig.up(&["lab"], &[]);
    let open = File::open(rig.path("lab")).unwrap();
    let (stayed, all): (BTreeSet<_>, BTreeSet<_>) = (
        a.intersection(&b).cloned().collect(),
        a.union(&b).cloned().collect(),
    );
    let (mut looks, mut changes, mut last) = (0, 0, a.clone());
    let (mut flips, start) = (0, Instant::now());
    while changes < 4 {
        let passed = start.elapsed();
        assert!(
            passed < Duration::from_secs(40),
            "{changes} changes in {looks} looks"
        );
        if passed > Duration::from_millis(700) * flips {
            rig.scene("lab", scene(if flips % 2 == 0 { &b } else { &a }));
            flips += 1;
        }
        looks += 1;
        let found: Vec<String> = match looks % 2 {
            0 => rig.ls("lab").unwrap(),
            _ => listed(&open, 0)
                .into_iter()
                .map(|(n, _)| String::from_utf8(n).unwrap())
                .filter(|n| !n.starts_with('.'))
                .collect(),
        };
        let set: BTreeSet<String> = found.iter().cloned().collect();
        assert_eq!(set.len(), found.len(), "a name twice");
        assert!(
            stayed.is_subset(&set) && set.is_subset(&all),
            "{:?}",
            set.symmetric_difference(&all)
        );
        changes += usize::from(set != last);
        last = set;
    }
    rig.scene("lab", scene(&b));
    until("the last listing", 10.0, || {
        rig.ls("lab").unwrap().into_iter().collect::<BTreeSet<_>>() == b
    });
}

#[test]
fn hr34_attributes_are_what_the_manifest_says_and_times_survive_a_restart() {
    let mut rig = Rig::new();
    let files = json!({"empty": "", "a.txt": "12345", "d/x/y.txt": "y", "d/z/y.txt": "z", "big": {"fill": "x", "size": 100_000}});
    rig.scene(
        "lab",
        json!({"skills": [skill("team/s", files), skill("plain", json!({}))], "ttlMs": HOUR_MS}),
    );
    rig.up(&["lab"], &[]);
    let before = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64;

    let facts = |rig: &Rig| -> BTreeMap<String, (u64, i64)> {
        let out = rig.sh("cd $M && find lab -printf '%p %s %T@\\n'").good();
        let row = |line: &str| {
            let mut words = line.split(' ');
            let name = words.next().unwrap().to_owned();
            let size = words.next().unwrap().parse().unwrap();
            (
                name,
                (
                    size,
                    words
                        .next()
                        .unwrap()
                        .split('.')
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap(),
                ),
            )
        };
        out.lines().map(row).collect()
    };
    let first = facts(&rig);
    let sizes = [
        ("empty", 0),
        ("a.txt", 5),
        ("d/x/y.txt", 1),
        ("big", 100_000),
        ("SKILL.md", skill_md("s").len() as u64),
    ];
    for (name, size) in sizes {
        let meta = fs::metadata(rig.path(&format!("lab/team/s/{name}"))).unwrap();
        assert_eq!(
            (
                meta.len(),
                meta.blocks(),
                meta.mode() & 0o7777,
                meta.nlink()
            ),
            (size, size.div_ceil(512), 0o444, 1),
            "{name}"
        );
        assert!(
            (before - 60..=before + 60).contains(&meta.mtime()),
            "{name}"
        );
    }
    let links = [
        ("", 4),
        ("lab", 4),
        ("lab/team", 3),
        ("lab/team/s", 3),
        ("lab/team/s/d", 4),
        ("lab/team/s/d/x", 2),
        ("lab/plain", 2),
    ];
    let mut inodes = HashSet::new();
    for (dir, nlink) in links {
        let meta = fs::metadata(rig.path(dir)).unwrap();
        assert_eq!(
            (meta.nlink(), meta.mode() & 0o7777),
            (nlink, 0o555),
            "{dir:?}"
        );
        assert_eq!(
            (meta.uid(), meta.gid()),
            (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw()
            )
        );
    }
    for line in rig.sh("find $M -printf '%i\\n'").good().lines() {
        assert!(inodes.insert(line.to_owned()), "inode {line} twice");
    }
    assert_eq!(
        rig.sh("find $M -type l; find $M -type f -perm /0333; find $M -type d -perm /0222")
            .good(),
        ""
    );
    let fs_stat = rustix::fs::statvfs(rig.path("")).unwrap();
    assert_eq!(fs_stat.f_namemax, 255);
    rig.sh("df $M && df -i $M && stat -f $M").good();
    assert_eq!(
        rig.sh("findmnt -no FSTYPE,SOURCE $M")
            .good()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["fuse.mount-skills", "mount-skills"]
    );

    until("the clock to move on", 5.0, || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64
            > before + 1
    });
    let target = rig.scripted("lab");
    until("the listing to be stored", 5.0, || {
        rig.stored("state")
            .iter()
            .any(|(p, _)| p.ends_with("listing.json"))
    });
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(facts(&rig), first);
}

#[test]
fn c54_hr58_changed_content_has_another_inode_and_time_and_the_rest_keeps_its_own() {
    let mut rig = Rig::new();
    let scene = |text: &str| json!({"skills": [skill("s", json!({"f": text, "same": "same\n"}))]});
    rig.scene("lab", scene("value=1\n"));
    rig.up(&["lab"], &["--hold", "none"]);
    let meta = |name: &str| fs::metadata(rig.path(&format!("lab/s/{name}"))).unwrap();
    let (f, same, dir) = (
        meta("f"),
        meta("same"),
        fs::metadata(rig.path("lab/s")).unwrap(),
    );
    assert_eq!(rig.cat("lab/s/f"), ok("value=1\n"));
    let held = File::open(rig.path("lab/s/f")).unwrap();
    until("a second to pass", 5.0, || {
        f.modified().unwrap().elapsed().unwrap() > Duration::from_millis(1100)
    });
    let longer = "value=3 ".repeat(2000) + "\n";
    rig.scene("lab", scene(&longer));
    until("the new content", 10.0, || {
        fs::read_to_string(rig.path("lab/s/f")).is_ok_and(|t| t == longer)
    });
    let now = meta("f");
    assert!(
        now.ino() != f.ino() && now.mtime() > f.mtime() && now.len() == 16_001,
        "{now:?}"
    );
    assert_eq!(
        (meta("same").ino(), meta("same").mtime()),
        (same.ino(), same.mtime())
    );
    assert!(
        fs::metadata(rig.path("lab/s")).unwrap().mtime() > dir.mtime(),
        "make and find -newer see it"
    );
    let mut old = vec![0; 20_000];
    match held.read_at(&mut old, 0) {
        Ok(n) => assert_eq!(
            &old[..n],
            b"value=1\n",
            "who holds the old file has the old bytes"
        ),
        Err(e) => assert_eq!(e.raw_os_error(), Some(Errno::STALE.raw_os_error())),
    }
}

#[test]
fn names_of_every_form_are_looked_up_byte_for_byte() {
    let mut rig = Rig::new();
    let longest = "n".repeat(255);
    let mut files = json!({"caf\u{e9}.md": "NFC\n", "cafe\u{301}.md": "NFD\n", "UPPER": "U\n", "upper": "u\n",
        "two words": "w\n", "100%.md": "p\n", "a%20b": "once\n", "bug#42?.md": "q\n", "-rf": "dash\n", "a\\b": "back\n"});
    files[longest.as_str()] = "long\n".into();
    rig.scene("lab", lab(files.clone()));
    rig.up(&["lab"], &[]);
    for (name, content) in files.as_object().unwrap() {
        assert_eq!(
            rig.cat(&format!("lab/s/{name}")),
            ok(content.as_str().unwrap()),
            "C-11: {name}"
        );
    }
    let error = |name: &[u8]| {
        fs::metadata(rig.path("lab/s").join(Path::new(OsStr::from_bytes(name)))).unwrap_err()
    };
    let code = |e: Errno| Some(e.raw_os_error());
    for name in [
        &b"\xff\xfe"[..],
        b"caf\xe9.md",
        b"Upper",
        b"two%20words",
        b"n",
        b" ",
        b"\n",
        "n".repeat(254).as_bytes(),
    ] {
        assert_eq!(error(name).raw_os_error(), code(Errno::NOENT), "{name:?}");
    }
    // The kernel lets longer names than ours through to us, and no such file is not there either.
    let long = error("n".repeat(256).as_bytes()).raw_os_error();
    assert!(long == code(Errno::NAMETOOLONG) || long == code(Errno::NOENT));
    assert_eq!(error(b"upper/x").raw_os_error(), code(Errno::NOTDIR));
    assert_eq!(
        fs::read_dir(rig.path("lab/s/UPPER"))
            .unwrap_err()
            .raw_os_error(),
        code(Errno::NOTDIR)
    );
    assert_eq!(
        fs::read(rig.path("lab/s")).unwrap_err().raw_os_error(),
        code(Errno::ISDIR)
    );
    let twins = rig.server("lab")["warnings"].to_string();
    assert!(
        twins.contains("UPPER") && twins.contains("caf"),
        "HR-21: {twins}"
    );
    let uris: Vec<String> = rig.reads("lab").into_keys().collect();
    assert!(
        uris.contains(&"skill://s/caf%C3%A9.md".to_owned()),
        "C-11, verbatim: {uris:?}"
    );
}

#[test]
fn programs_that_ask_for_terminals_attributes_and_holes_get_on() {
    let mut rig = Rig::new();
    rig.scene("lab", lab(json!({"a.txt": "alpha\n"})));
    rig.up(&["lab"], &[]);
    let python = r"
import os, sys
path = sys.argv[1]
for _ in range(3):
    with open(path) as f:
        assert f.read() == 'alpha\n'
fd = os.open(path, os.O_RDONLY)
assert not os.isatty(fd)
assert os.lseek(fd, 0, os.SEEK_DATA) == 0 and os.lseek(fd, 0, os.SEEK_HOLE) == 6
assert os.access(path, os.R_OK) and not os.access(path, os.X_OK)
try:
    os.getxattr(path, 'user.x')
except OSError as e:
    print(e.strerror)
";
    let path = rig.path("lab/s/a.txt");
    let out = run(rig.command("python3").args(["-c", python]).arg(&path));
    assert!(
        out.good().contains("not supported"),
        "no extended attributes"
    );
    let log = rig.words();
    assert!(
        !log.contains("WARN") && !log.contains("Not Implemented"),
        "quietly: {log}"
    );
    let locked = rig.sh("flock -s $M/lab/s/a.txt cat $M/lab/s/a.txt");
    assert_eq!(locked.good(), "alpha\n");
}

#[test]
fn c54_a_file_that_somebody_holds_open_is_whole_after_the_server_went() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        lab(json!({"big": {"fill": "abc\n", "size": 1 << 20}})),
    );
    rig.up(&["lab"], &[]);
    let held = File::open(rig.path("lab/s/big")).unwrap();
    let mut start = vec![0; 4096];
    held.read_exact_at(&mut start, 0).unwrap();
    rig.scene("lab", json!({"start": {"exit": 1}}));
    crate::rig::kill(rig.server_pid("lab"), rustix::process::Signal::KILL);
    until("the server to count as down", 5.0, || {
        rig.server("lab")["state"] == "down"
    });
    let mut rest = vec![0; (1 << 20) - 4096];
    held.read_exact_at(&mut rest, 4096).unwrap();
    assert!([start, rest].concat() == "abc\n".repeat(1 << 18).as_bytes());
}

#[test]
fn c48_a_namespace_that_receives_mounts_has_it_also_after_a_restart_and_a_private_one_never() {
    let mut rig = Rig::new();
    rig.scene("lab", lab(json!({"a.txt": "a\n"})));
    // Whether mounts go on to others is a property of the mount they are made in.
    if is_root() {
        let dir = rig.dir().canonicalize().unwrap();
        rig.sh(&format!(
            "mount --bind {0} {0} && mount --make-shared {0}",
            dir.display()
        ))
        .good();
    }
    let user = if is_root() { &[][..] } else { &["-r"] };
    let inside = |propagation: &str| {
        let mut command = rig.command("unshare");
        command
            .args(user)
            .args(["-m", "--propagation", propagation, "sleep", "300"]);
        let inside = Proc::spawn(&mut command);
        until("a namespace", 10.0, || {
            let comm = fs::read_to_string(format!("/proc/{}/comm", inside.pid()));
            comm.is_ok_and(|c| c == "sleep\n")
        });
        inside
    };
    let (private, slave) = (inside("private"), inside("slave"));
    let look = |rig: &Rig, who: &Proc, line: &str| {
        let mut command = rig.command("nsenter");
        let pid = who.pid().to_string();
        command.args(["-t", &pid, "-m"]);
        if !is_root() {
            command.args(["-U", "--preserve-credentials"]);
        }
        run(command.args(["sh", "-c", line]).env("M", rig.mount_point()))
    };
    let gone = |rig: &Rig| look(rig, &slave, "ls -A $M").text().is_empty();
    for round in ["first", "after a restart", "after a kill"] {
        rig.up(&["lab"], &[]);
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
        assert_eq!(look(&rig, &private, "ls -A $M").good(), "", "{round}");
        if is_root() {
            let seen = look(&rig, &slave, "ls $M/lab/s && cat $M/lab/s/a.txt");
            assert_eq!(seen.good(), "SKILL.md\na.txt\na\n", "{round}");
        }
        if round == "after a restart" {
            rig.kill_daemon();
        } else {
            crate::rig::kill(rig.daemon_pid(), rustix::process::Signal::TERM);
            assert_eq!(rig.ended(10.0), Some(0));
        }
        until("the mount to go", 10.0, || {
            mounts_at(rig.mount_point()).is_empty()
        });
        until("it to go in the other namespace as well", 10.0, || {
            gone(&rig)
        });
    }
    drop((private, slave));
    rig.nothing_left();
    if is_root() {
        rig.sh(&format!(
            "umount -l {}",
            rig.dir().canonicalize().unwrap().display()
        ))
        .good();
    }
}
